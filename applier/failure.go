package applier

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/keelson-io/keelson/applier/records"
)

// ErrStale reports that an object changed after the plan was made. No change of the object was
// overwritten: plan again.
var ErrStale = errors.New("the object changed meanwhile")

// TerminatingError reports that a namespace is being deleted, so nothing can be created in it. The
// error is temporary.
type TerminatingError struct{ Namespace string }

func (e *TerminatingError) Error() string {
	return fmt.Sprintf("Namespace %s is being deleted; what belongs there is created when it is gone", e.Namespace)
}

// Refused reports whether an API server understood a request and will not do it. A retry fails
// until the object, a webhook or rights change. With several errors, each must be a refusal.
func Refused(err error) bool {
	if many, ok := errors.AsType[joined](err); ok {
		return !slices.ContainsFunc(many.Unwrap(), func(one error) bool { return !Refused(one) })
	}
	if errors.As(err, new(*TerminatingError)) || errors.Is(err, ErrStale) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false
	}
	switch statusOf(err) {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// joined is the error that [errors.Join] makes, or fmt.Errorf with several errors.
type joined interface {
	error
	Unwrap() []error
}

// RetryAfter returns how long an API server asked to wait before the next request; 0: it did not.
func RetryAfter(err error) time.Duration {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	if !ok {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// statusOf returns the HTTP status of the API server's answer; 0: there was none.
func statusOf(err error) int32 {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0
	}
	return status.Status().Code
}

// unanswered reports whether a failed write may have taken effect: there was no answer, or a server
// error, which may occur after the write. Too many requests (429) are refused before.
func unanswered(err error) bool {
	code := statusOf(err)
	return code == 0 || code >= http.StatusInternalServerError
}

// stale adds [ErrStale] to an error that says that another writer was first.
func stale(err error) error {
	if records.TakenOver(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%w: %w", ErrStale, err)
	}
	return err
}
