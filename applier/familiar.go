package applier

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/keelson-io/keelson/differ"
)

// maxFamiliar bounds the kinds of changes that are known of a cluster; each takes some
// tens of bytes.
const maxFamiliar = 4096

// errUnfamiliar says that a write without a dry run was refused. The next plan asks.
var errUnfamiliar = errors.New("the API server refused what it had taken of another object")

// familiar names a kind of change: the resource, the hash of its schema, and which fields
// change, and how, whatever their values. The zero sum names none: of such a change a dry
// run is always asked for, because what it says decides about more than the object.
//
// A dry run can tell three things. A refusal: the write itself is refused, too, nothing is
// changed by it, and the next plan asks. That nothing would change: the write itself changes
// nothing, and says so. What admission adds: that is shown, and decides nothing.
func (p *Prepared) familiar(c *differ.Change) sum {
	m := p.mappings[c.ID]
	if c.Op != differ.OpUpdate || c.HandOver != nil || c.First != nil || len(c.Migrate) > 0 || m == nil {
		return sum{}
	}
	var fields []string
	for i := range c.Fields {
		switch f := &c.Fields[i]; f.Action {
		case differ.ActionSet, differ.ActionRestore, differ.ActionRemove:
			fields = append(fields, string(f.Action)+" "+anyItem(f.Path))
		case differ.ActionKeep:
		default:
			return sum{}
		}
	}
	if len(fields) == 0 {
		return sum{}
	}
	slices.Sort(fields)
	h := sha256.New()
	write(h, m.Resource.String(), p.schemas.Hash(m.GroupVersionKind))
	write(h, slices.Compact(fields)...)
	return sum(h.Sum(nil)[:16])
}

// anyItem is a path without the keys, values and indexes of list items.
func anyItem(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		b.WriteByte(path[i])
		if path[i] == '[' {
			i += closing(path[i:]) - 1
		}
	}
	return b.String()
}

// closing is where the bracket closes with which a text begins. One in quotes is text.
func closing(text string) int {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			quoted = !quoted
		case ']':
			if !quoted {
				return i
			}
		}
	}
	return len(text)
}

// skips reports whether the dry run of a change is left out. That is so where the change is
// all that the plan writes: a refusal of one object holds hooks, waves and deletions up, and
// one that is forbidden ends the plan before any other is written. What was refused before is
// asked for again, even after the kind was learned from another object.
func (c *Cluster) skips(p *Prepared, ch *differ.Change) bool {
	if !c.skipsDryRuns || len(p.want.Target.Hooks) > 0 || !p.writesAlone(ch) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.answers[ch.ID]
	refused := last.dryRun != nil && last.dryRun.Answer == nil && last.hash == ch.Hash
	return !refused && c.familiar[p.familiar(ch)]
}

// writesAlone reports whether a plan writes one object alone.
func (p *Prepared) writesAlone(ch *differ.Change) bool {
	return !slices.ContainsFunc(p.Plan.Changes, func(other differ.Change) bool { return other.ID != ch.ID && other.Op != differ.OpNone })
}

// learn notes that the API server took a change of a kind.
func (c *Cluster) learn(kind sum) {
	if kind == (sum{}) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.familiar) >= maxFamiliar {
		clear(c.familiar)
	}
	c.familiar[kind] = true
}

// unlearn hears that the API server refused a write. If there was no dry run of it, that is
// a reason to plan again, with one. An error that may pass teaches nothing.
func (a *applying) unlearn(c *differ.Change, err error) error {
	if unanswered(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return err
	}
	a.cluster.mu.Lock()
	defer a.cluster.mu.Unlock()
	delete(a.cluster.familiar, a.familiar(c))
	if a.unasked != c.ID {
		return err
	}
	return fmt.Errorf("%w: %w: %w", ErrStale, errUnfamiliar, err)
}
