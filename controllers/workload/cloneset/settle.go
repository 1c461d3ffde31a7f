package cloneset

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/keelson-io/keelson/controllers/workload/podclient"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/slowstart"
)

// settle completes started updates, and brings pods into service.
func (l *syncContext) settle(ctx context.Context, busy map[string]bool) error {
	var open []*entry
	for e := range l.roster.unsettled {
		if !busy[e.name] && !e.marked {
			open = append(open, e)
		}
	}
	// An error of one pod, such as a broken annotation, must not keep the other pods out of
	// service.
	errs, settled := make([]error, len(open)), make([]bool, len(open))
	_, _ = slowstart.Run(len(open), podclient.AtOnce, func(i int) error {
		var after time.Duration
		settled[i], after, errs[i] = l.client.Settle(ctx, open[i].pod)
		l.RequeueAfter(after)
		return nil
	})
	for i, e := range open {
		if settled[i] {
			delete(l.roster.unsettled, e)
		}
	}
	return errors.Join(errs...)
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
	now := l.status(failed)
	if equality.Semantic.DeepEqual(&now, &l.set.Status) {
		return 0, nil
	}
	if left := l.Paced(l.set.UID, l.at); left > 0 && now.ObservedGeneration == l.set.Status.ObservedGeneration {
		return left, nil
	}
	set := l.set.DeepCopy()
	set.Status = now
	if err := l.Objects.Status().Update(ctx, set); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("the status of CloneSet %s/%s: %w", l.set.Namespace, l.set.Name, err)
	}
	return 0, nil
}
