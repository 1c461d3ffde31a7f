package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/applier/order"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/applier/span"
	"github.com/keelson-io/keelson/differ"
)

// step is one part of an apply. Steps run in order; the first failure ends the apply.
type step struct {
	name string
	run  func(context.Context) error
	// checkpoint writes the record before the step, which may take long.
	checkpoint bool
}

// do runs the step, as a span of its name.
func (s step) do(ctx context.Context) (err error) {
	ctx, is := span.Start(ctx, s.name)
	defer func() { is.End(err) }()
	return s.run(ctx)
}

// steps returns the steps to the target: hooks before, then waves, each by the rank of the kind.
// Deletions come last, followed by hooks after.
func (a *applying) steps() []step {
	var out []step
	if a.createsInNamespace() {
		out = append(out, step{name: "namespace", run: func(ctx context.Context) error {
			return a.cluster.namespaces.ensure(ctx, a.want.Namespace)
		}})
	}
	before, after := a.events()
	// Helm, too, installs CRDs before the first hook, which may need them.
	late := before == preInstall && len(a.scope.batches) > 0 && a.scope.batches[0].KindRank == order.CRD && !a.scope.batches[0].Removes()
	if !late {
		out = append(out, a.hookSteps(before)...)
	}
	for i, b := range a.scope.batches {
		if !opensWave(a.scope.batches, i) {
			out = append(out, a.batchSteps(b)...)
			continue
		}
		if needed := a.needed(b.Wave); len(needed) > 0 {
			name := fmt.Sprintf("wave %d", b.Wave)
			out = append(out, step{name: "health before " + name, checkpoint: true, run: func(ctx context.Context) error {
				return a.healthy.await(ctx, name, needed)
			}})
		}
		out = append(out, a.batchSteps(b)...)
		if i == 0 && late {
			out = append(out, a.hookSteps(before)...)
		}
	}
	if a.want.Absent {
		return out // hooks after the deletion run when all objects are gone
	}
	if hooks := a.hookSteps(after); len(hooks) > 0 && !anyHeld(a.wanted()) {
		out = append(out, step{name: "health before hooks", checkpoint: true, run: func(ctx context.Context) error {
			return a.healthy.await(ctx, "hook "+after, a.wanted())
		}})
		out = append(out, hooks...)
	}
	return out
}

func (a *applying) batchSteps(b order.Batch) []step {
	out := []step{{name: fmt.Sprintf("wave %d, kind rank %d", b.Wave, b.KindRank), run: func(ctx context.Context) error {
		return a.batch(ctx, b)
	}}}
	if b.KindRank == order.CRD {
		out = append(out, step{name: "establish", run: func(ctx context.Context) error { return a.kinds.await(ctx, b.Changes) }})
	}
	return out
}

func (a *applying) hookSteps(event string) []step {
	if a.scope.held || !a.hooksPending(event) {
		return nil
	}
	return []step{{name: "hooks " + event, checkpoint: true, run: func(ctx context.Context) error { return a.hooks.run(ctx, event) }}}
}

func (a *applying) createsInNamespace() bool {
	created := func(c *differ.Change) bool { return c.Op == differ.OpCreate && c.ID.Namespace == a.want.Namespace }
	return a.hooksPending(a.events()) || slices.ContainsFunc(a.scope.batches, func(b order.Batch) bool { return slices.ContainsFunc(b.Changes, created) })
}

// carryOut runs one step after another. It withdraws the intents of writes that were not sent.
func (a *applying) carryOut(ctx context.Context) error {
	defer a.untried()
	for _, s := range a.steps() {
		if s.checkpoint {
			if err := a.writeFacts(ctx, false); err != nil {
				return err
			}
		}
		if err := s.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// intend records or announces all intents, so that neither a killed process nor the next writer
// loses them. Changes that this pass does not reach cost no write.
func (a *applying) intend(ctx context.Context) error {
	if err := a.cluster.Prepare(ctx); err != nil {
		return err
	}
	if len(a.scope.batches) == 0 {
		return nil
	}
	key, err := a.cluster.clusterName.maskKey(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(key, a.policy.MaskKey) {
		return fmt.Errorf("%w: the key of the record was made meanwhile", ErrStale)
	}
	announced := a.announce(ctx)
	for _, b := range a.scope.batches {
		for _, ch := range b.Changes {
			a.objects.put(a.intended(ch))
		}
	}
	if announced {
		return nil
	}
	now := a.options.Now.UTC()
	rec := a.record.Record
	rec.Objects, rec.IntentsAt, rec.Pin, rec.History = a.objects.list(), &now, a.want.Pin, a.judged(rec.History)
	rec.Unfinished = rec.Unfinished || a.otherTarget() // until it is known what was written
	a.record, err = a.cluster.records.Write(ctx, a.record, rec)
	return stale(err)
}

// intended returns an object as the record is about to have it.
func (a *applying) intended(ch *differ.Change) records.Object {
	r, _ := a.objects.get(ch.ID)
	intent := intentOf(ch.Op)
	switch intent {
	case records.IntentCreate:
		was := r.Former()
		if s := a.state(ch.ID); was == nil && s != nil {
			was = s.Former // as another component recorded it
		}
		r = records.Object{ID: ch.ID, APIVersion: ch.APIVersion, Content: ch.Record, Was: was}
	case records.IntentReplace:
		r = records.Object{ID: ch.ID, APIVersion: ch.APIVersion, Content: ch.Record}
	case records.IntentUpdate:
		if r.Content == nil || r.Intent == records.IntentCreate || r.Intent == records.IntentReplace { // adopted: no applied content is known yet
			r = records.Object{ID: ch.ID, APIVersion: ch.APIVersion, UID: uidOf(ch.Live), Content: ch.Record}
			intent = records.IntentCreate
		}
	case records.IntentDelete:
	}
	r.Intent = intent
	return r
}

// state returns the state of an object; nil: the plan does not have it.
func (p *Prepared) state(id differ.ID) *differ.State {
	i := slices.IndexFunc(p.states, func(s differ.State) bool { return s.ID == id })
	if i < 0 {
		return nil
	}
	return &p.states[i]
}

func intentOf(op differ.Op) records.Intent {
	switch op {
	case differ.OpCreate:
		return records.IntentCreate
	case differ.OpUpdate:
		return records.IntentUpdate
	case differ.OpReplace:
		return records.IntentReplace
	case differ.OpDelete:
		return records.IntentDelete
	case differ.OpNone, differ.OpForget:
	}
	return ""
}

func (a *applying) batch(ctx context.Context, b order.Batch) error {
	var g errgroup.Group
	g.SetLimit(observe.Parallel)
	errs := make([]error, len(b.Changes))
	for i, c := range b.Changes {
		a.objects.send(c.ID)
		g.Go(func() error {
			errs[i] = a.writer.write(ctx, c)
			if errs[i] != nil {
				a.writer.failed(c, errs[i])
			}
			a.cluster.progress(Step{Component: a.want.Component, ID: c.ID, Op: c.Op, Err: errs[i]})
			return nil
		})
	}
	_ = g.Wait() // every error is in errs: all objects of a batch are tried
	return errors.Join(errs...)
}

// untried withdraws the intents of writes that were not sent.
func (a *applying) untried() {
	for i := range a.Plan.Changes {
		if c := &a.Plan.Changes[i]; intentOf(c.Op) != "" {
			a.objects.undoUnsent(c.ID)
		}
	}
}

func uidOf(live map[string]any) string {
	return string((&unstructured.Unstructured{Object: live}).GetUID())
}
