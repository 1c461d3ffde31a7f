package delivery

import (
	"context"
	"fmt"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/renderer"
)

// absent removes a component that git marks absent. The removal starts after all its dependents are
// gone, and uses the same plan and guards as any other deletion.
func (a *agent) absent(ctx context.Context, s snapshot, t attempt) (attempt, error) {
	d := s.delivery
	var err error
	if t.wanted, err = a.resolver.wanted(s, nil); err != nil {
		return t.stop(v1alpha1.SyncBlocked, err.Error()), err
	}
	target, t, err := a.renderForRemoval(ctx, s, t)
	if err != nil || t.sync != "" {
		return t, err
	}
	want, err := a.resolver.wants.Build(s.fleet, d, target)
	if err != nil {
		return t.stop(v1alpha1.SyncBlocked, err.Error()), nil
	}
	want.Others = a.resolver.others(s, d)
	prepared, err := planned(ctx, s.link.cluster, want)
	if err != nil {
		return t.stop(a.conn.failed(), err.Error()), err
	}
	t.planned, t.plan, t.health, t.applied = true, prepared.Plan, prepared.Health, prepared.Applied
	on := a.state.neededBy(d)
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

// renderForRemoval renders a component that is to be removed, because its hooks are needed. The target is nil
// if the component has no record. A non-empty t.sync ends the attempt here.
func (a *agent) renderForRemoval(ctx context.Context, s snapshot, t attempt) (*renderer.Target, attempt, error) {
	record, err := s.link.cluster.Record(ctx, s.delivery.Component)
	if err != nil {
		return nil, t.stop(a.conn.failed(), err.Error()), err
	}
	if len(record.Objects) == 0 && record.TargetHash == "" {
		return nil, t, nil
	}
	return a.resolver.render(ctx, s, t)
}

// orphan handles a component that git does not list for the cluster. The objects of the component
// stay, except those that another component has taken over. If no object is left, gone is set.
func (a *agent) orphan(ctx context.Context, s snapshot, component string) (attempt, error) {
	var t attempt
	t = t.stop(v1alpha1.SyncOrphaned, "it is no longer in git; its objects were left in place")
	if s.link == nil || s.unreachable != nil || s.cluster.Spec.Paused {
		return t, nil //nolint:nilerr // the watches find out when to go on
	}
	s.link.cache.Forget(component)
	left, err := s.link.cluster.Tidy(ctx, component)
	t.gone = err == nil && left == 0
	return t, err
}
