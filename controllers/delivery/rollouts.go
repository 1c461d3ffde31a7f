package delivery

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/components"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
	"github.com/keelson-io/keelson/controllers/egress"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/controllers/shard"
	"github.com/keelson-io/keelson/registry"
)

// rollouts holds what a controller needs for changes that go from cluster to cluster.
type rollouts struct {
	// board shows which clusters are released. loop decides about that, in one process of the
	// fleet.
	board *rollout.Cache
	loop  *rollout.Loop
	// shown: the board is watched, because the fleet has had a pipeline.
	shown    bool
	deciding singletonTask
	// promotions changes versions in git, in the process that decides; nil: no promotions.
	promotions Promotions
}

// newRollouts creates board and loop. It does nothing if this process works on a single cluster.
func (c *Controller) newRollouts(o Options) error {
	c.rollouts.promotions = o.Promotions
	if o.Only != "" {
		return nil
	}
	board, err := rollout.NewCache(o.Hub, c.rolls)
	if err != nil {
		return err
	}
	metrics := rollout.NewMetrics()
	for _, m := range metrics.Collectors() {
		if err := o.Registry.Register(m); err != nil {
			return err //nolint:wrapcheck // it says which
		}
	}
	c.rollouts.board = board
	c.rollouts.deciding = singletonTask{name: shard.Rollouts, taken: "rollouts are decided about here", left: "rollouts go to another replica"}
	c.rollouts.loop = rollout.NewLoop(rollout.Options{
		Board: board, Probes: c.probes.store, Log: o.Log, Now: o.Now, Redactor: o.Redactor, Metrics: metrics, Egress: cmp.Or[http.RoundTripper](o.Egress, egress.Policy{}.Transport()),
		Events: c.writer.Events().Recorder,
	})
	return nil
}

// attendAll starts the singleton tasks of this process, and stops the tasks of other processes. The
// error comes from the hub, which is opened for the tasks.
func (c *Controller) attendAll(ctx context.Context, fleet *registry.Fleet, granted map[string]bool) error {
	if c.previews.task != nil {
		c.runSingleton(ctx, &c.previews.working, granted[shard.Previews], c.previews.task.Run)
	}
	if err := c.attendNotify(ctx, fleet, granted[shard.Notifications]); err != nil || ctx.Err() != nil {
		return err
	}
	if c.rollouts.loop == nil {
		return nil
	}
	leads := c.followRollouts(ctx, fleet) && granted[shard.Rollouts]
	if leads {
		if err := c.open(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
	c.runSingleton(ctx, &c.rollouts.deciding, leads, c.decide)
	return nil
}

// decide runs the rollout loop, and promotes versions that have passed.
func (c *Controller) decide(ctx context.Context) {
	var promoting sync.WaitGroup
	if c.rollouts.promotions != nil {
		promoting.Go(func() { c.rollouts.promotions.Run(ctx, c.rollouts.loop.Progress) })
	}
	c.rollouts.loop.Run(ctx)
	promoting.Wait()
}

// rolls queues the components for which a Rollout changed.
func (c *Controller) rolls(before, now *v1alpha1.Rollout) {
	c.mu.Lock()
	agents := maps.Clone(c.agents)
	c.mu.Unlock()
	name := ""
	if is := cmp.Or(now, before); is != nil {
		name = is.Name
	}
	c.rollouts.loop.Look(name)
	if c.rollouts.promotions != nil {
		c.rollouts.promotions.Look()
	}
	if c.notifications.loop != nil {
		c.notifications.loop.Look()
	}
	if name == "" { // the first list is complete
		for _, r := range agents {
			r.agent.queueGoverned()
		}
		return
	}
	is, was := now, before
	if is == nil {
		is, was = before, nil
	}
	asks := asksElse(was, is)
	for i := range is.Status.Clusters {
		entry := &is.Status.Clusters[i]
		r := agents[entry.Name]
		if r == nil {
			continue
		}
		r.agent.probes.Look() // a check may request runs
		if saysElse(entryOf(was, entry.Name), entry) || asks[entry.Stage] {
			r.agent.queue.Add(is.Name)
		}
	}
}

// saysElse reports whether two entries allow a cluster different things.
func saysElse(x, y *v1alpha1.RolloutCluster) bool {
	return x == nil || x.Want != y.Want || x.From != y.From || x.Back != y.Back || (x.Released == nil) != (y.Released == nil)
}

// asksElse returns the stages for which two states of a Rollout request different Jobs.
func asksElse(was, is *v1alpha1.Rollout) map[string]bool {
	var before []rollout.AskedJob
	if was != nil {
		before = rollout.JobsAsked(&was.Status)
	}
	now, out := rollout.JobsAsked(&is.Status), map[string]bool{}
	if slices.Equal(before, now) {
		return nil
	}
	for _, one := range slices.Concat(before, now) {
		out[one.Stage] = true
	}
	return out
}

// regoverned returns the components of a cluster that gained or lost a pipeline. If freezes
// changed, it also returns the components that are not synced: one that waits may be let go, and one
// in the middle of a change may be stopped.
func regoverned(was, now *registry.Fleet, cluster *registry.Cluster, known statuses) (components []string) {
	if was == nil || was == now || len(was.Pipelines)+len(now.Pipelines)+len(was.Freezes)+len(now.Freezes) == 0 {
		return nil
	}
	freezes := !slices.Equal(was.Freezes, now.Freezes)
	for _, d := range cluster.Deliveries {
		unsynced := known.get(d.Component).Sync != v1alpha1.SyncSynced
		if freezes && unsynced || (was.PipelineOf(d.Component) == nil) != (now.PipelineOf(d.Component) == nil) {
			components = append(components, d.Component)
		}
	}
	return components
}

// followRollouts shows the agents the Rollouts of the hub. It starts when the fleet first has a
// pipeline; before that no Rollout is needed. It does not block, and reports whether the board
// runs.
func (c *Controller) followRollouts(ctx context.Context, fleet *registry.Fleet) bool {
	r := &c.rollouts
	if r.board == nil || fleet == nil || !r.shown && len(fleet.Pipelines) == 0 {
		return false
	}
	if r.shown {
		return true
	}
	r.shown = true
	c.wg.Go(func() {
		backoff := queue.NewBackoff(queue.RetryFirst, queue.RetryLast)
		for ctx.Err() == nil {
			manifest, err := components.CRD("rollouts")
			if err == nil {
				_, err = c.writer.ServeCRD(ctx, manifest)
			}
			if err == nil {
				r.board.Watch(ctx)
				return
			}
			if ctx.Err() == nil {
				c.log.Warn("the hub can't hold Rollouts: no cluster is released; see keelson rbac --hub", "error", err)
			}
			backoff.Wait(ctx)
		}
	})
	return true
}
