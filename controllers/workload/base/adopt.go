package base

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/controllers/workload/podclient"
)

// The reasons of events about pods that come and go without being created or deleted.
const (
	reasonAdopted  = "Adopted"
	reasonReleased = "Released"
)

// Adopter is a workload that adopts pods without a controller, and releases pods that are not its
// own, as a ReplicaSet does.
//
// Only pods that a workload created are adopted: they have their revision in a label. Other pods
// are not even cached.
type Adopter struct {
	*Reconciler
	Set    client.Object
	Kind   schema.GroupVersionKind
	Client podclient.Client
	// Live reads from the API server.
	Live client.Reader
	// Owns reports whether a pod is one of the workload, apart from its controller.
	Owns func(*corev1.Pod) bool
}

// Adopt adopts the active pods without a controller that the workload owns, and releases others. It
// returns the number of writes. After a write, the reconcile must wait until the informer has shown
// the pods.
func (a Adopter) Adopt(ctx context.Context, released []*corev1.Pod) (int, error) {
	orphans, err := a.orphans(ctx)
	if err != nil || len(orphans)+len(released) == 0 {
		return 0, err
	}
	if len(orphans) > 0 {
		if err := CheckCurrent(ctx, a.Live, a.Kind, a.Set); err != nil {
			return 0, err
		}
	}
	wrote := 0
	var errs []error
	write := func(p *corev1.Pod, owner any, reason, text string) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID, "ownerReferences": []any{owner}}})
		if err == nil {
			_, err = a.Client.Patch(ctx, p, patch)
		}
		if err != nil {
			errs = append(errs, err)
			return
		}
		wrote++
		a.Events.Eventf(a.Set, p, corev1.EventTypeNormal, reason, "Claiming", text, p.Name)
	}
	for _, p := range orphans {
		write(p, metav1.NewControllerRef(a.Set, a.Kind), reasonAdopted, "adopted pod %s, which the selector finds")
	}
	for _, p := range released {
		write(p, map[string]any{"$patch": "delete", "uid": a.Set.GetUID()}, reasonReleased, "released pod %s, which the selector doesn't find any more")
	}
	return wrote, errors.Join(errs...)
}

// orphans returns the active pods without a controller that the workload owns.
func (a Adopter) orphans(ctx context.Context) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := a.Objects.List(ctx, &list, client.InNamespace(a.Set.GetNamespace()), client.MatchingFields{podclient.OrphanIndex: podclient.Orphan}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("the pods that %s %s may have: %w", a.Kind.Kind, client.ObjectKeyFromObject(a.Set), err)
	}
	var out []*corev1.Pod
	for i := range list.Items {
		if p := &list.Items[i]; podclient.Active(p) && a.Owns(p) {
			out = append(out, p)
		}
	}
	return out, nil
}

// CheckCurrent returns an error if a workload was deleted or replaced since the informer read it.
// Deletion with orphaned dependents releases the pods, and they must not be adopted again. live reads
// from the API server.
func CheckCurrent(ctx context.Context, live client.Reader, kind schema.GroupVersionKind, set client.Object) error {
	is := &metav1.PartialObjectMetadata{}
	is.SetGroupVersionKind(kind)
	err := live.Get(ctx, client.ObjectKeyFromObject(set), is)
	switch {
	case err != nil:
		return fmt.Errorf("before %s %s adopts anything: %w", kind.Kind, client.ObjectKeyFromObject(set), err)
	case is.UID != set.GetUID() || is.DeletionTimestamp != nil:
		return apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, set.GetName(), errors.New("it was deleted"))
	}
	return nil
}

// Orphan reports whether a pod has no controller.
func Orphan(pod client.Object) bool { return metav1.GetControllerOfNoCopy(pod) == nil }

// Selects reports whether a selector finds a pod. An invalid or empty selector finds none.
func Selects(selector *metav1.LabelSelector, pod metav1.Object) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && !s.Empty() && s.Matches(labels.Set(pod.GetLabels()))
}
