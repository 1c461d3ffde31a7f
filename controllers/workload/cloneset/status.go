package cloneset

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
)

// Reasons of the condition Progressing, in the order of their checks.
const (
	reasonAvailable = "CloneSetAvailable"
	reasonPaused    = "CloneSetPaused"
	reasonPartition = "ProgressPartitionAvailable"
	reasonDeadline  = "ProgressDeadlineExceeded"
	reasonUpdated   = "CloneSetUpdated"
)

// refuse records in the status and an event why a CloneSet is not reconciled. Its pods stay as
// they are.
func (r *Reconciler) refuse(ctx context.Context, set *v1beta1.CloneSet, why error) error {
	now := set.DeepCopy()
	now.Status.ObservedGeneration = set.Generation
	c := v1beta1.CloneSetCondition{
		Type: v1beta1.CloneSetFailedScale, Status: corev1.ConditionTrue, Reason: base.ReasonRefused, Message: why.Error() + ": nothing is done",
		LastTransitionTime: metav1.NewTime(r.now()), LastUpdateTime: metav1.NewTime(r.now()),
	}
	i := slices.IndexFunc(now.Status.Conditions, func(o v1beta1.CloneSetCondition) bool { return o.Type == c.Type })
	switch {
	case i < 0:
		now.Status.Conditions = append(now.Status.Conditions, c)
	case now.Status.Conditions[i].Message != c.Message:
		now.Status.Conditions[i] = c
	}
	return r.WriteRefused(ctx, set, now, c.Message)
}

// status returns the status with what this reconcile has created, deleted and updated in place. So a
// client that sees such a pod does not read a status without it.
func (l *syncContext) status(failed error) v1beta1.CloneSetStatus {
	was, all, renewed := l.set.Status, l.roster.sums.all.with(l.changed), l.roster.sums.renewed.with(l.changedRenewed)
	is := v1beta1.CloneSetStatus{
		Replicas: all.replicas, ReadyReplicas: all.ready, AvailableReplicas: all.available,
		UpdatedReplicas: renewed.replicas, UpdatedReadyReplicas: renewed.ready, UpdatedAvailableReplicas: renewed.available,
		ObservedGeneration: l.set.Generation, UpdateRevision: l.updated.Name, CurrentRevision: l.current.Name, CollisionCount: l.history.Collisions,
		ExpectedUpdatedReplicas: int32(l.want.replicas - l.want.partition), //nolint:gosec // both were int32
		LabelSelector:           metav1.FormatLabelSelector(l.set.Spec.Selector),
		Batches:                 l.batch.Status,
	}
	// When all wanted pods have the update revision, that revision is the current one.
	if is.UpdatedReplicas == is.Replicas && int(is.Replicas) == l.want.replicas {
		is.CurrentRevision = is.UpdateRevision
	}
	is.Conditions = l.conditions(was.Conditions, is, failed)
	return is
}

// conditions returns the earlier conditions with their changes.
func (l *syncContext) conditions(was []v1beta1.CloneSetCondition, is v1beta1.CloneSetStatus, failed error) []v1beta1.CloneSetCondition {
	deadline, has := deadlineOf(&l.set.Spec)
	out := slices.DeleteFunc(slices.Clone(was), func(c v1beta1.CloneSetCondition) bool {
		return c.Type == v1beta1.CloneSetProgressing && !has || c.Type == v1beta1.CloneSetFailedScale && failed == nil
	})
	set := func(c v1beta1.CloneSetCondition) {
		c.LastTransitionTime, c.LastUpdateTime = metav1.NewTime(l.at), metav1.NewTime(l.at)
		i := slices.IndexFunc(out, func(o v1beta1.CloneSetCondition) bool { return o.Type == c.Type })
		if i < 0 {
			out = append(out, c)
			return
		}
		if o := out[i]; o.Status == c.Status {
			c.LastTransitionTime = o.LastTransitionTime
			if o.Reason == c.Reason && !l.progressed(is) {
				c.LastUpdateTime = o.LastUpdateTime
			}
		}
		out[i] = c
	}
	if failed != nil {
		set(v1beta1.CloneSetCondition{Type: v1beta1.CloneSetFailedScale, Status: corev1.ConditionTrue, Reason: "Failed", Message: failed.Error()})
	}
	if has {
		status, reason, message := l.progress(out, is, deadline)
		set(v1beta1.CloneSetCondition{Type: v1beta1.CloneSetProgressing, Status: status, Reason: reason, Message: message})
	}
	return out
}

// progressed reports whether more pods are updated, ready or available than before, or the
// update revision changed.
func (l *syncContext) progressed(is v1beta1.CloneSetStatus) bool {
	was := l.set.Status
	return is.UpdateRevision != was.UpdateRevision || is.UpdatedReplicas > was.UpdatedReplicas || is.UpdatedReadyReplicas > was.UpdatedReadyReplicas ||
		is.UpdatedAvailableReplicas > was.UpdatedAvailableReplicas
}

// deadlineOf returns how long a rollout may be without progress, if it has a deadline. The highest
// number means none, as in a Deployment.
func deadlineOf(s *v1beta1.CloneSetSpec) (time.Duration, bool) {
	if d := s.ProgressDeadlineSeconds; d != nil && *d != math.MaxInt32 {
		return time.Duration(*d) * time.Second, true
	}
	return 0, false
}

// progress returns the condition Progressing: KRUISE.md has the order of its checks.
func (l *syncContext) progress(conditions []v1beta1.CloneSetCondition, is v1beta1.CloneSetStatus, deadline time.Duration) (corev1.ConditionStatus, string, string) {
	replicas := int32(l.want.replicas) //nolint:gosec // it was one
	switch {
	case is.Replicas == replicas && is.UpdatedAvailableReplicas == replicas, l.want.onDelete && is.Replicas == replicas && is.AvailableReplicas == replicas:
		return corev1.ConditionTrue, reasonAvailable, "CloneSet is available"
	case l.want.paused:
		return corev1.ConditionTrue, reasonPaused, "CloneSet is paused"
	case l.want.partition > 0 && is.Replicas == replicas && is.AvailableReplicas == replicas && is.UpdatedAvailableReplicas == is.ExpectedUpdatedReplicas:
		return corev1.ConditionTrue, reasonPartition, "CloneSet has been paused due to partition ready"
	}
	i := slices.IndexFunc(conditions, func(c v1beta1.CloneSetCondition) bool { return c.Type == v1beta1.CloneSetProgressing })
	if i < 0 || l.progressed(is) || conditions[i].Reason == reasonAvailable || conditions[i].Reason == reasonPaused || conditions[i].Reason == reasonPartition {
		l.RequeueAfter(deadline)
		return corev1.ConditionTrue, reasonUpdated, "CloneSet is progressing"
	}
	since := conditions[i].LastUpdateTime
	if left := since.Add(deadline).Sub(l.at); left > 0 && conditions[i].Reason != reasonDeadline {
		l.RequeueAfter(left)
		return corev1.ConditionTrue, reasonUpdated, "CloneSet is progressing"
	}
	return corev1.ConditionFalse, reasonDeadline, fmt.Sprintf("CloneSet revision %s has timed out progressing", is.UpdateRevision)
}
