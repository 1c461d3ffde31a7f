package statefulset

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

// refuse records in the status and an event why a StatefulSet is not reconciled. Its pods stay as
// they are.
func (r *Reconciler) refuse(ctx context.Context, set *v1beta1.StatefulSet, why error) error {
	now := set.DeepCopy()
	now.Status.ObservedGeneration = set.Generation
	c := appsv1.StatefulSetCondition{
		Type: v1beta1.StatefulSetFailedUpdatePod, Status: corev1.ConditionTrue, Reason: base.ReasonRefused, Message: why.Error() + ": nothing is done",
		LastTransitionTime: metav1.NewTime(r.now()),
	}
	now.Status.Conditions = withCondition(set.Status.Conditions, c)
	return r.WriteRefused(ctx, set, now, c.Message)
}

// withCondition returns conditions with one that is True. It keeps the time of an earlier one.
func withCondition(was []appsv1.StatefulSetCondition, c appsv1.StatefulSetCondition) []appsv1.StatefulSetCondition {
	out := slices.Clone(was)
	i := slices.IndexFunc(out, func(o appsv1.StatefulSetCondition) bool { return o.Type == c.Type })
	if i < 0 {
		return append(out, c)
	}
	if out[i].Status == c.Status {
		c.LastTransitionTime = out[i].LastTransitionTime
	}
	out[i] = c
	return out
}

// writeStatus writes the observed status, at most once a second while it keeps changing. It returns
// when to reconcile again for a delayed write.
func (l *syncContext) writeStatus(ctx context.Context) (time.Duration, error) {
	is := l.status()
	if equality.Semantic.DeepEqual(&is, &l.set.Status) {
		return 0, nil
	}
	now := l.set.DeepCopy()
	now.Status = is
	if left, err := l.WriteStatus(ctx, now, l.at, is.ObservedGeneration == l.set.Status.ObservedGeneration); left > 0 || err != nil {
		return left, err
	}
	batch.Tell(l.Events, l.set, l.set.Status.Batches, is.Batches)
	return 0, nil
}

// status returns the status with what this reconcile has created, deleted and updated in place. So a
// client that sees such a pod does not read a status without it.
func (l *syncContext) status() v1beta1.StatefulSetStatus {
	n := l.roster.counts.with(l.changed)
	is := v1beta1.StatefulSetStatus{
		ObservedGeneration: l.set.Generation, Replicas: n.replicas, ReadyReplicas: n.ready, AvailableReplicas: n.available,
		CurrentReplicas: n.current, UpdatedReplicas: n.updated, UpdatedReadyReplicas: n.updatedReady, UpdatedAvailableReplicas: n.updatedAvailable,
		CurrentRevision: l.current.Name, UpdateRevision: l.updated.Name, CollisionCount: l.history.Collisions,
		LabelSelector: metav1.FormatLabelSelector(l.set.Spec.Selector), Conditions: l.conditions(), Batches: l.batch.Status,
	}
	// With a partition all wanted pods have to be there: otherwise those in it would lose their revision
	// while they are gone.
	whole := int(n.replicas) == l.want.ordinals.Count() && n.replicas > 0
	if n.updated == n.replicas && n.ready == n.replicas && (whole || l.want.partition == 0) {
		is.CurrentRevision, is.CurrentReplicas = is.UpdateRevision, is.UpdatedReplicas
	}
	for i := range l.set.Spec.VolumeClaimTemplates {
		c := v1beta1.VolumeClaimStatus{VolumeClaimName: l.set.Spec.VolumeClaimTemplates[i].Name}
		if i < len(l.roster.claims) {
			c.CompatibleReplicas, c.CompatibleReadyReplicas = l.roster.claims[i].compatible, l.roster.claims[i].sized
		}
		is.VolumeClaims = append(is.VolumeClaims, c)
	}
	return is
}

// with returns the counts with some changes.
func (c counts) with(o counts) counts {
	return counts{
		replicas: c.replicas + o.replicas, ready: c.ready + o.ready, available: c.available + o.available, current: c.current + o.current,
		updated: c.updated + o.updated, updatedReady: c.updatedReady + o.updatedReady, updatedAvailable: c.updatedAvailable + o.updatedAvailable,
	}
}

// conditions returns the earlier conditions with their changes.
func (l *syncContext) conditions() []appsv1.StatefulSetCondition {
	out := slices.Clone(l.set.Status.Conditions)
	for _, c := range []struct {
		kind appsv1.StatefulSetConditionType
		what string
		err  error
	}{
		{v1beta1.StatefulSetFailedCreatePod, "create", base.Lasting(l.failedCreate)},
		{v1beta1.StatefulSetFailedUpdatePod, "update", base.Lasting(l.failedUpdate)},
	} {
		if c.err == nil {
			out = slices.DeleteFunc(out, func(o appsv1.StatefulSetCondition) bool { return o.Type == c.kind })
			continue
		}
		out = withCondition(out, appsv1.StatefulSetCondition{
			Type: c.kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(l.at),
			Message: "StatefulPodControl failed to " + c.what + " Pod error: " + c.err.Error(),
		})
	}
	return out
}
