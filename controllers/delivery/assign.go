package delivery

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime/pprof"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/controllers/shard"
	"github.com/keelson-io/keelson/registry"
)

// assign gives each agent its cluster of the current fleet, and starts and stops agents. The error
// comes from the hub, which is opened when the first agent is started.
func (c *Controller) assign(ctx context.Context) error {
	fleet, ours, granted := c.ours()
	if err := c.attendAll(ctx, fleet, granted); err != nil {
		return err
	}
	moved := c.moved.take()
	gone := maps.Clone(c.agents)
	var fresh []*running
	for _, cluster := range ours {
		r := c.agents[cluster.Name]
		// An unreadable file says nothing about the connection.
		if r != nil && (moved[cluster.Name] || len(cluster.Problems) == 0 && !reflect.DeepEqual(r.connection, cluster.Spec.Connection)) {
			c.log.Info("the connection changed", "cluster", cluster.Name)
			r.stop()
			c.leaving[cluster.Name] = r.done
			r = nil
		}
		if r == nil {
			r = c.enlist(fleet, cluster)
			fresh = append(fresh, r)
		} else {
			r.agent.update(fleet, cluster)
		}
		delete(gone, cluster.Name)
	}
	if c.closing != nil {
		c.sweep()
	}
	for name := range gone {
		c.dismiss(ctx, fleet, name)
	}
	if len(fresh) == 0 {
		return nil
	}
	if err := c.open(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	c.sweep()
	c.start(ctx, fresh)
	return nil
}

// ours returns the clusters that this process may work on now, their revision, and for each
// singleton task whether this process runs the task.
func (c *Controller) ours() (_ *registry.Fleet, _ []*registry.Cluster, tasks map[string]bool) {
	fleet := c.reader.current()
	switch {
	case c.shard == nil:
		return fleet, c.clusters(fleet), map[string]bool{shard.Rollouts: true, shard.Previews: true, shard.Notifications: true}
	case fleet == nil:
		return nil, nil, nil
	}
	granted := c.shard.Granted()
	tasks = map[string]bool{}
	for _, task := range shard.SingletonTasks() {
		tasks[task] = granted[task]
		delete(granted, task)
	}
	fleet = c.reader.current() // every granted cluster is in this revision, or has left git
	var out []*registry.Cluster
	for _, cluster := range c.clusters(fleet) {
		// A cluster that is being released must be granted again.
		if granted[cluster.Name] && !c.isLeaving(cluster.Name) {
			out = append(out, cluster)
		}
		delete(granted, cluster.Name)
	}
	for name := range granted {
		if c.agents[name] == nil && !c.isLeaving(name) {
			c.shard.Done(name) // the cluster is not in git any more
		}
	}
	return fleet, out, tasks
}

func (c *Controller) isLeaving(cluster string) bool {
	left := c.leaving[cluster]
	if left == nil {
		return false
	}
	select {
	case <-left:
		delete(c.leaving, cluster)
		return false
	default:
		return true
	}
}

// dismiss stops the agent of a cluster that left git (orphaned), or that another replica will have.
func (c *Controller) dismiss(ctx context.Context, fleet *registry.Fleet, name string) {
	r, orphaned := c.agents[name], fleet.Cluster(name) == nil
	if orphaned {
		c.log.Info("the cluster is no longer in git; it is left as it is, and its Deliveries go", "cluster", name)
	} else {
		c.log.Info("the cluster goes to another replica", "cluster", name)
	}
	r.stop()
	c.mu.Lock()
	delete(c.agents, name)
	c.mu.Unlock()
	left := make(chan struct{})
	c.leaving[name] = left
	c.wg.Go(func() {
		defer close(left)
		<-r.done // a write in progress must not come after the cleanup
		if orphaned {
			r.agent.state.each(func(s *v1alpha1.DeliveryStatus) {
				c.writer.Retract(s.Cluster, s.Component) // no process would keep the Delivery current
			})
			if err := c.probes.store.Retract(ctx, fleet, name); err != nil && ctx.Err() == nil {
				c.log.Warn("the results of its probes can't be removed", "cluster", name, "error", err)
			}
		}
		c.metrics.deleteCluster(name)
		c.probes.metrics.Forget(name)
		if c.shard != nil {
			c.writer.HandOver(ctx, name)
			c.log.Info("the cluster was put down", "cluster", name)
			c.shard.Done(name)
		}
	})
}

// enlist creates an agent; [Controller.start] starts the agent.
func (c *Controller) enlist(fleet *registry.Fleet, cluster *registry.Cluster) *running {
	c.sessions++
	r := &running{agent: newAgent(cluster.Name, c.session(cluster.Name), c.shared, c.moved.add), connection: cluster.Spec.Connection, stop: func() {}, done: make(chan struct{})}
	r.agent.probes = c.prober(r.agent)
	r.agent.update(fleet, cluster)
	return r
}

// session returns a new identity of this process as the writer of one cluster's records. A new
// agent does not know which writes of the previous agent are still in progress.
func (c *Controller) session(cluster string) records.Writer {
	w := records.Writer{Identity: fmt.Sprintf("%s/%d", c.identity, c.sessions)}
	if c.shard != nil {
		w.Confirm = func(ctx context.Context) error { return c.shard.Confirm(ctx, cluster) }
	}
	return w
}

// start runs agents after the previous agents of their clusters have ended, and after the statuses
// of their clusters were read from the hub.
func (c *Controller) start(ctx context.Context, fresh []*running) {
	known := make(chan struct{})
	if c.shard == nil {
		close(known)
	} else {
		var names []string
		for _, r := range fresh {
			names = append(names, r.agent.name)
		}
		c.wg.Go(func() {
			defer close(known)
			c.writer.TakeOver(ctx, names)
		})
	}
	for _, r := range fresh {
		working, stop := context.WithCancel(ctx)
		r.stop = stop
		before := c.leaving[r.agent.name]
		delete(c.leaving, r.agent.name)
		c.mu.Lock()
		c.agents[r.agent.name] = r
		c.mu.Unlock()
		c.wg.Go(func() {
			defer close(r.done)
			if before != nil {
				<-before // two agents of one cluster would be two writers
			}
			<-known
			if working.Err() == nil {
				// The label shows in a profile to which cluster a goroutine belongs.
				pprof.SetGoroutineLabels(pprof.WithLabels(working, pprof.Labels("cluster", r.agent.name)))
				r.agent.run(working, c.metrics.cluster(r.agent.name))
			}
		})
	}
}
