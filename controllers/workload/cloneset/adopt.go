package cloneset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
)

// The reasons of events about pods that come and go without being created or deleted.
const (
	reasonAdopted  = "Adopted"
	reasonReleased = "Released"
)

// adopt adopts pods without a controller that match the selector, and releases pods that no
// longer match it, as a ReplicaSet does. It returns the number of writes. After a write, the
// reconcile must wait until the informer has shown the pods.
//
// Only pods that a workload created are adopted: they have their revision in a label. Other pods
// are not even cached.
func (l *syncContext) adopt(ctx context.Context) (int, error) {
	set := l.set
	orphans, err := l.orphans(ctx)
	unselected := l.roster.unselected()
	if err != nil || len(orphans)+len(unselected) == 0 {
		return 0, err
	}
	if len(orphans) > 0 {
		if err := l.checkCurrent(ctx, set); err != nil {
			return 0, err
		}
	}
	wrote := 0
	var errs []error
	write := func(p *corev1.Pod, owner any, reason, text string) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID, "ownerReferences": []any{owner}}})
		if err == nil {
			_, err = l.client.Patch(ctx, p, patch)
		}
		if err != nil {
			errs = append(errs, err)
			return
		}
		wrote++
		l.Events.Eventf(set, p, corev1.EventTypeNormal, reason, "Claiming", text, p.Name)
	}
	for _, p := range orphans {
		write(p, metav1.NewControllerRef(set, v1beta1.GroupVersion.WithKind(kind)), reasonAdopted, "adopted pod %s, which the selector finds")
	}
	for _, p := range unselected {
		write(p, map[string]any{"$patch": "delete", "uid": set.UID}, reasonReleased, "released pod %s, which the selector doesn't find any more")
	}
	return wrote, errors.Join(errs...)
}

// orphans returns the active pods without a controller in the namespace of the set that match
// its selector.
func (l *syncContext) orphans(ctx context.Context) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := l.Objects.List(ctx, &list, client.InNamespace(l.set.Namespace), client.MatchingFields{podclient.OrphanIndex: podclient.Orphan}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("the pods that CloneSet %s/%s may have: %w", l.set.Namespace, l.set.Name, err)
	}
	var out []*corev1.Pod
	for i := range list.Items {
		if p := &list.Items[i]; active(p) && l.selector.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out, nil
}

// checkCurrent returns an error if the CloneSet was deleted or replaced since the informer read it.
// Deletion with orphaned dependents releases the pods, and they must not be adopted again.
func (r *Reconciler) checkCurrent(ctx context.Context, set *v1beta1.CloneSet) error {
	var is v1beta1.CloneSet
	err := r.live.Get(ctx, client.ObjectKeyFromObject(set), &is)
	switch {
	case err != nil:
		return fmt.Errorf("before CloneSet %s/%s adopts pods: %w", set.Namespace, set.Name, err)
	case is.UID != set.UID || is.DeletionTimestamp != nil:
		return apierrors.NewConflict(v1beta1.GroupVersion.WithResource("clonesets").GroupResource(), set.Name, errors.New("it was deleted"))
	}
	return nil
}

// orphan reports whether a pod has no controller.
func orphan(pod client.Object) bool { return metav1.GetControllerOfNoCopy(pod) == nil }

// adopters returns the CloneSets that may adopt a pod without a controller.
func (r *Reconciler) adopters(ctx context.Context, pod client.Object) []reconcile.Request {
	var list v1beta1.CloneSetList
	if err := r.Objects.List(ctx, &list, client.InNamespace(pod.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // a list of the informer fails only when the process ends
	}
	var out []reconcile.Request
	for i := range list.Items {
		s, err := metav1.LabelSelectorAsSelector(list.Items[i].Spec.Selector)
		if err == nil && !s.Empty() && s.Matches(labels.Set(pod.GetLabels())) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}
