package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Exit codes of all commands.
const (
	ExitFound   = 1   // for example, validate found problems, or diff found differences
	ExitTrouble = 2   // the command failed, or the answer is unknown
	ExitStopped = 130 // stopped by a signal
)

// ErrFound ends a command with [ExitFound]; the output has shown the reason.
var ErrFound = errors.New("found")

// UsageError is a mistake in the command line.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

func (e *UsageError) Unwrap() error { return e.Err }

// Usagef returns a [*UsageError].
func Usagef(format string, args ...any) error {
	return &UsageError{Err: fmt.Errorf(format, args...)}
}

// Args checks the number of a command's arguments; a wrong number is a usage error.
func Args(names string, least, most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, got []string) error {
		switch {
		case len(got) < least:
			return Usagef("an argument is missing: give %s", names)
		case most >= 0 && len(got) > most && most == 0:
			return Usagef("it takes no arguments, and got %q", got[0])
		case most >= 0 && len(got) > most:
			return Usagef("too many arguments: give %s, and not %q", names, got[most])
		}
		return nil
	}
}
