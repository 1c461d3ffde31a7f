package yamlfile

import (
	"cmp"
	"fmt"
	"strings"
)

// Position is a position in a file of the fleet repository. Line and Column count from 1; 0 means
// the whole file.
type Position struct {
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	// Revision is a tag name if the file was read at another revision than the fleet's, like the
	// files of a component.
	Revision string `json:"revision,omitempty"`
}

// String returns FILE:LINE:COLUMN, with @REVISION after the file if it is set.
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

// Error returns "FILE:LINE:COLUMN: message (hint)".
func (p Problem) Error() string {
	s := p.At.String() + ": " + p.Message
	if p.Hint != "" {
		s += " (" + p.Hint + ")"
	}
	return s
}

// Compare orders problems by position.
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

// Problems is a list of mistakes, and an error if it is not empty.
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

// Err returns nil without problems. A nil Problems in an error interface would not be nil.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}
