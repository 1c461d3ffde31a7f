package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// The Lease settings of a controllerSet.
const (
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 400 * time.Millisecond
)

// steady is how long replicas must have had the same clusters before a strike. Newly
// started replicas have joined by then.
const steady = 4 * retryPeriod

// controllerSet is a set of controllers that share the clusters of a fixture fleet.
type controllerSet struct {
	*fixtureFleet
	writers []*writer
	started int
}

// writer is a process behind a proxy of its own. The audit log shows agent in the User-Agent.
type writer struct {
	*keelson
	agent string

	mu    sync.Mutex
	lease string     // the Lease that the process renews
	trap  *writeTrap // nil: no trap is set
}

// writeTrap strikes a writer at one of its writes.
type writeTrap struct {
	left    int // number of writes until the strike
	strike  func() error
	hold    bool          // hold that write in the proxy
	release chan struct{} // closed to let the held write pass
	sprung  chan struct{} // closed after the strike
	err     error
}

// startWriter starts a process with its own proxy.
func (c *controllerSet) startWriter() {
	c.started++
	wr := &writer{agent: fmt.Sprintf("writer-%03d", c.started)}
	p, path := c.proxied(wr.agent, proxy.Options{Agent: wr.agent})
	p.Use(wr.decide)
	wr.keelson = c.start(launch{name: wr.agent, repo: c.repo, kubeconfig: path}, controllerArgs("",
		"--cache-dir", c.path("cache-"+wr.agent), "--share", "--lease-duration", leaseDuration.String(),
		"--renew-deadline", renewDeadline.String(), "--retry-period", retryPeriod.String())...)
	c.writers = append(c.writers, wr)
}

// rounds starts processes and calls round until r.must rounds are done or a round has
// failed. A failed round is a violation.
func (c *controllerSet) rounds(ctx context.Context, r *result, processes int, round func(context.Context) time.Duration) {
	for range processes {
		c.startWriter()
	}
	must.Wrap(func() { c.converged(ctx, hungAfter) }, "before any round")
	for r.number < r.must && len(r.violations) == 0 {
		took, err := must.TryGet(func() time.Duration { return round(ctx) })
		r.number++
		switch {
		case ctx.Err() != nil:
			must.Do(ctx.Err())
		case err != nil:
			r.violate("round %d: %v", r.number, err)
			return
		}
		r.recovered(took)
		if r.number%max(1, r.must/10) == 0 {
			harness.Say("%s: %d rounds, as git says again after %s at worst", c.name, r.number, r.worst.Round(10*time.Millisecond))
		}
	}
}

// judge compares the writes in the audit log with the holders of the clusters at that
// time. It returns the verdict and the number of judged writes.
func (c *controllerSet) judge(r *result) (verdict, int) {
	events := c.since(0)
	v := takeOvers(events, c.components)
	judged := v.unlisted(events, c.components)
	r.violations = append(r.violations, v.violations...)
	if v.takeOvers < r.number {
		r.violate("the audit log shows %d components taken over in %d rounds: nothing was tested", v.takeOvers, r.number)
	}
	return v, judged
}

// strike is the strike of one round.
type strike struct {
	victim   *writer
	clusters []string // the victim's clusters
	trap     *writeTrap
	// struck returns after the strike. end replaces the victim by another process.
	struck, end func(context.Context)
}

// strikeAndRecover strikes a process while it writes a new change of git. Other processes have to take
// over its clusters and finish its work. moved is the time from the strike to the
// takeover, took the time to the end of the work.
func (c *controllerSet) strikeAndRecover(ctx context.Context, b strike) (moved, took time.Duration) {
	let := b.victim.set(b.trap)
	defer let()
	c.changeGit(ctx, c.newRand(), 2*len(c.components))
	b.struck(ctx)
	ended := time.Now()
	until(ctx, recovery, func(ctx context.Context) { c.takenOver(ctx, b) })
	moved = time.Since(ended)
	must.Wrap(func() {
		until(ctx, recovery, func(ctx context.Context) {
			must.Each(func() { c.replaceEnded(ctx, b.victim) }, func() { c.asGitSays(ctx) }, func() { c.synced(ctx) })
		})
	}, "no replica finished what %s had begun (its log: %s)", b.victim.agent, b.victim.Log)
	took = time.Since(ended)
	let()
	b.end(ctx)
	c.converged(ctx, recovery)
	return moved, took
}

// takenOver fails unless other processes have all clusters of the struck process.
func (c *controllerSet) takenOver(ctx context.Context, b strike) {
	c.replaceEnded(ctx, b.victim)
	now := c.holders(ctx)
	left := slices.DeleteFunc(slices.Clone(b.clusters), func(one string) bool { return now[one] != nil && now[one] != b.victim })
	if len(left) > 0 {
		must.Failf("no replica took %s of %s (its log: %s)", strings.Join(left, ", "), b.victim.agent, b.victim.Log)
	}
}

