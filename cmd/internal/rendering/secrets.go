package rendering

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

// AgeKeys returns where to find the keys for encrypted meta-config: the file in the settings, else
// the places that sops uses.
func AgeKeys(file string) sops.Keys {
	keys := sops.Keys{File: file, Env: os.Getenv}
	if dir, err := os.UserConfigDir(); err == nil {
		keys.ConfigDir = dir
	}
	return keys
}

// CheckAgeKeys reads the keys once, so that a wrong setting is reported before any work.
func CheckAgeKeys(file string) error {
	if file == "" {
		return nil
	}
	ids, err := AgeKeys(file).Identities()
	switch {
	case err != nil:
		return cli.Usagef("--age-key-file: %w", err)
	case len(ids) == 0:
		return cli.Usagef("--age-key-file: %s holds no key (AGE-SECRET-KEY-1…)", file)
	}
	return nil
}

// Redacting registers the secrets of rendered targets with a redactor.
type Redacting struct {
	Next     renderer.Renderer
	Redactor *redact.Redactor
	Bound    *SecretBound // nil: no bound
}

// Render implements [renderer.Renderer].
func (r *Redacting) Render(ctx context.Context, request renderer.Request) (*renderer.Target, error) {
	t, err := r.Next.Render(ctx, request)
	if err != nil {
		return t, err
	}
	if r.Bound != nil {
		if err := r.Bound.add(t.Hidden()); err != nil {
			return nil, err
		}
	}
	r.Redactor.Set("target "+t.Hash, "", func() []redact.Value { return t.Hidden() })
	return t, nil
}

// SecretBound bounds the distinct values of Secrets, in bytes, that the preview of one proposal
// hides.
type SecretBound struct {
	mu    sync.Mutex
	Seen  map[redact.Value]bool
	bytes int
}

// add counts new values. It returns [forge.ErrTooManySecrets] above the bound. That error ends the
// whole preview: as a problem of one delivery, it would hide the other changes of that delivery.
func (b *SecretBound) add(values []redact.Value) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range values {
		if !b.Seen[v] {
			b.Seen[v] = true
			b.bytes += v.Len()
		}
	}
	if b.bytes > untrustedSecrets {
		return forge.ErrTooManySecrets
	}
	return nil
}

const (
	// untrustedSecrets bounds the values of Secrets, in bytes, that one preview of a proposal
	// hides. Their forms take up to 100 times as much memory until the preview is written.
	untrustedSecrets = 512 << 10
	// UntrustedEffort bounds how many lengths the redactor tries at one place of the text. The
	// search for values with a common start would take minutes.
	UntrustedEffort = 256
)
