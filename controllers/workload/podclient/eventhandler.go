package podclient

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// OrphanIndex is a field index of pods that a workload created and that have no controller:
// [Orphans]. A revision label shows that a workload created a pod. All are under the value
// [Orphan].
const (
	OrphanIndex = "keelson.orphan"
	Orphan      = "true"
)

// Orphans is the indexer of [OrphanIndex]. It returns [Orphan] or nothing.
func Orphans(o client.Object) []string {
	if _, made := o.GetLabels()[revision.Label]; made && metav1.GetControllerOfNoCopy(o) == nil {
		return []string{Orphan}
	}
	return nil
}

// queue is the work queue of a controller.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// NewEventHandler returns an event handler that updates known, then expect, and then enqueues the owner of
// the object. The index comes first: a reconcile that finds a write seen must also find the object.
func NewEventHandler[T client.Object](known *OwnedIndex[T], expect *expectations.Expectations) handler.EventHandler {
	heard := func(o client.Object, gone bool, q queue) {
		owner := ownerOf(o, known.kind)
		if is, ok := o.(T); ok && owner != nil {
			if gone {
				known.onDeleted(owner.UID, is)
			} else {
				known.onSeen(owner.UID, is)
			}
		}
		expect.Saw(o)
		if owner != nil {
			q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}}, Gather)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { heard(e.Object, false, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			was, is := ownerOf(e.ObjectOld, known.kind), ownerOf(e.ObjectNew, known.kind)
			// It was released, or it was deleted and created again while the watch had a gap.
			if was != nil && (is == nil || is.UID != was.UID || e.ObjectNew.GetUID() != e.ObjectOld.GetUID()) {
				heard(e.ObjectOld, true, q)
			}
			heard(e.ObjectNew, false, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { heard(e.Object, true, q) },
	}
}
