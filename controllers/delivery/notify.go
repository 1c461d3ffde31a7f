package delivery

import (
	"context"
	"fmt"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/keelson-io/keelson/controllers/notify"
	"github.com/keelson-io/keelson/controllers/shard"
	"github.com/keelson-io/keelson/registry"
)

// notifications are the loop that sends messages about rollouts and deliveries, and its place among
// the singleton tasks.
type notifications struct {
	loop    *notify.Loop // nil: none are sent
	sending singletonTask
}

// newNotify creates the notification loop. It does nothing without a Sender, or if this process
// works on a single cluster.
func (c *Controller) newNotify(o Options) error {
	if o.Sender == nil || c.rollouts.board == nil {
		return nil
	}
	core, err := typedcorev1.NewForConfig(o.Hub)
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	metrics := notify.NewMetrics()
	for _, m := range metrics.Collectors() {
		if err := o.Registry.Register(m); err != nil {
			return err //nolint:wrapcheck // it says which
		}
	}
	c.notifications.sending = singletonTask{name: shard.Notifications, taken: "notifications are sent from here", left: "notifications go to another replica"}
	c.notifications.loop = notify.NewLoop(notify.Options{
		Board: c.rollouts.board, Hub: core, Sender: o.Sender, Log: o.Log, Now: o.Now, Redactor: o.Redactor, Metrics: metrics, RecordEvent: c.writer.Events().Record,
	})
	return nil
}

// feedNotifications passes a revision to the notification loop.
func (c *Controller) feedNotifications(fleet *registry.Fleet) {
	switch {
	case c.notifications.loop != nil:
		c.notifications.loop.Fleet(fleet)
	case len(fleet.Notifications) > 0 && c.only != "":
		c.log.Warn("no notification is sent from here: this process knows of one cluster alone", "notifications", len(fleet.Notifications))
	}
}

// attendNotify starts notifications here, or leaves them to another process. After the last
// notification left git, a running loop goes on, and forgets it. The error comes from the hub,
// which is opened for the loop.
func (c *Controller) attendNotify(ctx context.Context, fleet *registry.Fleet, granted bool) error {
	if c.notifications.loop == nil {
		return nil
	}
	due := granted && fleet != nil && (len(fleet.Notifications) > 0 || c.notifications.sending.stop != nil)
	if due {
		if err := c.open(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
	c.runSingleton(ctx, &c.notifications.sending, due, c.notifications.loop.Run)
	return nil
}
