package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"

	"github.com/keelson-io/keelson/lab/bench/keelson"
	"github.com/keelson-io/keelson/lab/bench/sim"
	"github.com/keelson-io/keelson/lab/process"
)

// spread holds how long clusters took to receive a pushed change. The poll that detects a push
// comes up to an interval later, by chance. The time after the first cluster's write, afterFirst,
// is free of that chance.
type spread struct{ median, p99, last, afterFirst time.Duration }

// commit pushes changes one after the other, each of one component, and returns how long the given
// clusters took.
func (m *measurement) commit(ctx context.Context, c *keelson.Controller, of []string) spread {
	var took, after []time.Duration
	for range m.commits {
		one := m.pushed(ctx, c, of)
		first := slices.Min(one)
		for _, d := range one {
			took, after = append(took, d), append(after, d-first)
		}
	}
	slices.Sort(took)
	slices.Sort(after)
	p99 := (len(took)*99+99)/100 - 1
	return spread{median: took[len(took)/2], p99: took[p99], last: took[len(took)-1], afterFirst: after[p99]}
}

// deployments reports whether a request wrote a Deployment, the kind that commits change.
func deployments(c sim.Count) bool { return c.Write() && c.Resource == "deployments" }

// pushed pushes one change and waits until each of the given clusters was written exactly once.
func (m *measurement) pushed(ctx context.Context, c *keelson.Controller, of []string) []time.Duration {
	before := must.Get(m.written(ctx, of))
	m.pushes++
	began := time.Now()
	m.repo.push(ctx, m.pushes%m.size.components)
	took := make([]time.Duration, len(of))
	must.Do(c.Until(ctx, m.limit, 200*time.Millisecond, func(ctx context.Context) error {
		after, err := m.written(ctx, of)
		if err != nil {
			return err
		}
		missing := 0
		for i := range of {
			n := after[i].n - before[i].n
			if n > 1 {
				return fmt.Errorf("cluster %s was written %d times for one change", of[i], n)
			}
			missing += 1 - n
			took[i] = after[i].last.Sub(began)
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d clusters don't have the change", missing, len(of))
		}
		return nil
	}))
	return took
}

type writtenTo struct {
	n    int
	last time.Time
}

// written returns the number and time of the last write of Deployments, for each cluster.
func (m *measurement) written(ctx context.Context, of []string) ([]writtenTo, error) {
	statuses, err := m.sim.statuses(ctx, of...)
	if err != nil {
		return nil, err
	}
	out := make([]writtenTo, len(statuses))
	for i, s := range statuses {
		for _, c := range s.Counts {
			if deployments(c) {
				out[i].n += c.Requests
				if c.Last.After(out[i].last) {
					out[i].last = c.Last
				}
			}
		}
	}
	return out, nil
}

// withHung measures commits while some clusters hang, and checks that these clusters catch up after
// they answer again.
func (m *measurement) withHung(ctx context.Context, c *keelson.Controller, r *row) {
	var healthy, hung []string
	for i, name := range m.names() {
		if i*m.hung/100 != (i+1)*m.hung/100 {
			hung = append(hung, name)
		} else {
			healthy = append(healthy, name)
		}
	}
	if len(hung) == 0 || len(healthy) == 0 {
		return
	}
	before := must.Get(m.written(ctx, hung))
	must.Do(m.sim.command(ctx, sim.Command{Clusters: hung, Faults: &sim.Faults{Hung: true}}))
	// Wait until requests to the hung clusters have timed out and their probes have failed.
	m.pushed(ctx, c, healthy)
	must.Do(process.Wait(ctx, m.hang))
	slow := m.commit(ctx, c, healthy)
	r.hung = &slow
	m.commitTable(fmt.Sprintf("the same for %d healthy clusters, %d hang", len(healthy), len(hung)), slow)
	fmt.Fprintf(m.out, "  p99 beside none hung  %.2f× of %.1f×; from the first write on %s, and %s before\n",
		slow.p99.Seconds()/r.commit.p99.Seconds(), goalHung, round(slow.afterFirst), round(r.commit.afterFirst))
	must.Do(m.sim.command(ctx, sim.Command{Clusters: hung, Faults: &sim.Faults{}}))
	began := time.Now()
	must.Do(c.Until(ctx, m.limit, 500*time.Millisecond, func(ctx context.Context) error { return m.followed(ctx, hung, before) }))
	m.synced(ctx, c)
	fmt.Fprintf(m.out, "  hung ones follow      %s after they answer again\n", round(time.Since(began)))
}

// followed fails until each cluster has received the changes since before. Writes may be coalesced.
func (m *measurement) followed(ctx context.Context, of []string, before []writtenTo) error {
	after, err := m.written(ctx, of)
	if err != nil {
		return err
	}
	want := min(m.commits+1, m.size.components) // changes are coalesced only if one component is pushed twice
	for i := range of {
		if after[i].n-before[i].n < want {
			return fmt.Errorf("cluster %s has not followed yet", of[i])
		}
	}
	return nil
}
