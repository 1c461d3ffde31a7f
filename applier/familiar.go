package applier

import (
	"errors"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/differ"
)

// maxFamiliar bounds the known kinds of changes of a cluster. Each takes some tens of bytes.
const maxFamiliar = 4096

// errUnfamiliar reports that a write without a dry run was refused. The next plan makes a dry run.
var errUnfamiliar = errors.New("the API server refused fields that it accepted for another object")

// familiar identifies a kind of change: the resource, the hash of its schema, and which fields
// change and how, without their values. With the zero sum a dry run is always made, because its
// answer decides about more than the object.
//
// A dry run has three kinds of answers. A refusal: the write itself is refused, too, changes
// nothing, and the next plan makes a dry run. No change: the write itself changes nothing, and says
// so. Additions by admission: they are shown, and decide nothing.
func (p *Prepared) familiar(c *differ.Change) fingerprint.Sum {
	m := p.mappings[c.ID]
	if c.Op != differ.OpUpdate || c.HandOver != nil || c.First != nil || len(c.Migrate) > 0 || m == nil {
		return fingerprint.Sum{}
	}
	var fields []string
	for i := range c.Fields {
		switch f := &c.Fields[i]; f.Action {
		case differ.ActionSet, differ.ActionRestore, differ.ActionRemove:
			fields = append(fields, string(f.Action)+" "+anyItem(f.Path))
		case differ.ActionKeep:
		default:
			return fingerprint.Sum{}
		}
	}
	if len(fields) == 0 {
		return fingerprint.Sum{}
	}
	slices.Sort(fields)
	h := fingerprint.New(m.Resource.String(), p.schemas.Hash(m.GroupVersionKind))
	h.Add(slices.Compact(fields)...)
	return h.Sum()
}

// anyItem returns a path without the keys, values and indexes of list items.
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

// closing returns the index of the bracket that closes the text's first one. Brackets in quotes are
// text.
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

// skips reports whether the dry run of a change is left out. It is left out only if the plan writes
// nothing else: a refused object blocks hooks, waves and deletions, and a forbidden object ends the
// plan before other writes. A change that was refused before gets a dry run again, even if another
// object made its kind familiar.
func (d *dryRuns) skips(p *Prepared, ch *differ.Change) bool {
	if !d.skip || len(p.want.Target.Hooks) > 0 || !p.writesAlone(ch) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.answers[ch.ID]
	refused := last.dryRun != nil && last.dryRun.Answer == nil && last.hash == ch.Hash
	return !refused && d.familiar[p.familiar(ch)]
}

// writesAlone reports whether a change is the only one of a plan.
func (p *Prepared) writesAlone(ch *differ.Change) bool {
	return !slices.ContainsFunc(p.Plan.Changes, func(other differ.Change) bool { return other.ID != ch.ID && other.Op != differ.OpNone })
}

// learn records that the API server accepted a change of a kind.
func (d *dryRuns) learn(kind fingerprint.Sum) {
	if kind == (fingerprint.Sum{}) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.familiar) >= maxFamiliar {
		clear(d.familiar)
	}
	d.familiar[kind] = true
}

// unlearn drops a kind of which a write was refused.
func (d *dryRuns) unlearn(kind fingerprint.Sum) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.familiar, kind)
}
