package daemonset

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

const (
	// conditionRefused is True where a spec isn't followed: a CloneSet's is called so.
	conditionRefused = appsv1.DaemonSetConditionType(v1beta1.CloneSetFailedScale)
	reasonRefused    = "SpecRefused"

	// conditionProgressing is there where a selector chooses nodes: how many that are no
	// number says. Its reasons are those of a CloneSet's.
	conditionProgressing = appsv1.DaemonSetConditionType(v1beta1.CloneSetProgressing)
	reasonUpdated        = "DaemonSetUpdated"
	reasonPartition      = "ProgressPartitionAvailable"
)

// refuse says why nothing is done about a DaemonSet. Its pods stay as they are.
func (r *Reconciler) refuse(ctx context.Context, set *v1beta1.DaemonSet, why error) error {
	now := set.DeepCopy()
	now.Status.ObservedGeneration = set.Generation
	c := appsv1.DaemonSetCondition{
		Type: conditionRefused, Status: corev1.ConditionTrue, Reason: reasonRefused, Message: why.Error() + ": nothing is done", LastTransitionTime: metav1.NewTime(r.now()),
	}
	i := slices.IndexFunc(now.Status.Conditions, isRefused)
	switch {
	case i < 0:
		now.Status.Conditions = append(now.Status.Conditions, c)
	case now.Status.Conditions[i].Message != c.Message:
		now.Status.Conditions[i] = c
	}
	if equality.Semantic.DeepEqual(now.Status, set.Status) {
		return nil
	}
	r.Events.Eventf(set, nil, corev1.EventTypeWarning, reasonRefused, "Reconciling", "%s", c.Message)
	if err := r.Objects.Status().Update(ctx, now); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("its status: %w", err)
	}
	return nil
}

func isRefused(c appsv1.DaemonSetCondition) bool { return c.Type == conditionRefused }

// status is what the look has seen. What it did is seen by the next one.
func (l *look) status() v1beta1.DaemonSetStatus {
	s := &l.roster.sums
	n := func(n int) int32 { return int32(n) } //nolint:gosec // of nodes
	return v1beta1.DaemonSetStatus{
		ObservedGeneration: l.set.Generation, UpdateRevision: revision.Hash(l.history.Updated.Name), CollisionCount: l.history.Collisions,
		Conditions:             l.conditions(),
		DesiredNumberScheduled: n(s.running), CurrentNumberScheduled: n(s.filled), UpdatedNumberScheduled: n(s.updated), NumberMisscheduled: n(s.misscheduled),
		NumberReady: n(s.ready), NumberAvailable: n(s.available), NumberUnavailable: n(s.running - s.available),
	}
}

// conditions are as they were, but for what has changed.
func (l *look) conditions() []appsv1.DaemonSetCondition {
	out := slices.DeleteFunc(slices.Clone(l.set.Status.Conditions), func(c appsv1.DaemonSetCondition) bool {
		return isRefused(c) || c.Type == conditionProgressing // it is followed now
	})
	if l.chosen.Empty() {
		return out
	}
	s := &l.roster.sums
	reach := l.want.reachable(s)
	c := appsv1.DaemonSetCondition{
		Type: conditionProgressing, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(l.client.Now), Reason: reasonUpdated,
		Message: fmt.Sprintf("%d of %d nodes are updated that the selector and the partition choose", min(s.renewed, reach), reach),
	}
	if s.renewed >= reach {
		c.Reason = reasonPartition
	}
	if i := slices.IndexFunc(l.set.Status.Conditions, func(c appsv1.DaemonSetCondition) bool { return c.Type == conditionProgressing }); i >= 0 {
		c.LastTransitionTime = l.set.Status.Conditions[i].LastTransitionTime // it was True
	}
	return append(out, c)
}

// writeStatus writes what was seen, where that is something else than before, and at
// most once a second while it goes on changing. It returns when to look again because
// of that.
func (l *look) writeStatus(ctx context.Context) (time.Duration, error) {
	is := l.status()
	if equality.Semantic.DeepEqual(is, l.set.Status) {
		return 0, nil
	}
	if left := l.Paced(l.set.UID, l.client.Now); left > 0 && is.ObservedGeneration == l.set.Status.ObservedGeneration {
		return left, nil
	}
	set := l.set.DeepCopy()
	set.Status = is
	if err := l.Objects.Status().Update(ctx, set); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("its status: %w", err)
	}
	return 0, nil
}
