package cli

import (
	"fmt"
	"io"
)

// Progress shows a wait: on a terminal in one line that it rewrites, elsewhere with a line for each
// change.
type Progress struct {
	err     io.Writer
	columns int
	last    string
}

// NewProgress returns a progress on Err.
func (inv *Invocation) NewProgress() *Progress {
	return &Progress{err: inv.Env.Err, columns: inv.Env.Columns(inv.Env.Err)}
}

// Print shows what is waited for, unless it is shown already.
func (p *Progress) Print(text string) {
	text = OneLine(text)
	if text == p.last {
		return
	}
	p.last = text
	if p.columns > 0 {
		fmt.Fprint(p.err, "\r\x1b[K"+cut(text, p.columns-1))
		return
	}
	fmt.Fprintln(p.err, text)
}

// Clear removes the line.
func (p *Progress) Clear() {
	if p.columns > 0 && p.last != "" {
		fmt.Fprint(p.err, "\r\x1b[K")
	}
}

// OnTerminal reports whether the wait is shown in one line that is rewritten.
func (p *Progress) OnTerminal() bool { return p.columns > 0 }
