// Package statefulset runs StatefulSets of apps.kruise.io: pods with stable names and claims of their
// own, which are created, deleted and updated in the order of their ordinals, or in parallel.
//
// A reconcile reads the pods from the informer, decides on them (decide), and writes. All state is in
// the objects, so the next reconcile continues after a killed process.
package statefulset

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/ordinal"
)

const (
	kind = "StatefulSet"
	// maxPodsPerReconcile bounds how many pods one reconcile creates, deletes or updates, so that the
	// status shows the progress.
	maxPodsPerReconcile = 250
)

// Reconciler reconciles StatefulSets.
type Reconciler struct {
	*base.Reconciler
	options base.Options
	now     func() time.Time
	live    client.Reader // reads from the API server
	claims  *claimChanges

	rosters *base.StateByObject[roster]
}

// Add adds the controller of StatefulSets to a manager. It returns an error if the client or the
// controller cannot be built.
func Add(_ context.Context, m ctrl.Manager, o base.Options) error {
	h, err := base.New(m, kind, "statefulset-controller", base.NewSpecs(spec), o)
	if err != nil {
		return fmt.Errorf("StatefulSets: %w", err)
	}
	r := newReconciler(h, m.GetAPIReader(), o)
	err = h.Watch(m, &v1beta1.StatefulSet{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.adopters), builder.WithPredicates(predicate.NewPredicateFuncs(base.Orphan))).
		Watches(&corev1.PersistentVolumeClaim{}, r.claims.eventHandler(h.Objects)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("StatefulSets: %w", err)
	}
	return nil
}

func newReconciler(h *base.Reconciler, live client.Reader, o base.Options) *Reconciler {
	return &Reconciler{
		Reconciler: h, live: live, options: o, now: o.Now, claims: newClaimChanges(o.Now), rosters: base.NewStateByObject(newRoster),
	}
}

// adopters returns the StatefulSets that may adopt a pod without a controller.
func (r *Reconciler) adopters(ctx context.Context, pod client.Object) []reconcile.Request {
	var list v1beta1.StatefulSetList
	if err := r.Objects.List(ctx, &list, client.InNamespace(pod.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // a list of the informer fails only when the process ends
	}
	var out []reconcile.Request
	for i := range list.Items {
		set := &list.Items[i]
		if _, named := ordinal.Of(set.Name, pod.GetName()); named && base.Selects(set.Spec.Selector, pod) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(set)})
		}
	}
	return out
}

// Reconcile implements [reconcile.Reconciler].
func (r *Reconciler) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	steps := base.Steps[*v1beta1.StatefulSet]{
		Forget: func(name types.NamespacedName) {
			r.rosters.Forget(name)
			r.claims.take(name)
		},
		Waits:  func(of types.UID) bool { return r.Expect.Waits(of) || r.claims.expect.Waits(of) },
		Check:  func(set *v1beta1.StatefulSet) error { return check(&set.Spec) },
		Refuse: r.refuse, Work: r.work,
	}
	return steps.Reconcile(ctx, r.Objects, q, &v1beta1.StatefulSet{})
}

// work is one reconcile of a StatefulSet. It returns when the next one is due without a change; 0
// means never.
func (r *Reconciler) work(ctx context.Context, set *v1beta1.StatefulSet) (time.Duration, error) {
	l, err := r.newSyncContext(ctx, set)
	if err != nil {
		return 0, err
	}
	if wrote, err := l.adopt(ctx); wrote > 0 || err != nil {
		return expectations.Patience, err
	}
	err = l.act(ctx)
	after, statusErr := l.writeStatus(ctx)
	l.RequeueAfter(after)
	return l.After(), errors.Join(err, statusErr)
}

// spec returns what a StatefulSet is to be: its spec, and the batches that are released.
func spec(o client.Object) any {
	set, ok := o.(*v1beta1.StatefulSet)
	if !ok {
		return nil
	}
	return []any{set.Spec, set.Annotations[v1beta1.AnnotationNextBatch]}
}
