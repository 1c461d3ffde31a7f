package cmd

import (
	"context"
	"io"
	"os"

	"github.com/keelson-io/keelson/registry/sops"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// ageKeys are where the keys for encrypted meta-config are: where the settings
// say, else where sops has them.
func (a *app) ageKeys() sops.Keys {
	keys := sops.Keys{File: a.ageKeyFile, Env: os.Getenv}
	if dir, err := os.UserConfigDir(); err == nil {
		keys.ConfigDir = dir
	}
	return keys
}

// checkAgeKeys reads the keys once, so that a wrong setting is told before
// anything is done.
func (a *app) checkAgeKeys() error {
	if a.ageKeyFile == "" {
		return nil
	}
	ids, err := a.ageKeys().Identities()
	switch {
	case err != nil:
		return usagef("--age-key-file: %w", err)
	case len(ids) == 0:
		return usagef("--age-key-file: %s holds no key (AGE-SECRET-KEY-1…)", a.ageKeyFile)
	}
	return nil
}

// remembering tells a redactor of what targets hold.
type remembering struct {
	next     renderer.Renderer
	redactor *redact.Redactor
}

// Render implements [renderer.Renderer].
func (r *remembering) Render(ctx context.Context, request renderer.Request) (*renderer.Target, error) {
	t, err := r.next.Render(ctx, request)
	if err == nil {
		r.redactor.Set("target "+t.Hash, "", func() []redact.Value { return t.Hidden() })
	}
	return t, err
}

// behind lets all that commands print pass the redactor.
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
