package base_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/controllers/workload/base"
)

// Errors that pass by themselves are dropped. Only the others are reported.
func TestLasting(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	denied := apierrors.NewForbidden(pods, "web-a", errors.New("exceeded quota"))
	passing := []error{
		nil, apierrors.NewConflict(pods, "web-a", errors.New("changed")), apierrors.NewAlreadyExists(pods, "web-a"), apierrors.NewNotFound(pods, "web-a"),
		apierrors.NewServerTimeout(pods, "create", 1), apierrors.NewTooManyRequests("busy", 1), apierrors.NewServiceUnavailable("starting"), apierrors.NewTimeoutError("slow", 1),
	}
	for _, err := range passing {
		if err != nil {
			err = fmt.Errorf("create pod: %w", err)
		}
		if left := base.Lasting(err); left != nil {
			t.Errorf("%v", left)
		}
	}
	for _, err := range []error{
		denied, errors.Join(passing[1], denied), errors.Join(errors.Join(denied, passing[2]), passing[3]), fmt.Errorf("0 of 3: %w", denied),
		errors.New("an unknown error"), apierrors.NewInternalError(errors.New("failed calling webhook")),
	} {
		want := strings.Join(slices.DeleteFunc(strings.Split(err.Error(), "\n"), func(line string) bool { return strings.Contains(line, "web-a") && !strings.Contains(line, "quota") }), "\n")
		if left := base.Lasting(err); left == nil || left.Error() != want {
			t.Errorf("%v is left, want %s", left, want)
		}
	}
}

// A conflict is tried again soon. An error beside it is not hidden by it, and backs off, unless a pod
// waits for the next reconcile.
func TestResult(t *testing.T) {
	t.Parallel()
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "web-a", errors.New("changed"))
	denied := errors.New("denied")
	for name, c := range map[string]struct {
		err   error
		after time.Duration
		want  reconcile.Result
		fail  bool
	}{
		"Done":     {nil, time.Minute, reconcile.Result{RequeueAfter: time.Minute}, false},
		"Conflict": {conflict, time.Minute, reconcile.Result{RequeueAfter: time.Second}, false},
		"Both":     {errors.Join(conflict, denied), 0, reconcile.Result{}, true},
		"Wrapped":  {fmt.Errorf("sync: %w", errors.Join(conflict, denied)), 0, reconcile.Result{}, true},
		"Waits":    {denied, time.Minute, reconcile.Result{RequeueAfter: time.Minute}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := base.Result(t.Context(), c.after, c.err)
			if got != c.want || (err != nil) != c.fail {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}
