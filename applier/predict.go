package applier

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// answered is the API server's answer to a dry run. It is valid as long as the object and the
// change are the same.
type answered struct {
	op            differ.Op
	version, hash string
	dryRun        *differ.DryRun
}

// Predict makes dry runs of the objects that a plan creates. [Cluster.Plan] has already made those
// of updates.
func (c *Cluster) Predict(ctx context.Context, p *Prepared) error {
	if err := c.predict(ctx, p, differ.OpCreate); err != nil {
		return fmt.Errorf("cluster %s: component %s: %w", c.name, p.want.Component, err)
	}
	p.Plan.NoteApprovals(p.want.Approvals)
	return nil
}

// predict makes dry runs, and compares again with their answers.
func (c *Cluster) predict(ctx context.Context, p *Prepared, op differ.Op) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	asked := false
	for i := range p.Plan.Changes {
		ch, s := &p.Plan.Changes[i], &p.states[i]
		if ch.Op != op || ch.DryRunBody == nil || p.mappings[ch.ID] == nil {
			continue
		}
		if c.remembered(ch) == nil && c.skips(p, ch) {
			p.unasked = ch.ID
			continue
		}
		asked = true
		g.Go(func() error {
			d, err := c.dryRun(gctx, p, ch)
			if op == differ.OpReplace {
				s.ReplacementDryRun = d
			} else {
				s.DryRun = d
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("dry run: %w", err)
	}
	if !asked {
		return nil
	}
	var err error
	if p.Plan, err = differ.Compare(ctx, p.schemas, p.states, p.policy); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	return c.readOwners(ctx, p)
}

// remembered returns the answer to the same dry run; nil: none.
func (c *Cluster) remembered(ch *differ.Change) *differ.DryRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.answers[ch.ID]
	if last.op != ch.Op || last.version != resourceVersionOf(ch.Live) || last.hash != ch.Hash {
		return nil
	}
	return last.dryRun
}

func (c *Cluster) dryRun(ctx context.Context, p *Prepared, ch *differ.Change) (*differ.DryRun, error) {
	var base *unstructured.Unstructured
	if ch.Op == differ.OpUpdate {
		base = &unstructured.Unstructured{Object: ch.Live}
	}
	if last := c.remembered(ch); last != nil {
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
	d := &differ.DryRun{}
	switch {
	case err == nil:
		d.Answer = answer.Object
		if c.skipsDryRuns {
			c.learn(p.familiar(ch))
		}
	case errors.As(err, new(*ForbiddenError)):
		return nil, err
	case apierrors.IsInvalid(err):
		d.Refused = causesOf(err)
	case ch.Op == differ.OpReplace:
		d.Failed = err.Error()
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		return nil, nil // the object, or its namespace, has changed since the plan: the write itself shows it
	case apierrors.ReasonForError(err) == metav1.StatusReasonUnknown:
		return nil, fmt.Errorf("%s: %w", ch.ID, err) // no API server sent this error
	default:
		d.Failed = err.Error()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[ch.ID] = answered{op: ch.Op, version: resourceVersionOf(ch.Live), hash: ch.Hash, dryRun: d}
	return d, nil
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

// forgetAnswers drops answers to dry runs: the API has changed, or their objects were written.
func (c *Cluster) forgetAnswers(ids ...differ.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		delete(c.answers, id)
	}
	if len(ids) == 0 {
		clear(c.answers)
		clear(c.familiar)
	}
}
