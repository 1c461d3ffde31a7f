package cmd

import (
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/planning"
	"github.com/keelson-io/keelson/differ"
)

// stepPrinter prints the steps of an apply, one a line. Steps may come from
// several goroutines.
type stepPrinter struct {
	out   io.Writer
	paint cli.Painter

	mu        sync.Mutex
	component string
	restored  map[differ.ID]bool
	unchanged int
	held      map[string]bool // printed lines
}

// begin starts the output of a plan, and prints its held and denied changes.
func (s *stepPrinter) begin(p *planning.Planned) {
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
	for _, c := range planning.Stopped(p.Plan) {
		for _, line := range reasons(&c) {
			if !s.held[line] {
				s.held[line] = true
				fmt.Fprintln(s.out, "  "+s.paint.Paint(cli.Yellow, line))
			}
		}
	}
}

// reasons returns why a change is held or denied, with a line for each field.
func reasons(c *differ.Change) []string {
	head := c.State.String() + " " + c.ID.String()
	var out []string
	if c.Because != "" || c.Rule != "" {
		out = append(out, cli.OneLine(head+": "+because(c.Rule, c.Because)+fix(c.Fix)))
	}
	for _, f := range c.Fields {
		if f.Action == differ.ActionHold || f.Action == differ.ActionDeny {
			out = append(out, cli.OneLine(head+" "+f.Path+": "+because(f.Rule, f.Because)+fix(f.Fix)))
		}
	}
	if out == nil {
		out = []string{cli.OneLine(head)}
	}
	if c.Approvable() {
		out = append(out, cli.OneLine(head+": to approve: hash "+c.Hash))
		for _, missed := range c.Missed {
			out = append(out, cli.OneLine(head+": "+missed))
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

// fix returns what to do instead of what a danger rule stops or warns of, as a further sentence.
func fix(instead string) string {
	if instead == "" {
		return ""
	}
	return ". Instead: " + instead
}

// step prints one finished write.
func (s *stepPrinter) step(step applier.Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	did, look := "configured", cli.Plain
	switch {
	case step.Err != nil && step.Op == differ.OpDelete && step.Hook != "":
		did, look = "stays: "+step.Err.Error(), cli.Yellow
	case step.Err != nil:
		did, look = "not written", cli.Red
	case step.Op == differ.OpCreate:
		did, look = "created", cli.Green
	case step.Op == differ.OpDelete:
		did, look = "deleted", cli.Red
	case s.restored[step.ID]:
		did, look = "restored", cli.Cyan
	}
	if step.Hook != "" {
		did = "hook " + step.Hook + " " + did
	}
	fmt.Fprintln(s.out, "  "+cli.OneLine(step.ID.String())+" "+s.paint.Paint(look, did))
}
