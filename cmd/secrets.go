package cmd

import (
	"context"
	"os"
	"sync"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/registry/sops"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// ageKeys returns where to find the keys for encrypted meta-config: the file in the settings, else
// the places that sops uses.
func (a *app) ageKeys() sops.Keys {
	keys := sops.Keys{File: a.AgeKeyFile, Env: os.Getenv}
	if dir, err := os.UserConfigDir(); err == nil {
		keys.ConfigDir = dir
	}
	return keys
}

// checkAgeKeys reads the keys once, so that a wrong setting is reported before any work.
func (a *app) checkAgeKeys() error {
	if a.AgeKeyFile == "" {
		return nil
	}
	ids, err := a.ageKeys().Identities()
	switch {
	case err != nil:
		return cli.Usagef("--age-key-file: %w", err)
	case len(ids) == 0:
		return cli.Usagef("--age-key-file: %s holds no key (AGE-SECRET-KEY-1…)", a.AgeKeyFile)
	}
	return nil
}

// remembering registers the secrets of rendered targets with a redactor.
type remembering struct {
	next     renderer.Renderer
	redactor *redact.Redactor
	bound    *secretBound // nil: no bound
}

// Render implements [renderer.Renderer].
func (r *remembering) Render(ctx context.Context, request renderer.Request) (*renderer.Target, error) {
	t, err := r.next.Render(ctx, request)
	if err != nil {
		return t, err
	}
	if r.bound != nil {
		if err := r.bound.add(t.Hidden()); err != nil {
			return nil, err
		}
	}
	r.redactor.Set("target "+t.Hash, "", func() []redact.Value { return t.Hidden() })
	return t, nil
}

// secretBound bounds the distinct values of Secrets, in bytes, that the preview of one proposal
// hides.
type secretBound struct {
	mu    sync.Mutex
	seen  map[redact.Value]bool
	bytes int
}

// add counts new values. It returns [forge.ErrTooManySecrets] above the bound. That error ends the
// whole preview: as a problem of one delivery, it would hide the other changes of that delivery.
func (b *secretBound) add(values []redact.Value) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range values {
		if !b.seen[v] {
			b.seen[v] = true
			b.bytes += v.Len()
		}
	}
	if b.bytes > untrustedSecrets {
		return forge.ErrTooManySecrets
	}
	return nil
}
