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

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

const (
	// conditionRefused is True if a spec is not followed. CloneSets have a condition of the same
	// name.
	conditionRefused = appsv1.DaemonSetConditionType(v1beta1.CloneSetFailedScale)

	// conditionProgressing exists if a node selector is set, because no number of the status
	// counts the selected nodes. Its reasons are like those of CloneSets.
	conditionProgressing = appsv1.DaemonSetConditionType(v1beta1.CloneSetProgressing)
	reasonUpdated        = "DaemonSetUpdated"
	reasonPartition      = "ProgressPartitionAvailable"
)

// refuse records in the status and an event why a DaemonSet is not reconciled. Its pods stay as
// they are.
func (r *Reconciler) refuse(ctx context.Context, set *v1beta1.DaemonSet, why error) error {
	now := set.DeepCopy()
	now.Status.ObservedGeneration = set.Generation
	c := appsv1.DaemonSetCondition{
		Type: conditionRefused, Status: corev1.ConditionTrue, Reason: base.ReasonRefused, Message: why.Error() + ": nothing is done", LastTransitionTime: metav1.NewTime(r.now()),
	}
	i := slices.IndexFunc(now.Status.Conditions, isRefused)
	switch {
	case i < 0:
		now.Status.Conditions = append(now.Status.Conditions, c)
	case now.Status.Conditions[i].Message != c.Message:
		now.Status.Conditions[i] = c
	}
	return r.WriteRefused(ctx, set, now, c.Message)
}

func isRefused(c appsv1.DaemonSetCondition) bool { return c.Type == conditionRefused }

// status returns the status before the changes of this reconcile. The next reconcile observes
// those changes.
func (l *syncContext) status() v1beta1.DaemonSetStatus {
	s := &l.roster.sums
	n := func(n int) int32 { return int32(n) } //nolint:gosec // of nodes
	return v1beta1.DaemonSetStatus{
		ObservedGeneration: l.set.Generation, UpdateRevision: revision.Hash(l.history.Updated.Name), CollisionCount: l.history.Collisions,
		Conditions: l.conditions(), Batches: l.batch.Status,
		DesiredNumberScheduled: n(s.running), CurrentNumberScheduled: n(s.filled), UpdatedNumberScheduled: n(s.updated), NumberMisscheduled: n(s.misscheduled),
		NumberReady: n(s.ready), NumberAvailable: n(s.available), NumberUnavailable: n(s.running - s.available),
	}
}

// conditions returns the earlier conditions with their changes.
func (l *syncContext) conditions() []appsv1.DaemonSetCondition {
	out := slices.DeleteFunc(slices.Clone(l.set.Status.Conditions), func(c appsv1.DaemonSetCondition) bool {
		return isRefused(c) || c.Type == conditionProgressing // the spec is followed now, and Progressing is computed anew
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
		c.LastTransitionTime = l.set.Status.Conditions[i].LastTransitionTime // the condition is always True
	}
	return append(out, c)
}

// writeStatus writes the status if it differs, at most once a second while it keeps changing. It
// returns when to reconcile again for a delayed write.
func (l *syncContext) writeStatus(ctx context.Context) (time.Duration, error) {
	is := l.status()
	if equality.Semantic.DeepEqual(&is, &l.set.Status) {
		return 0, nil
	}
	now := l.set.DeepCopy()
	now.Status = is
	if left, err := l.WriteStatus(ctx, now, l.client.Now, is.ObservedGeneration == l.set.Status.ObservedGeneration); left > 0 || err != nil {
		return left, err
	}
	batch.Tell(l.Events, l.set, l.set.Status.Batches, is.Batches)
	return 0, nil
}
