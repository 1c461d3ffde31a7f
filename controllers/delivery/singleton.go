package delivery

import "context"

// singletonTask is a task that one process runs for the whole fleet. It is assigned like a cluster.
type singletonTask struct {
	name        string             // among the names that are shared
	taken, left string             // log messages
	stop        context.CancelFunc // nil: not running here
	done        chan struct{}      // closed when the task has ended
}

// runSingleton starts a task if it is due here, and stops it if it is not.
func (c *Controller) runSingleton(ctx context.Context, d *singletonTask, due bool, run func(context.Context)) {
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
			<-done // else two processes would write
			c.shard.Done(d.name)
		})
	}
}
