package delivery

import (
	"context"
	"fmt"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/renderer"
)

// absent removes a component that git marks absent. The removal starts after all its dependents are
// gone, and uses the same plan and guards as any other deletion.
func (a *agent) absent(ctx context.Context, s snapshot, t *attempt) stageOutcome {
	d := s.delivery
	var err error
	if t.wanted, err = a.resolver.wanted(s, nil); err != nil {
		return stopAndRetry(v1alpha1.SyncBlocked, err)
	}
	target, o := a.renderForRemoval(ctx, s)
	if o.ends() {
		return o
	}
	want, err := a.resolver.wants.Build(s.fleet, d, target)
	if err != nil {
		return stop(v1alpha1.SyncBlocked, err.Error())
	}
	want.Others = a.resolver.others(s, d)
	prepared, err := planned(ctx, s.link.cluster, want)
	if err != nil {
		return stopAndRetry(a.conn.failed(), err)
	}
	t.planned, t.plan, t.health, t.applied = true, prepared.Plan, prepared.Health, prepared.Applied
	on := a.state.neededBy(d)
	switch {
	case prepared.Settled():
		return stop(v1alpha1.SyncAbsent, "")
	case d.Paused || s.cluster.Spec.Paused:
		return stop(v1alpha1.SyncPaused, "paused in git: "+t.plan.Summary())
	case on != "":
		return stop(v1alpha1.SyncWaiting, fmt.Sprintf("waits until %s is gone, which depends on it", on))
	}
	o = a.apply(ctx, s, prepared, t)
	switch {
	case o.retry != nil:
	case t.outcome.Removed:
		return stop(v1alpha1.SyncAbsent, "")
	case o.sync == v1alpha1.SyncSynced:
		return stop(v1alpha1.SyncProgressing, "its objects are gone, and its record is next")
	}
	return o
}

// renderForRemoval renders a component that is to be removed, because its hooks are needed. The
// target is nil if the component has no record.
func (a *agent) renderForRemoval(ctx context.Context, s snapshot) (*renderer.Target, stageOutcome) {
	record, err := s.link.cluster.Record(ctx, s.delivery.Component)
	if err != nil {
		return nil, stopAndRetry(a.conn.failed(), err)
	}
	if len(record.Objects) == 0 && record.TargetHash == "" {
		return nil, stageOutcome{}
	}
	return a.resolver.render(ctx, s)
}

// orphan handles a component that git does not list for the cluster. The objects of the component
// stay, except those that another component has taken over. If no object is left, gone is set.
func (a *agent) orphan(ctx context.Context, s snapshot, component string, t *attempt) stageOutcome {
	o := stop(v1alpha1.SyncOrphaned, "it is no longer in git; its objects were left in place: to delete them, add its file to the cluster's folder again, with its version and absent: true")
	if s.link == nil || s.unreachable != nil || s.cluster.Spec.Paused {
		return o // the watches find out when to go on
	}
	s.link.cache.Forget(component)
	left, err := s.link.cluster.Tidy(ctx, component, func(other string) bool { return s.cluster.Delivery(other) != nil })
	t.gone = err == nil && left == 0
	o.retry = err
	return o
}
