package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/keelson-io/keelson/lab/harness"

	"github.com/keelson-io/keelson/lab/harness/must"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/bench/addons"
	"github.com/keelson-io/keelson/lab/bench/keelson"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/process"
)

// pause is how long no request must arrive before a change counts as complete. calm is the same
// before a quiet period. It is longer than the controller's delay of healthy-status updates.
const (
	pause = 3 * time.Second
	calm  = 15 * time.Second
)

// idle measures a commit that makes Keelson check every component although nothing changed.
func (m *measurement) idle(ctx context.Context, c *keelson.Controller) {
	files := addons.Files{}
	m.setPass(files, "1")
	before := must.Get(c.Usage())
	p := m.timed(ctx, ours, func() {
		m.fleet.push(ctx, files, "look again")
		must.Do(process.Wait(ctx, listen))
	})
	after := must.Get(c.Usage())
	fmt.Fprintf(m.out, "\nconverged: a commit that has all %d looked at again for nothing\n", m.components)
	calls := m.unwanted(p.events)
	fmt.Fprintf(m.out, "  calls but watches     %d of 0; keelson used %s of CPU\n", calls, (after.CPU - before.CPU).Round(10*time.Millisecond))
	if calls > 0 {
		must.Failf("a converged fleet made %d calls", calls)
	}
}

// unwanted counts the requests of a fleet that has nothing to do. Watches and the Leases of
// replicas that share a fleet are allowed. It prints the first ten.
func (m *measurement) unwanted(events []audit.Event) int {
	calls := 0
	for _, e := range events {
		if e.User != cluster.Keelson || e.Watch() || isLease(e) {
			continue
		}
		if calls++; calls <= 10 {
			fmt.Fprintf(m.out, "  unwanted: %s\n", e)
		}
	}
	return calls
}

// statuses waits until all statuses are written to the hub. The controller writes statuses after
// the objects. The wait keeps late writes out of the measured time and out of the next section.
func (m *measurement) statuses(ctx context.Context) {
	began := time.Now()
	left := m.settled(ctx, pause)
	written, last := 0, began
	for _, e := range left {
		if e.User == cluster.Keelson && kindOf(e) == kindStatus {
			written, last = written+1, e.Time
		}
	}
	fmt.Fprintf(m.out, "  statuses, events      %d more, the last %s after that\n", written, round(last.Sub(began)))
}

// settled waits until no request has arrived for the given time, because the last change may still
// cause requests, mainly for statuses. It returns the requests seen meanwhile.
func (m *measurement) settled(ctx context.Context, silence time.Duration) []audit.Event {
	log := must.Get(m.lab.AuditLog(ours))
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("still asking, long after the last change"))
	defer cancel()
	since := must.Get(audit.End(log))
	for all := []audit.Event(nil); ; {
		must.Do(process.Wait(ctx, silence))
		events, next, err := audit.Read(log, since)
		must.Do(err)
		if calls(events) == 0 {
			return all
		}
		all, since = append(all, events...), next
	}
}

// quietly measures a period in which nothing happens.
func (c *course) quietly(ctx context.Context) {
	before := must.Get(c.usage((*process.Child).UsageOfAll))
	c.steady = c.timed(ctx, ours, func() { must.Do(process.Wait(ctx, c.quiet)) })
	after := must.Get(c.usage((*process.Child).UsageOfAll))
	c.steady.by, c.steady.process = c.contestant.name, after.CPU-before.CPU
	leases := 0
	for _, e := range c.steady.events {
		switch {
		case e.User != cluster.Keelson:
		case isLease(e):
			leases++
		case e.Write():
			c.writes++
		case e.Read():
			c.reads++
		case e.Stage == audit.ResponseStarted:
			c.watches++
		}
	}
	share := func(used time.Duration) float64 { return 100 * used.Seconds() / c.quiet.Seconds() }
	fmt.Fprintf(c.out, "\na commit that changes no object\n  calls but watches     %d\n", calls(c.same.events))
	fmt.Fprintf(c.out, "\nthen %s in which nothing happens\n", c.quiet)
	fmt.Fprintf(c.out, "  requests              %d writes, %d reads, %d watches begun anew", c.writes, c.reads, c.watches)
	if leases > 0 {
		fmt.Fprintf(c.out, "; besides, %d of Leases, by which replicas share clusters", leases)
	}
	fmt.Fprintf(c.out, "\n  CPU of a core         %s %.2f %%, API server %.2f %%, etcd %.2f %%\n",
		c.contestant.name, share(c.steady.process), share(c.steady.server), share(c.steady.etcd))
	if c.repeats {
		return
	}
	if n := c.unwanted(append(c.same.events, c.steady.events...)); n > 0 {
		must.Failf("a fleet in which nothing changes made %d calls", n)
	}
}

// healthy writes healthy statuses of all Deployments, because the cluster has no controller
// manager. Keelson would diagnose a fleet that does not become healthy in time.
func (m *measurement) healthy(ctx context.Context) {
	objects := must.Get(harness.Admin(m.lab, ours)).Resource(deployments).Namespace(namespace)
	list := must.Get(objects.List(ctx, metav1.ListOptions{}))
	for i := range list.Items {
		status := fmt.Appendf(nil, `{"status": {"observedGeneration": %d, "conditions": [
			{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
			{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]}}`, list.Items[i].GetGeneration())
		must.Get(objects.Patch(ctx, list.Items[i].GetName(), types.MergePatchType, status, metav1.PatchOptions{}, "status"))
	}
	m.settled(ctx, calm)
}
