package base

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/controllers/workload/expectations"
)

// ReasonRefused is the reason for a spec that is not followed.
const ReasonRefused = "SpecRefused"

// Steps are what a reconcile of one kind of workload does in its own way.
type Steps[T client.Object] struct {
	// Forget drops what is kept of a workload that is gone.
	Forget func(types.NamespacedName)
	// Waits reports whether own writes are not seen yet. Nothing can be decided then.
	Waits func(types.UID) bool
	// Check returns why a spec cannot be followed. Refuse shows that in the status.
	Check  func(T) error
	Refuse func(context.Context, T, error) error
	// Work reconciles a workload. It returns when the next reconcile is due without a change; 0 means
	// never.
	Work func(context.Context, T) (time.Duration, error)
}

// Reconcile reads the workload that a request names into set, and takes the steps. A workload that is
// being deleted is left alone: the garbage collector deletes its pods.
func (s Steps[T]) Reconcile(ctx context.Context, objects client.Reader, q reconcile.Request, set T) (reconcile.Result, error) {
	if err := objects.Get(ctx, q.NamespacedName, set); err != nil {
		if apierrors.IsNotFound(err) {
			s.Forget(q.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err) //nolint:wrapcheck // it says what and where
	}
	if set.GetDeletionTimestamp() != nil {
		return reconcile.Result{}, nil
	}
	if s.Waits(set.GetUID()) {
		return reconcile.Result{RequeueAfter: expectations.Patience}, nil
	}
	if err := s.Check(set); err != nil {
		return reconcile.Result{}, s.Refuse(ctx, set, err)
	}
	after, err := s.Work(ctx, set)
	return Result(ctx, after, err)
}

// WriteStatus writes a changed status of a workload, at most once a second while it keeps changing. It
// returns when the write is due; 0: it was written. A status that answers a new spec is written at once.
func (r *Reconciler) WriteStatus(ctx context.Context, now client.Object, at time.Time, sameGeneration bool) (time.Duration, error) {
	if left := r.Paced(now.GetUID(), at); left > 0 && sameGeneration {
		return left, nil
	}
	return 0, r.updateStatus(ctx, now)
}

// updateStatus writes a status. That the workload is gone is no error.
func (r *Reconciler) updateStatus(ctx context.Context, now client.Object) error {
	if err := r.Objects.Status().Update(ctx, now); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("the status of %s %s/%s: %w", r.kind, now.GetNamespace(), now.GetName(), err)
	}
	return nil
}

// WriteRefused writes the status of a workload whose spec is not followed, with an event, unless the
// workload already has it. The message of the event is that of the condition.
func (r *Reconciler) WriteRefused(ctx context.Context, was, now client.Object, message string) error {
	if equality.Semantic.DeepEqual(was, now) {
		return nil
	}
	r.Events.Eventf(was, nil, corev1.EventTypeWarning, ReasonRefused, "Reconciling", "%s", message)
	return r.updateStatus(ctx, now)
}