// resumeAndReplace resumes a stopped process and replaces it. The process has to end by itself.
func (c *controllerSet) resumeAndReplace(ctx context.Context, stopped *writer) {
	must.Do(stopped.thaw())
	c.replace(ctx, stopped)
}

// decide records the Lease of a writer and triggers the trap.
func (wr *writer) decide(r proxy.Request) proxy.Verdict {
	wr.mu.Lock()
	defer wr.mu.Unlock()
	if r.Verb == "update" && r.Resource == "leases" {
		wr.lease = r.Name
	}
	t := wr.trap
	if t == nil || !r.Write() || r.DryRun || r.Group == "keelson.io" || r.Resource == "events" || r.Resource == "leases" || r.Resource == "configmaps" && r.Namespace == systemNS {
		return proxy.Verdict{}
	}
	if t.left--; t.left != 0 {
		return proxy.Verdict{}
	}
	t.err = t.strike()
	defer close(t.sprung)
	if !t.hold {
		return proxy.Verdict{}
	}
	return proxy.Verdict{Before: func() { <-t.release }}
}

// set sets a trap. The returned function releases the write that the trap holds.
func (wr *writer) set(t *writeTrap) (let func()) {
	t.release, t.sprung = make(chan struct{}), make(chan struct{})
	wr.mu.Lock()
	defer wr.mu.Unlock()
	wr.trap = t
	return sync.OnceFunc(func() { close(t.release) })
}

// replaceEnded starts a replacement for each process that ended, as a Deployment does. On a
// busy machine a process can lose its Lease without a strike. tend ignores the struck
// process.
func (c *controllerSet) replaceEnded(ctx context.Context, struck *writer) {
	for _, wr := range slices.Clone(c.writers) {
		if wr == struck || !wr.Ended() {
			continue
		}
		c.replace(ctx, wr)
	}
}

// replace waits until a deposed process ends by itself, with exit code 2, and starts
// another process.
func (c *controllerSet) replace(ctx context.Context, deposed *writer) {
	code, err := deposed.wait(ctx)
	if err != nil {
		must.Failf("%s lost its Lease: %w (its log: %s)", deposed.agent, err, deposed.Log)
	}
	if code != 2 {
		must.Failf("%s lost its Lease and ended with exit code %d, not 2 (its log: %s)", deposed.agent, code, deposed.Log)
	}
	c.drop(deposed)
}

// drop removes an ended process and starts another.
func (c *controllerSet) drop(gone *writer) {
	c.writers = slices.DeleteFunc(c.writers, func(wr *writer) bool { return wr == gone })
	c.startWriter()
}

// holders returns the writer of each cluster, by the Leases in the hub. The writer is nil
// if the Lease belongs to a process that is no longer in the set.
func (c *controllerSet) holders(ctx context.Context) map[string]*writer {
	leases := c.leases(ctx)
	by := map[string]*writer{}
	for _, wr := range c.writers {
		wr.mu.Lock()
		by[wr.lease] = wr
		wr.mu.Unlock()
	}
	out := map[string]*writer{}
	for lease, clusters := range leases {
		for _, one := range clusters {
			out[one] = by[lease]
		}
	}
	return out
}

// leases returns the clusters of each Lease in the hub.
func (c *controllerSet) leases(ctx context.Context) map[string][]string {
	list := must.Get(c.fixtureFleet.client.Resource(harness.Resource("coordination.k8s.io/v1/leases")).
		Namespace("keelson-system").List(ctx, metav1.ListOptions{LabelSelector: "keelson.io/share"}))
	out := map[string][]string{}
	for i := range list.Items {
		out[list.Items[i].GetName()] = clustersOf(list.Items[i].GetAnnotations()["keelson.io/clusters"])
	}
	return out
}

func clustersOf(annotation string) []string {
	return strings.FieldsFunc(annotation, func(r rune) bool { return r == ',' })
}

// settled waits until every writer has a Lease and every cluster has had the same
// writer for the time steady.
func (c *controllerSet) settled(ctx context.Context) (holders map[string]*writer) {
	var since time.Time
	until(ctx, recovery, func(ctx context.Context) {
		c.replaceEnded(ctx, nil)
		leases := c.leases(ctx)
		now := c.holders(ctx)
		if !maps.Equal(now, holders) {
			holders, since = now, time.Now()
		}
		for _, p := range c.components {
			if now[p.on] == nil {
				must.Failf("no process has cluster %s", p.on)
			}
		}
		if len(leases) != len(c.writers) || time.Since(since) < steady {
			must.Failf("%d processes have %d Leases, for %s", len(c.writers), len(leases), time.Since(since))
		}
	})
	return holders
}

// clustersWith returns the clusters of a writer, sorted.
func clustersWith(holders map[string]*writer, wr *writer) []string {
	var out []string
	for c, who := range holders {
		if who == wr {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}
