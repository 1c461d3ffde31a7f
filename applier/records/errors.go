package records

import (
	"errors"
	"fmt"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// unreadableError reports that a record exists, and has no valid content.
type unreadableError struct{ error }

func (e *unreadableError) Unwrap() error { return e.error }

// missingPartError reports that a record can't be read, because its head names a Secret that does
// not exist.
type missingPartError struct{ name string }

func (e *missingPartError) Error() string {
	return fmt.Sprintf("the Secret %s/%s, a part of the record, is missing", v1alpha1.Namespace, e.name)
}

// Damaged reports whether an error says that a record exists, and has no valid content.
func Damaged(err error) bool {
	return errors.As(err, new(*unreadableError)) || errors.As(err, new(*missingPartError))
}

// TakenOver reports whether an error says that another session has taken a component over, or
// announced an update of it, since this session read its record.
func TakenOver(err error) bool { return errors.As(err, new(*takeoverError)) }
