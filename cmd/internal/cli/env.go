package cli

import (
	"io"
	"log/slog"
	"os"
	"os/user"
	"time"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Env is the environment of commands.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	Now      func() time.Time
	// Version is Keelson's version.
	Version string
	// Redactor knows the secrets; Out and Err are written through it. Nil: a new one.
	Redactor *redact.Redactor
	// Columns returns the width of a writer's terminal; 0: it is no terminal. Nil: there is none.
	Columns func(io.Writer) int
	// Asks reports whether a person reads Err and can answer on In. Nil: no.
	Asks func() bool
	// SetLog makes the libraries of the process log through a logger, too. Nil: they keep their
	// logs.
	SetLog func(*slog.Logger)
	// Completion bounds the time of a shell completion; 0: 3 seconds.
	Completion time.Duration
	// Schemas are shared by all connections to clusters. Nil: a new cache.
	Schemas *applier.Shared
}

// behind returns an Env that writes all output through the redactor.
func (e Env) behind() Env {
	columns := e.Columns
	e.Columns = func(w io.Writer) int {
		if hidden, ok := w.(*redact.Writer); ok {
			w = hidden.To
		}
		return columns(w)
	}
	e.Out, e.Err = e.Redactor.Writer(e.Out), e.Redactor.Writer(e.Err)
	return e
}

// CurrentUser returns USER@HOST of this process, as a contact.
func CurrentUser() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil && name != "" {
		name += "@" + host
	}
	return OneLine(name)
}
