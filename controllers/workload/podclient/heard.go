package podclient

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// OwnerIndex is a field index of pods by the UID of the workload of a kind that they
// belong to: [ByOwner].
func OwnerIndex(kind string) string { return "keelson." + kind }

// Orphan is in [OwnerIndex] in place of the UID where nobody controls an object that
// some workload has made: it has a revision.
const Orphan = "orphan"

// ByOwner fills [OwnerIndex].
func ByOwner(kind string) client.IndexerFunc {
	return func(o client.Object) []string {
		if owner := ownerOf(o, kind); owner != nil {
			return []string{string(owner.UID)}
		}
		if _, made := o.GetLabels()[revision.Label]; made && metav1.GetControllerOfNoCopy(o) == nil {
			return []string{Orphan}
		}
		return nil
	}
}

// ownerOf is the workload of apps.kruise.io that an object belongs to. Kubernetes' own
// have the same kinds in another group.
func ownerOf(o metav1.Object, kind string) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil || owner.Kind != kind {
		return nil
	}
	if gv, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || gv.Group != v1beta1.GroupVersion.Group {
		return nil
	}
	return owner
}

// Heard tells expectations of each object that the informer has shown, and has its
// workload of a kind looked at; also the one that it had before.
func Heard(kind string, expect *expectations.Expectations) handler.EventHandler {
	saw := func(o client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		expect.Saw(o)
		if owner := ownerOf(o, kind); owner != nil {
			q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}}, gather)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			saw(e.Object, q)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if metav1.GetControllerOfNoCopy(e.ObjectNew) == nil {
				saw(e.ObjectOld, q)
			}
			saw(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			saw(e.Object, q)
		},
	}
}
