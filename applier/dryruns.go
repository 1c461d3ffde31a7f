package applier

import (
	"context"
	"errors"
	"fmt"
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
