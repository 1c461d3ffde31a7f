package registry

import (
	"cmp"
	"fmt"
	"strings"
)

// Position is a place in a file of the fleet repository. Line and Column count
// from 1; 0 means the whole file.
type Position struct {
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	// Revision is set when the file was read at another revision than the
	// fleet's, as a component's are: a tag name.
	Revision string `json:"revision,omitempty"`
}

// String is FILE:LINE:COLUMN, with @REVISION behind the file where one is set.
func (p Position) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Revision != "" {
		b.WriteString("@" + p.Revision)
	}
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, ":%d", p.Column)
		}
	}
	return b.String()
}

// Problem is one mistake in the fleet repository.
//
//nolint:errname // it is data first, and an error where one is wanted
type Problem struct {
	At Position `json:"at"`
	// Message says what is wrong.
	Message string `json:"message"`
	// Hint says what to do next; may be empty.
	Hint string `json:"hint,omitempty"`
}

// Error is "FILE:LINE:COLUMN: message (hint)".
func (p Problem) Error() string {
	s := p.At.String() + ": " + p.Message
	if p.Hint != "" {
		s += " (" + p.Hint + ")"
	}
	return s
}

// Compare orders problems by where they stand.
func (p Problem) Compare(q Problem) int {
	return cmp.Or(
		cmp.Compare(p.At.File, q.At.File),
		cmp.Compare(p.At.Revision, q.At.Revision),
		cmp.Compare(p.At.Line, q.At.Line),
		cmp.Compare(p.At.Column, q.At.Column),
		cmp.Compare(p.Message, q.Message),
		cmp.Compare(p.Hint, q.Hint),
	)
}

// Problems is a list of mistakes; it is an error when it is not empty.
//
//nolint:errname // it is data first, and an error where one is wanted
type Problems []Problem

// Error joins the problems, one a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Err is nil without problems. Returning a nil Problems as an error would not
// be nil.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}
