package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/differ"
)

// answered is the API server's answer to a dry run. It is valid as long as the object and the
// change are the same.
type answered struct {
	op            differ.Op
	version, hash string
	dryRun        *differ.DryRun
}

// dryRuns makes dry runs of changes, and remembers the API server's answers.
type dryRuns struct {
	// skip: a familiar change needs no dry run.
	skip bool

	mu      sync.Mutex
	answers map[differ.ID]answered
	// familiar are the kinds of changes of which the API server accepted one in a dry run.
	familiar map[fingerprint.Sum]bool
}

func newDryRuns(skip bool) *dryRuns {
	return &dryRuns{skip: skip, answers: map[differ.ID]answered{}, familiar: map[fingerprint.Sum]bool{}}
}

// remembered returns the answer to the same dry run; nil: none.
func (d *dryRuns) remembered(ch *differ.Change) *differ.DryRun {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.answers[ch.ID]
	if last.op != ch.Op || last.version != resourceVersionOf(ch.Live) || last.hash != ch.Hash {
		return nil
	}
	return last.dryRun
}

// ask returns the API server's answer to the dry run of a change; nil: the object, or its namespace,
// has changed since the plan.
func (d *dryRuns) ask(ctx context.Context, p *Prepared, ch *differ.Change) (*differ.DryRun, error) {
	var base *unstructured.Unstructured
	if ch.Op == differ.OpUpdate {
		base = &unstructured.Unstructured{Object: ch.Live}
	}
	if last := d.remembered(ch); last != nil {
		return last, nil
	}
	body := Body(ch.DryRunBody, base)
	if ch.Op == differ.OpReplace {
		body.SetName(ch.ID.Name + "-keelson-dry-run") // the object exists, and is to be created anew
	}
	m := p.mappings[ch.ID]
	answer, err := p.resource(m, ch.ID).Apply(ctx, body.GetName(), body, metav1.ApplyOptions{
		FieldManager: v1alpha1.FieldManager, Force: base != nil, DryRun: []string{metav1.DryRunAll},
	})
	err = p.forbidden(ctx, m, ch.ID, err, verbs(ch)...)
	out := &differ.DryRun{}
	switch {
	case err == nil:
		out.Answer = answer.Object
		if d.skip {
			d.learn(p.familiar(ch))
		}
	case errors.As(err, new(*ForbiddenError)):
		return nil, err
	case apierrors.IsInvalid(err):
		out.Refused = causesOf(err)
	case ch.Op == differ.OpReplace:
		out.Failed = err.Error()
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		return nil, nil // the object, or its namespace, has changed since the plan: the write itself shows it
	case apierrors.ReasonForError(err) == metav1.StatusReasonUnknown:
		return nil, fmt.Errorf("%s: %w", ch.ID, err) // no API server sent this error
	default:
		out.Failed = err.Error()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[ch.ID] = answered{op: ch.Op, version: resourceVersionOf(ch.Live), hash: ch.Hash, dryRun: out}
	return out, nil
}

// causesOf returns the reasons of a refusal. An error without reasons is its own reason.
func causesOf(err error) []differ.Cause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return []differ.Cause{{Message: err.Error()}}
	}
	var out []differ.Cause
	for _, cause := range status.Status().Details.Causes {
		out = append(out, differ.Cause{Field: cause.Field, Type: string(cause.Type), Message: cause.Message})
	}
	return out
}

// forget drops the answers about objects that were written.
func (d *dryRuns) forget(ids ...differ.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		delete(d.answers, id)
	}
}

// reset drops all that was learned, because the API has changed.
func (d *dryRuns) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.answers)
	clear(d.familiar)
}

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
