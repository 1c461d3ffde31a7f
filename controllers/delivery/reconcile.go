package delivery

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/controllers/delivery/hubstatus"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
	"github.com/keelson-io/keelson/controllers/lease"
)

// work reconciles queued components until the queue is shut down and empty.
func (a *agent) work(ctx context.Context) {
	var reconciles sync.WaitGroup
	defer reconciles.Wait()
	for w := queue.NewConcurrencyLimit(); ; {
		w.Wait()
		component, shutdown := a.queue.Get()
		if shutdown {
			return
		}
		w.Begin()
		reconciles.Go(func() {
			scarce := a.limiters.Reconcile.IsFull()
			defer func() { w.End(scarce) }()
			a.turn(ctx, component)
		})
	}
}

// turn reconciles one component when the limiter of all clusters has a slot.
func (a *agent) turn(ctx context.Context, component string) {
	if leave, err := a.limiters.Reconcile.Acquire(ctx); err == nil {
		a.reconcile(ctx, component)
		leave()
	}
	a.queue.Done(component)
	if a.queue.Len() == 0 {
		a.hub.FlushDelayed(a.name)
	}
}

// reconcile runs one attempt on a component, and updates its status.
func (a *agent) reconcile(ctx context.Context, component string) {
	started := a.now()
	result, err := a.traced(ctx, component)
	a.bursts.Reconciled(result.outcome.Wrote())
	defer a.first.reconciled(component)
	unattended := a.attendChecks(ctx, component, result)
	result.aside = a.conn.noteNow()
	changed := a.state.record(component, result, a.checks.runsOf(component), started)
	if changed == nil {
		return
	}
	a.metrics.arrived(changed.synced, changed.healthy)
	before, status := changed.before, changed.after
	if result.gone {
		a.diagnoses.forget(component)
		a.log.Info("nothing is left of it", "component", component)
		a.hub.Retract(a.name, component)
		return
	}

	if first := before.Sync == "" && status.Sync == v1alpha1.SyncProgressing; !first &&
		(before.Sync != status.Sync || before.Health != status.Health) {
		a.log.Info("delivery", "component", component, "version", status.Version,
			"sync", status.Sync, "health", status.Health, "message", status.Message)
		a.queueWaiting(component)
	} else if changed.beganPruning {
		a.queueWaiting(component)
	}
	if o := result.outcome; o.Wrote() {
		a.log.Info("applied", "component", component, "created", o.Created, "updated", o.Updated,
			"restored", o.Restored, "deleted", o.Deleted, "took", a.now().Sub(started).Round(time.Millisecond))
		a.metrics.applied(o, a.now().Sub(started))
	}
	if !result.connecting { // that lasts a second, or a ping shows why it lasts longer
		a.state.replace(status, a.publishStatus(before, status))
	}
	if result.planned && status.Health == v1alpha1.HealthProgressing {
		// No event would show that the timeout has passed, or that a pod does not start.
		late := waited(*status, a.now())
		after := a.diagnoses.nextPodCheck(component)
		if !health.Waits(result.health) {
			after = min(after, max(result.timeout-late, 0)+time.Second)
		}
		a.queue.AddAfter(component, after)
	}
	if err != nil && !errors.Is(err, applier.ErrStale) {
		a.log.Warn("delivery failed", "component", component, "error", err)
	}
	for _, kept := range result.outcome.Kept {
		a.log.Warn("a hook's object stays", "component", component, "object", kept.ID.String(), "event", kept.Event, "because", kept.Message)
	}
	for _, from := range result.outcome.TransferredFrom {
		a.queue.Add(from) // its record lost objects to this component
	}
	a.requeue(component, result.outcome.Again, errors.Join(err, unattended))
}

// publishStatus publishes a status. Trouble and changed checks are prompt. While components are queued, a
// status that is Synced, Progressing or Waiting is delayed. It returns the status to keep.
func (a *agent) publishStatus(before v1alpha1.DeliveryStatus, s *v1alpha1.DeliveryStatus) *v1alpha1.DeliveryStatus {
	u := hubstatus.Prompt
	if !slices.Equal(before.Checks, s.Checks) {
		return a.hub.Publish(s, u)
	}
	switch s.Sync {
	case v1alpha1.SyncSynced, v1alpha1.SyncProgressing, v1alpha1.SyncWaiting:
		if a.queue.Len() > 0 {
			u = hubstatus.Delayed
		}
	case v1alpha1.SyncHeld, v1alpha1.SyncDenied, v1alpha1.SyncFailed, v1alpha1.SyncBlocked, v1alpha1.SyncUnreachable,
		v1alpha1.SyncPaused, v1alpha1.SyncOrphaned, v1alpha1.SyncAbsent:
	}
	return a.hub.Publish(s, u)
}

// requeue queues a component once more if a retry may help and no event would queue it.
func (a *agent) requeue(component string, after time.Duration, err error) {
	if err == nil || !applier.Refused(err) {
		a.refused.Forget(component)
	}
	switch wait := applier.RetryAfter(err); {
	case err == nil:
		a.queue.Forget(component)
		if after > 0 {
			a.queue.AddAfter(component, after)
		}
	case applier.Refused(err):
		a.queue.AddAfter(component, a.refused.When(component))
	case errors.Is(err, lease.ErrLost): // until the Lease is renewed, or this process ends
		a.queue.AddAfter(component, unheld)
	case wait > 0:
		a.queue.AddAfter(component, min(wait, queue.RetryLast))
	case after > 0 && errors.As(err, new(*applier.HookError)): // the status shows the reason until then
		a.queue.AddAfter(component, after)
	default:
		a.queue.AddRateLimited(component)
	}
}

// queueWaiting queues the components that wait for this one.
func (a *agent) queueWaiting(component string) {
	for _, name := range a.state.waitingFor(component) {
		a.queue.Add(name)
	}
}

// attendChecks runs and ends the Jobs of the component's checks.
func (a *agent) attendChecks(ctx context.Context, component string, t attempt) error {
	pinned := t.pin != nil || !t.planned && a.state.status(component).Pinned != nil
	return a.checks.attend(ctx, component, pinned)
}
