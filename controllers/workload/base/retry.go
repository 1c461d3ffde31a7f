package base

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// retryAfter is the delay after an error that passes by itself.
const retryAfter = time.Second

// Result returns what a reconcile returns. After an error that passes by itself, such as a conflict,
// the next reconcile follows soon, without the backoff and the error log of controller-runtime.
// after is when the next reconcile is due without a change; 0 means never. A delay is kept in spite of an
// error: a pod may wait for it.
func Result(ctx context.Context, after time.Duration, err error) (reconcile.Result, error) {
	if err != nil && Lasting(err) == nil {
		log.FromContext(ctx).V(1).Info("trying again", "after", retryAfter, "error", err.Error())
		return reconcile.Result{RequeueAfter: retryAfter}, nil
	}
	if err != nil && after > 0 { // controller-runtime would forget the delay, and come back much later
		log.FromContext(ctx).Error(err, "Reconciler error", "after", after)
		return reconcile.Result{RequeueAfter: after}, nil
	}
	return reconcile.Result{RequeueAfter: after}, err
}

// Lasting returns the parts of an error that do not pass by themselves, such as conflicts do;
// nil if none are left.
func Lasting(err error) error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var left []error
		for _, e := range several.Unwrap() {
			left = append(left, Lasting(e))
		}
		return errors.Join(left...)
	}
	if wrapped := errors.Unwrap(err); wrapped != nil { // a join may be inside
		if Lasting(wrapped) == nil {
			return nil
		}
		return err
	}
	for _, passes := range []func(error) bool{
		apierrors.IsConflict, apierrors.IsAlreadyExists, apierrors.IsNotFound, apierrors.IsTimeout, apierrors.IsServerTimeout, apierrors.IsTooManyRequests, apierrors.IsServiceUnavailable,
		func(err error) bool {
			return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
		},
	} {
		if passes(err) {
			return nil
		}
	}
	return err
}
