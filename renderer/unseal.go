package renderer

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"

	"filippo.io/age"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/sops"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// ErrNoKey is wrapped by the [Error] of a render that must decrypt a file for which there is no
// key.
var ErrNoKey = errors.New("there is no key")

// Keys are the age identities that decrypt meta-config. They are read each time a file is opened,
// so a new key needs no restart.
type Keys interface {
	Identities() ([]age.Identity, error)
	// Where describes where the keys were searched for.
	Where() string
}

var _ Keys = sops.Keys{}

// Unsealing is a [Renderer] that decrypts meta-config in front of another one. Decrypted values
// appear only in the objects of its results: errors and warnings are redacted, and a Target's Hash
// is keyed. It warns about an object that shows a decrypted value outside of a Secret. It belongs
// behind a [Cache], whose keys are then of encrypted text, and in the parent of worker processes: a
// worker has no key.
//
// Each file is decrypted once, and kept in memory only.
type Unsealing struct {
	next Renderer
	keys Keys

	mu sync.Mutex
	// Two generations of opened files by hash: when the young one is full, old files that were not
	// used since are forgotten.
	young, old map[string]*sops.Opened
}

// keptFiles is the number of opened files in a generation.
const keptFiles = 4096

// NewUnsealing returns an Unsealing in front of next.
func NewUnsealing(next Renderer, keys Keys) *Unsealing {
	return &Unsealing{next: next, keys: keys, young: map[string]*sops.Opened{}}
}

var _ Renderer = (*Unsealing)(nil)

// Render implements [Renderer].
func (u *Unsealing) Render(ctx context.Context, r Request) (*Target, error) {
	if r.Version == nil || len(r.Values.EncryptedFiles()) == 0 {
		return u.next.Render(ctx, r)
	}
	var salts []byte
	values, secrets, err := r.Values.Open(func(s registry.EncryptedFile) ([]sops.Leaf, error) {
		opened, err := u.open(s)
		if err != nil {
			return nil, u.failed(r.Version, s, err)
		}
		salts = append(salts, opened.Salt[:]...)
		return opened.Leaves, nil
	})
	if err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			return nil, e
		}
		p, _ := errors.AsType[yamlfile.Problem](err)
		return nil, newError(r.Version, p.At, p.Message, nil)
	}
	r.Values = values
	hidden := newSecrets(secrets)
	t, err := u.next.Render(ctx, r)
	if err != nil {
		return nil, hidden.redactError(r.Version, err)
	}
	return hidden.guard(r.Version, t, salts)
}

// open decrypts a file, or returns it from memory.
func (u *Unsealing) open(s registry.EncryptedFile) (*sops.Opened, error) {
	u.mu.Lock()
	opened, ok := u.young[s.Hash]
	if !ok {
		opened, ok = u.old[s.Hash]
	}
	u.mu.Unlock()
	if !ok {
		file, err := sops.Parse(s.Data)
		if err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		identities, err := u.keys.Identities()
		if err != nil {
			return nil, fmt.Errorf("no keys: %w", err)
		}
		if opened, err = file.Decrypt(identities); err != nil {
			return nil, fmt.Errorf("decrypt: %w", err)
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.young) >= keptFiles {
		u.old, u.young = u.young, map[string]*sops.Opened{}
	}
	u.young[s.Hash] = opened
	return opened, nil
}

// failed explains why a file can't be decrypted. A missing key may be added later, so that error is
// transient. A broken file must be repaired in git.
func (u *Unsealing) failed(v *registry.Version, s registry.EncryptedFile, cause error) *Error {
	at := yamlfile.Position{File: s.File}
	broken, ok := errors.AsType[*sops.Error](cause)
	if !ok {
		e := newError(v, at, "it can't be decrypted: "+cause.Error(), ErrNoKey)
		e.Transient = true
		return e
	}
	at.Line, at.Column = broken.Line, broken.Column
	hint := broken.Hint
	if broken.NoKey {
		hint = u.keys.Where()
	}
	message := broken.Message
	if hint != "" {
		message += " (" + hint + ")"
	}
	e := newError(v, at, message, nil)
	if broken.NoKey {
		e.Transient, e.Err = true, ErrNoKey
	}
	return e
}

// redactError removes decrypted values from an error. It keeps of the cause only that the context
// ended: the rest may hold the values again.
func (s *Secrets) redactError(v *registry.Version, err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = newError(v, chartPosition(v, "Chart.yaml", 0), err.Error(), nil)
		e.Transient = true // as every error that is not known to last
	}
	out := *e
	out.Message, out.Err = s.seen.Text(e.Message), nil
	out.violations = slices.Clone(e.violations)
	for i := range out.violations { // a cache makes the message anew for each cluster
		out.violations[i].Message = s.seen.Text(out.violations[i].Message)
	}
	for _, ended := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, ended) {
			out.Err = ended
		}
	}
	return &out
}

// guard redacts the warnings, and finds decrypted values that objects show.
func (s *Secrets) guard(v *registry.Version, t *Target, salts []byte) (*Target, error) {
	out := *t
	out.Secrets = s
	out.Warnings = make([]string, len(t.Warnings))
	for i, w := range t.Warnings {
		out.Warnings[i] = s.seen.Text(w)
	}
	shown := exposures{secrets: s}
	for _, o := range slices.Concat(t.Objects, t.Hooks) {
		if message := s.checkName(o.Content); message != "" {
			return nil, newError(v, o.Source, message, nil)
		}
		shown.search(o)
	}
	out.Exposed = shown.list()
	mac := hmac.New(sha256.New, salts)
	mac.Write([]byte(t.Hash))
	out.Hash = hex.EncodeToString(mac.Sum(nil))
	return &out, nil
}
