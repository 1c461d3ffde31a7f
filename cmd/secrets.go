package cmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/keelson-io/keelson/registry/sops"
	"github.com/keelson-io/keelson/renderer"
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

// remembering tells a veil of the secrets of targets.
type remembering struct {
	next renderer.Renderer
	veil *veil
}

// Render implements [renderer.Renderer].
func (r *remembering) Render(ctx context.Context, request renderer.Request) (*renderer.Target, error) {
	t, err := r.next.Render(ctx, request)
	if err == nil && t.Secrets != nil {
		r.veil.add(t.Secrets)
	}
	return t, err
}

// veil takes decrypted values out of all that a command prints. It is safe for
// concurrent use.
type veil struct {
	mu      sync.Mutex
	secrets []*renderer.Secrets
	lifted  bool // --show-secrets
}

func (v *veil) add(s *renderer.Secrets) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.secrets = append(v.secrets, s)
}

func (v *veil) lift() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lifted = true
}

// known are the secrets that are not to be seen.
func (v *veil) known() []*renderer.Secrets {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lifted {
		return nil
	}
	return slices.Clip(v.secrets)
}

// mask is for what is encoded afterwards: a number that is hidden in the text
// of a JSON document would break it.
func (v *veil) mask(value any) any {
	for _, s := range v.known() {
		value = s.Mask(value)
	}
	return value
}

// veiled is a writer behind a veil. What is written at once is looked at as a
// whole.
type veiled struct {
	to   io.Writer
	veil *veil
}

// Write implements [io.Writer].
func (w veiled) Write(p []byte) (int, error) {
	secrets := w.veil.known()
	if len(secrets) == 0 {
		return w.to.Write(p) //nolint:wrapcheck // it is the same operation
	}
	text := string(p)
	for _, s := range secrets {
		text = s.Redact(text)
	}
	if _, err := io.WriteString(w.to, text); err != nil {
		return 0, fmt.Errorf("write: %w", err)
	}
	return len(p), nil
}

// behind puts what commands print behind a veil.
func (e Env) behind(v *veil) Env {
	columns := e.Columns
	e.Columns = func(w io.Writer) int {
		if hidden, ok := w.(veiled); ok {
			w = hidden.to
		}
		return columns(w)
	}
	e.Out, e.Err = veiled{e.Out, v}, veiled{e.Err, v}
	return e
}
