package cmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/keelson-io/keelson/registry"
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
	// most bounds the values of all targets together, in bytes; 0: they are not bounded.
	most int

	mu     sync.Mutex
	hidden map[string]bool // hashes of targets
	bytes  int
}

// Render implements [renderer.Renderer].
func (r *remembering) Render(ctx context.Context, request renderer.Request) (*renderer.Target, error) {
	t, err := r.next.Render(ctx, request)
	if err != nil {
		return t, err
	}
	if r.most > 0 && !r.fits(t) {
		return nil, &renderer.Error{
			Component: request.Version.Component, Version: request.Version.Name,
			At:      registry.Position{File: "components/" + request.Version.Component + "/template"},
			Message: fmt.Sprintf("the Secrets of this change hold more than %d KiB, which a preview does not hide", r.most>>10),
		}
	}
	r.redactor.Set("target "+t.Hash, "", func() []redact.Value { return t.Hidden() })
	return t, nil
}

// fits counts the values of a target, once, and reports whether all are within the bound.
func (r *remembering) fits(t *renderer.Target) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hidden[t.Hash] {
		return r.bytes <= r.most
	}
	if r.hidden == nil {
		r.hidden = map[string]bool{}
	}
	r.hidden[t.Hash] = true
	for _, v := range t.Hidden() {
		r.bytes += v.Len()
	}
	return r.bytes <= r.most
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
