package cloneset

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// afterRollout is when a reconcile follows the end of an update that leaves free claims: some may fit
// only pods of the revision before, and those are deleted.
const afterRollout = time.Second

// completeUpdates completes started updates, and brings pods into service.
func (l *syncContext) completeUpdates(ctx context.Context, busy map[string]bool) error {
	var open []*entry
	var pods []*corev1.Pod
	for e := range l.roster.unsettled {
		if !busy[e.name] && !e.marked {
			open, pods = append(open, e), append(pods, e.pod)
		}
	}
	settled, err := l.client.SettleAll(ctx, pods, l.RequeueAfter)
	for i, e := range open {
		if settled[i] {
			delete(l.roster.unsettled, e)
		}
	}
	return err
}

// forget deletes unused revisions beyond the history limit.
func (l *syncContext) forget(ctx context.Context) error {
	return l.Revisions.Forget(ctx, l.history, l.set.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool {
		return r.Name == l.current.Name || l.roster.sums.revisions[revision.Hash(r.Name)] > 0
	})
}

// writeStatus writes the observed status, at most once a second while it keeps changing. It
// returns when to reconcile again for a delayed write.
func (l *syncContext) writeStatus(ctx context.Context, failed error) (time.Duration, error) {
	is := l.status(failed)
	if equality.Semantic.DeepEqual(&is, &l.set.Status) {
		return 0, nil
	}
	now := l.set.DeepCopy()
	now.Status = is
	if left, err := l.WriteStatus(ctx, now, l.at, is.ObservedGeneration == l.set.Status.ObservedGeneration); left > 0 || err != nil {
		return left, err
	}
	batch.Tell(l.Events, l.set, l.set.Status.Batches, is.Batches)
	if is.CurrentRevision != l.current.Name && len(l.roster.claims.shares.free) > 0 {
		return afterRollout, nil
	}
	return 0, nil
}
