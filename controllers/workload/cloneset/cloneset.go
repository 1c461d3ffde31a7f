// Package cloneset runs CloneSets: it creates pods, deletes pods whose loss matters least, and
// moves pods to new revisions, in place if possible.
//
// A reconcile reads the pods from the informer, decides on numbers (decide), chooses pods
// (doomed, moved), and writes. All state is in the objects, so the next reconcile continues
// after a killed process.
package cloneset

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
	"github.com/keelson-io/keelson/controllers/workload/podclient"
)

const (
	kind = "CloneSet"
	// maxPodsPerReconcile bounds how many pods one reconcile creates, deletes or updates, so that the status
	// shows the progress.
	maxPodsPerReconcile = 250
)

// Reconciler reconciles CloneSets.
type Reconciler struct {
	*base.Reconciler
	options base.Options
	now     func() time.Time
	live    client.Reader // reads from the API server
	claims  *podclient.OwnedIndex[*corev1.PersistentVolumeClaim]
	claimed *expectations.Expectations // for claims

	rosters *base.StateByObject[roster]
}

// Add adds the controller of CloneSets to a manager. It returns an error if the client or the
// controller cannot be built.
func Add(_ context.Context, m ctrl.Manager, o base.Options) error {
	h, err := base.New(m, kind, "cloneset-controller", base.NewSpecs(spec), o)
	if err != nil {
		return fmt.Errorf("CloneSets: %w", err)
	}
	r := newReconciler(h, m.GetAPIReader(), o)
	err = h.Watch(m, &v1beta1.CloneSet{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.adopters), builder.WithPredicates(predicate.NewPredicateFuncs(base.Orphan))).
		Watches(&corev1.PersistentVolumeClaim{}, podclient.NewEventHandler(r.claims, r.claimed)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("CloneSets: %w", err)
	}
	return nil
}

func newReconciler(h *base.Reconciler, live client.Reader, o base.Options) *Reconciler {
	return &Reconciler{
		Reconciler: h, live: live, options: o, now: o.Now, claims: podclient.NewOwnedIndex[*corev1.PersistentVolumeClaim](kind), claimed: expectations.New(o.Now),
		rosters: base.NewStateByObject(newRoster),
	}
}

// Reconcile implements [reconcile.Reconciler].
func (r *Reconciler) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	steps := base.Steps[*v1beta1.CloneSet]{
		Forget: r.rosters.Forget, Refuse: r.refuse, Work: r.work,
		Waits: func(of types.UID) bool { return r.Expect.Waits(of) || r.claimed.Waits(of) },
		Check: func(set *v1beta1.CloneSet) error { return check(&set.Spec) },
	}
	return steps.Reconcile(ctx, r.Objects, q, &v1beta1.CloneSet{})
}

// work is one reconcile of a CloneSet. It returns when the next one is due without a change; 0
// means never.
func (r *Reconciler) work(ctx context.Context, set *v1beta1.CloneSet) (time.Duration, error) {
	l, err := r.newSyncContext(ctx, set)
	if err != nil {
		return 0, err
	}
	if wrote, err := l.adopt(ctx); wrote > 0 || err != nil {
		return expectations.Patience, err
	}
	err = l.act(ctx)
	after, statusErr := l.writeStatus(ctx, base.Lasting(err))
	l.RequeueAfter(after)
	return l.After(), errors.Join(err, statusErr)
}

// spec returns what a CloneSet is to be: its spec, and the batches that are released.
func spec(o client.Object) any {
	set, ok := o.(*v1beta1.CloneSet)
	if !ok {
		return nil
	}
	return []any{set.Spec, set.Annotations[v1beta1.AnnotationNextBatch]}
}
