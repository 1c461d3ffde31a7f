// Package cli holds what all commands share: their environment, the global settings, and how
// results, warnings and waits are printed.
//
// Everything that it prints passes the redactor of the environment. It knows no command, no
// fleet repository and no cluster.
package cli

import (
	"cmp"
	"io"
	"log/slog"
	"slices"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Invocation is one run of the program: its environment, its global settings and its log.
// Commands embed a pointer to the one value that a command tree shares.
type Invocation struct {
	Settings
	Env Env
	// Log has what --verbose asks for; without it, the log discards everything.
	Log *slog.Logger
	// Started means that the command line is valid, so that later errors are the command's own.
	Started bool
	closers []func()
}

// OnExit has Close call f, for what ends with the process.
func (inv *Invocation) OnExit(f func()) { inv.closers = append(inv.closers, f) }

// Close calls the functions of OnExit, the last one first.
func (inv *Invocation) Close() {
	for _, f := range slices.Backward(inv.closers) {
		f()
	}
	inv.closers = nil
}

// NewInvocation returns an invocation in an environment. Its output passes the environment's
// redactor. Missing parts of the environment get their defaults.
func NewInvocation(env Env) *Invocation {
	if env.Columns == nil {
		env.Columns = func(io.Writer) int { return 0 }
	}
	if env.SetLog == nil {
		env.SetLog = func(*slog.Logger) {}
	}
	if env.Asks == nil {
		env.Asks = func() bool { return false }
	}
	env.Schemas = cmp.Or(env.Schemas, applier.NewShared())
	if env.Redactor == nil {
		env.Redactor = redact.New()
	}
	return &Invocation{Env: env.behind(), Log: slog.New(slog.DiscardHandler)}
}

// Groups of commands in the help.
const (
	GroupGit     = "git"
	GroupCluster = "cluster"
	GroupLoops   = "loops"
)
