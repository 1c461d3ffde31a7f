package delivery

import "context"

// duty is what one process of a fleet does for all of it. It is shared as if it were a
// cluster.
type duty struct {
	name        string             // among the clusters that are shared
	taken, left string             // what the log says
	stop        context.CancelFunc // nil: it is not done here
	done        chan struct{}      // closed when it has ended
}

// attend begins a duty, or leaves it to another process, as is due.
func (c *Controller) attend(ctx context.Context, d *duty, due bool, run func(context.Context)) {
	switch {
	case due && d.stop == nil && !c.isLeaving(d.name):
		working, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		d.stop, d.done = stop, done
		c.log.Info(d.taken)
		c.wg.Go(func() {
			defer close(done)
			run(working)
		})
	case !due && d.stop != nil:
		c.log.Info(d.left)
		d.stop()
		left, done := make(chan struct{}), d.done
		c.leaving[d.name], d.stop = left, nil
		c.wg.Go(func() {
			defer close(left)
			<-done // or two would write
			c.shard.Done(d.name)
		})
	}
}
