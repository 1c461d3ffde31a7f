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
)

// ErrNoKey is wrapped by the [Error] of a render that needs a file to be
// decrypted for which there is no key.
var ErrNoKey = errors.New("there is no key")

// Keys are the age identities that decrypt meta-config. They are asked for
// whenever a file is opened: a key that is added needs no restart.
type Keys interface {
	Identities() ([]age.Identity, error)
	// Where says where they were looked for.
	Where() string
}

var _ Keys = sops.Keys{}

// Unsealing is a [Renderer] that decrypts meta-config in front of another one,
// and sees to it that nothing of it is in what comes back but in the objects
// themselves: errors and warnings are redacted, a Target's Hash is keyed, and
// an object that shows a decrypted value elsewhere than in a Secret is warned
// about. It belongs behind a [Cache], whose keys then are of encrypted text,
// and in the parent of worker processes: a worker has no key.
//
// Each file is decrypted once, and kept in memory only.
type Unsealing struct {
	next Renderer
	keys Keys

	mu sync.Mutex
	// Two generations of opened files by hash: when the young are many, the old
	// ones that nobody asked for since are forgotten.
	young, old map[string]*sops.Opened
}

// keptFiles is how many opened files a generation has.
const keptFiles = 4096

// NewUnsealing returns an Unsealing in front of next.
func NewUnsealing(next Renderer, keys Keys) *Unsealing {
	return &Unsealing{next: next, keys: keys, young: map[string]*sops.Opened{}}
}

var _ Renderer = (*Unsealing)(nil)

// Render implements [Renderer].
func (u *Unsealing) Render(ctx context.Context, r Request) (*Target, error) {
	if r.Version == nil || len(r.Values.Seals()) == 0 {
		return u.next.Render(ctx, r)
	}
	var salts []byte
	values, secrets, err := r.Values.Open(func(s registry.Seal) ([]sops.Leaf, error) {
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
		p, _ := errors.AsType[registry.Problem](err)
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

// open decrypts a file, or remembers what it was.
func (u *Unsealing) open(s registry.Seal) (*sops.Opened, error) {
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

// failed says why a file can't be decrypted. Keys that are missing may come,
// so that is transient; a file that is broken is mended in git.
func (u *Unsealing) failed(v *registry.Version, s registry.Seal, cause error) *Error {
	at := registry.Position{File: s.File}
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

// redactError takes decrypted values out of an error. Of its cause only that
// the context ended is kept: the rest would tell the same again.
func (s *Secrets) redactError(v *registry.Version, err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = newError(v, chartPosition(v, "Chart.yaml", 0), err.Error(), nil)
		e.Transient = true // as of every error that does not say that it lasts
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

// guard looks for decrypted values where they are seen.
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
		shown.look(o)
	}
	out.Exposed = shown.list()
	mac := hmac.New(sha256.New, salts)
	mac.Write([]byte(t.Hash))
	out.Hash = hex.EncodeToString(mac.Sum(nil))
	return &out, nil
}
