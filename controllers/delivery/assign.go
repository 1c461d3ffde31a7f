package delivery

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime/pprof"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/shard"
	"github.com/keelson-io/keelson/registry"
)

// assign gives each cluster its part of the fleet, and starts and stops agents.
// The error is that of the hub, which is opened when the first agent is started.
func (c *Controller) assign(ctx context.Context) error {
	fleet, ours, granted := c.ours()
	if err := c.attendAll(ctx, fleet, granted); err != nil {
		return err
	}
	moved := c.takeMoved()
	gone := maps.Clone(c.agents)
	var fresh []*running
	for _, cluster := range ours {
		r := c.agents[cluster.Name]
		// A file that can't be read says nothing about the connection.
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

// ours are the clusters that this process may work on now, the revision that they are
// of, and the duties that are its own.
func (c *Controller) ours() (_ *registry.Fleet, _ []*registry.Cluster, duties map[string]bool) {
	fleet := c.current()
	switch {
	case c.shard == nil:
		return fleet, c.clusters(fleet), map[string]bool{shard.Rollouts: true, shard.Previews: true, shard.Notifications: true}
	case fleet == nil:
		return nil, nil, nil
	}
	granted := c.shard.Granted()
	duties = map[string]bool{}
	for _, duty := range shard.Duties() {
		duties[duty] = granted[duty]
		delete(granted, duty)
	}
	fleet = c.current() // what was granted is in this one, or has left it
	var out []*registry.Cluster
	for _, cluster := range c.clusters(fleet) {
		// What is being put down has to be granted anew.
		if granted[cluster.Name] && !c.isLeaving(cluster.Name) {
			out = append(out, cluster)
		}
		delete(granted, cluster.Name)
	}
	for name := range granted {
		if c.agents[name] == nil && !c.isLeaving(name) {
			c.shard.Done(name) // git does not have it any more
		}
	}
	return fleet, out, duties
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

// dismiss puts a cluster down: it left git (orphaned), or is another replica's to be.
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
		<-r.done // or what it has begun would have the last word
		if orphaned {
			for _, s := range r.agent.known() {
				c.writer.retract(s.Cluster, s.Component) // nobody would keep it up
			}
			if err := c.probes.store.Retract(ctx, fleet, name); err != nil && ctx.Err() == nil {
				c.log.Warn("the results of its probes can't be removed", "cluster", name, "error", err)
			}
		}
		c.metrics.gone(name)
		c.probes.metrics.Forget(name)
		if c.shard != nil {
			c.writer.letGo(ctx, name)
			c.log.Info("the cluster was put down", "cluster", name)
			c.shard.Done(name)
		}
	})
}

// enlist prepares an agent, which [Controller.start] starts.
func (c *Controller) enlist(fleet *registry.Fleet, cluster *registry.Cluster) *running {
	c.sessions++
	r := &running{agent: newAgent(cluster.Name, c), connection: cluster.Spec.Connection, stop: func() {}, done: make(chan struct{})}
	r.agent.session = c.session(cluster.Name)
	r.agent.update(fleet, cluster)
	return r
}

// session is this process as the writer of one cluster's records, once: one that
// comes again does not know what of the one before is still on its way.
func (c *Controller) session(cluster string) applier.Writer {
	w := applier.Writer{Identity: fmt.Sprintf("%s/%d", c.identity, c.sessions)}
	if c.shard != nil {
		w.Confirm = func(ctx context.Context) error { return c.shard.Confirm(ctx, cluster) }
	}
	return w
}

// start has agents work, when those before them have ended and the hub has said what
// it shows of their clusters.
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
			c.writer.takeOver(ctx, names)
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
				<-before // two agents would be one writer
			}
			<-known
			if working.Err() == nil {
				// A profile tells which cluster a goroutine is for.
				pprof.SetGoroutineLabels(pprof.WithLabels(working, pprof.Labels("cluster", r.agent.name)))
				r.agent.metrics = c.metrics.cluster(r.agent.name)
				r.agent.run(working)
			}
		})
	}
}
