package cloneset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/keelson-io/keelson/controllers/workload/podclient"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/slowstart"
)

// settle brings to their end the updates that were begun, and pods into service.
func (l *look) settle(ctx context.Context, busy map[string]bool) error {
	var pods []*corev1.Pod
	for i, p := range l.pods {
		if !busy[p.Name] && !l.members[i].marked {
			pods = append(pods, p)
		}
	}
	pods = l.client.Unsettled(pods)
	// All are asked, whatever befalls one: an annotation that somebody broke on one pod
	// must not keep the others out of service.
	errs := make([]error, len(pods))
	_, _ = slowstart.Run(len(pods), podclient.AtOnce, func(i int) error {
		after, err := l.client.Settle(ctx, pods[i])
		l.again(after)
		errs[i] = err
		return nil
	})
	return errors.Join(errs...)
}

// forget deletes revisions that no pod has, beyond those that are kept.
func (l *look) forget(ctx context.Context) error {
	return l.revisions.Forget(ctx, l.history, l.set.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool {
		return r.Name == l.current.Name || slices.ContainsFunc(l.pods, func(p *corev1.Pod) bool { return revision.Has(p, r.Name) })
	})
}

// writeStatus writes what was seen, at most once a second while it goes on changing,
// and returns when to look again because of that.
func (l *look) writeStatus(ctx context.Context, failed error) (time.Duration, error) {
	now := l.status(failed)
	if equality.Semantic.DeepEqual(&now, &l.set.Status) {
		return 0, nil
	}
	l.mu.Lock()
	since := l.at.Sub(l.statuses[l.set.UID])
	l.mu.Unlock()
	if since < statusEvery && now.ObservedGeneration == l.set.Status.ObservedGeneration {
		return statusEvery - since, nil
	}
	set := l.set.DeepCopy()
	set.Status = now
	err := l.objects.Status().Update(ctx, set)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("the status of CloneSet %s/%s: %w", l.set.Namespace, l.set.Name, err)
	}
	l.mu.Lock()
	l.statuses[l.set.UID] = l.at
	l.mu.Unlock()
	return 0, nil
}
