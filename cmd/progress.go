package cmd

import (
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// stepPrinter prints the steps of an apply, one a line. Steps may come from
// several goroutines.
type stepPrinter struct {
	out   io.Writer
	paint painter

	mu        sync.Mutex
	component string
	restored  map[differ.ID]bool
	unchanged int
	held      map[string]bool // printed lines
}

// begin starts the output of a plan, and prints its held and denied changes.
func (s *stepPrinter) begin(p *planned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.component != p.Component {
		s.component, s.held = p.Component, map[string]bool{}
	}
	s.restored, s.unchanged = map[differ.ID]bool{}, 0
	for i := range p.Plan.Changes {
		c := &p.Plan.Changes[i]
		s.restored[c.ID] = slices.ContainsFunc(c.Fields, func(f differ.Field) bool { return f.Action == differ.ActionRestore })
		if c.State == differ.StateSynced {
			s.unchanged++
		}
	}
	for _, c := range stopped(p.Plan) {
		for _, line := range reasons(&c) {
			if !s.held[line] {
				s.held[line] = true
				fmt.Fprintln(s.out, "  "+s.paint.paint(yellow, line))
			}
		}
	}
}

// reasons returns why a change is held or denied, with a line for each field.
func reasons(c *differ.Change) []string {
	head := c.State.String() + " " + c.ID.String()
	var out []string
	if c.Because != "" || c.Rule != "" {
		out = append(out, oneLine(head+": "+because(c.Rule, c.Because)))
	}
	for _, f := range c.Fields {
		if f.Action == differ.ActionHold || f.Action == differ.ActionDeny {
			out = append(out, oneLine(head+" "+f.Path+": "+because(f.Rule, f.Because)))
		}
	}
	if out == nil {
		out = []string{oneLine(head)}
	}
	if c.Approvable() {
		out = append(out, oneLine(head+": to approve: hash "+c.Hash))
		for _, missed := range c.Missed {
			out = append(out, oneLine(head+": "+missed))
		}
	}
	return out
}

func because(rule, why string) string {
	if rule == "" {
		return why
	}
	return "rule " + rule + ": " + why
}

// step prints one finished write.
func (s *stepPrinter) step(step applier.Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	did, look := "configured", plain
	switch {
	case step.Err != nil && step.Op == differ.OpDelete && step.Hook != "":
		did, look = "stays: "+step.Err.Error(), yellow
	case step.Err != nil:
		did, look = "not written", red
	case step.Op == differ.OpCreate:
		did, look = "created", green
	case step.Op == differ.OpDelete:
		did, look = "deleted", red
	case s.restored[step.ID]:
		did, look = "restored", cyan
	}
	if step.Hook != "" {
		did = "hook " + step.Hook + " " + did
	}
	fmt.Fprintln(s.out, "  "+oneLine(step.ID.String())+" "+s.paint.paint(look, did))
}

// progress shows a wait: on a terminal in one line that it rewrites, elsewhere with a line for each
// change.
type progress struct {
	err     io.Writer
	columns int
	last    string
}

func newProgress(a *app) *progress {
	return &progress{err: a.env.Err, columns: a.env.Columns(a.env.Err)}
}

func (p *progress) print(text string) {
	text = oneLine(text)
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

// clear removes the line.
func (p *progress) clear() {
	if p.columns > 0 && p.last != "" {
		fmt.Fprint(p.err, "\r\x1b[K")
	}
}
