package delivery

import (
	"context"
	"fmt"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// absent removes what git wants absent: after all that depends on it, by the same
// plan and guards as any other deletion.
func (a *agent) absent(ctx context.Context, s snapshot, t attempt) (attempt, error) {
	d := s.delivery
	var err error
	if t.wanted, err = a.wanted(s, nil); err != nil {
		return t.stop(v1alpha1.SyncBlocked, err.Error()), err
	}
	target, t, err := a.goes(ctx, s, t)
	if err != nil || t.sync != "" {
		return t, err
	}
	want, err := a.wants.New(s.fleet, d, target)
	if err != nil {
		return t.stop(v1alpha1.SyncBlocked, err.Error()), nil
	}
	want.Others = a.others(s, d)
	prepared, err := planned(ctx, s.link.cluster, want)
	if err != nil {
		return t.stop(a.failed(), err.Error()), err
	}
	t.planned, t.plan, t.health, t.applied = true, prepared.Plan, prepared.Health, prepared.Applied
	on := a.neededBy(d)
	switch {
	case prepared.Settled():
		return t.stop(v1alpha1.SyncAbsent, ""), nil
	case d.Paused || s.cluster.Spec.Paused:
		return t.stop(v1alpha1.SyncPaused, "paused in git: "+t.plan.Summary()), nil
	case on != "":
		return t.stop(v1alpha1.SyncWaiting, fmt.Sprintf("waits until %s is gone, which depends on it", on)), nil
	}
	t, err = a.apply(ctx, s, prepared, t)
	switch {
	case err != nil:
	case t.outcome.Removed:
		t = t.stop(v1alpha1.SyncAbsent, "")
	case t.sync == v1alpha1.SyncSynced:
		t = t.stop(v1alpha1.SyncProgressing, "its objects are gone, and its record is next")
	}
	return t, err
}

// goes renders a component that is to go, for its hooks; nil when nothing is left
// of it. The attempt has a result when it ends here.
func (a *agent) goes(ctx context.Context, s snapshot, t attempt) (*renderer.Target, attempt, error) {
	record, err := s.link.cluster.Record(ctx, s.delivery.Component)
	if err != nil {
		return nil, t.stop(a.failed(), err.Error()), err
	}
	if len(record.Objects) == 0 && record.TargetHash == "" {
		return nil, t, nil
	}
	return a.render(ctx, s, t)
}

// neededBy names a component that depends on one that is to go, and is not gone.
func (a *agent) neededBy(d *registry.Delivery) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.desired.Deliveries {
		if o.Version != nil && slices.Contains(o.Version.Spec.DependsOn, d.Component) && a.statuses.of(o.Component).Sync != v1alpha1.SyncAbsent {
			return o.Component
		}
	}
	return ""
}

// orphan looks at a component that git does not have for the cluster. Its objects
// stay, but for those that another component has taken over; when there are none
// left, nothing is left to tell of it.
func (a *agent) orphan(ctx context.Context, s snapshot, component string) (attempt, error) {
	var t attempt
	t = t.stop(v1alpha1.SyncOrphaned, "it is no longer in git; its objects were left in place")
	if s.link == nil || s.unreachable != nil || s.cluster.Spec.Paused {
		return t, nil //nolint:nilerr // the watches find out when to go on
	}
	s.link.cache.forget(component)
	left, err := s.link.cluster.Tidy(ctx, component)
	t.gone = err == nil && left == 0
	return t, err
}
