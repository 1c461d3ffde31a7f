package applier

import (
	"slices"

	"github.com/keelson-io/keelson/applier/order"
	"github.com/keelson-io/keelson/differ"
)

// scope is what one pass of an apply carries out.
type scope struct {
	batches []order.Batch // in order
	// held: hooks are pending and must not run. Only objects that were deleted in the cluster are
	// created again, as they were recorded.
	held bool
	// stop is the error of a failed hook that may not run again yet; nil: none. Nothing is carried
	// out.
	stop error
}

// scopeOf returns what a pass carries out of a plan.
//
// Hooks run for the target as a whole: a migration must not run before a held change. Nor may a hook
// run whose name belongs to an object that must not be deleted.
func scopeOf(p *Prepared, hooks *hookRunner) scope {
	pending := p.hooksPending(p.events())
	if pending && (anyHeld(p.wanted()) || p.hooksHeld(p.events()) || p.want.Absent && p.stopped()) {
		return scope{batches: recreations(p.Plan), held: true}
	}
	if err := hooks.backoff(); err != nil {
		return scope{stop: err}
	}
	return scope{batches: p.reachable()}
}

// ids returns the objects that the pass writes.
func (s scope) ids() []differ.ID {
	var out []differ.ID
	for _, b := range s.batches {
		for _, c := range b.Changes {
			out = append(out, c.ID)
		}
	}
	return out
}

// reachable returns the batches that this pass carries out: all before the first wave whose
// predecessors a danger rule holds.
func (p *Prepared) reachable() []order.Batch {
	list := order.Batches(p.thisPass())
	for i := range list {
		if opensWave(list, i) && anyHeld(p.needed(list[i].Wave)) {
			return list[:i]
		}
	}
	return list
}

// opensWave reports whether a batch is the first of a wave that creates or changes objects.
func opensWave(list []order.Batch, i int) bool {
	return !list[i].Removes() && (i == 0 || list[i-1].Wave != list[i].Wave)
}

// recreations returns the batches that create objects again as they were recorded, while their
// changes are held or denied.
func recreations(plan differ.Plan) []order.Batch {
	var out []order.Batch
	for _, b := range order.Batches(&plan) {
		b.Changes = slices.DeleteFunc(slices.Clone(b.Changes), func(c *differ.Change) bool {
			return c.Op != differ.OpCreate || c.State == differ.StateChanged
		})
		if len(b.Changes) > 0 {
			out = append(out, b)
		}
	}
	return out
}

// thisPass returns the changes that this pass carries out: all but the deletions that it only
// marks.
func (p *Prepared) thisPass() *differ.Plan {
	return &differ.Plan{Changes: slices.DeleteFunc(slices.Clone(p.Plan.Changes), func(ch differ.Change) bool {
		return ch.Op == differ.OpDelete && !p.due(ch.ID)
	})}
}

// stopped reports whether a danger rule kept any change from being applied.
func (p *Prepared) stopped() bool {
	return slices.ContainsFunc(p.Plan.Changes, func(c differ.Change) bool {
		return c.State == differ.StateHeld || c.State == differ.StateDenied
	})
}
