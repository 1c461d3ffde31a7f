package applier

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/applier/deletion"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// permitHook applies the danger rules to the deletion of the object that has a hook's name, in its
// current state. An object of the inventory is in the plan, which shows the deletion and must allow
// it, too. Any other object was left by an earlier run of a hook, or is Helm's.
//
// The error is a [*HookError] with the rule that stops the deletion, and the hash by which git can
// approve it.
func (a *applying) permitHook(ctx context.Context, event string, id differ.ID, live *unstructured.Unstructured) (deletion.Permit, error) {
	c, state := a.planned(id)
	if c != nil && c.Op == differ.OpDelete && deletion.OfChange(c).UID() != live.GetUID() {
		return deletion.Permit{}, fmt.Errorf("%w: hook %s: %s was replaced meanwhile", ErrStale, event, id)
	}
	if c == nil || c.Op == differ.OpDelete {
		var err error
		if c, err = a.cluster.judge.deletion(ctx, ObservedObject{ID: id, Live: live.Object}, state, a.policy.Among(a.states)); err != nil {
			return deletion.Permit{}, fmt.Errorf("hook %s: %w", event, err)
		}
	}
	if p, allowed := deletion.OfState(c, live); allowed {
		return p, nil
	}
	return deletion.Permit{}, &HookError{Event: event, ID: id, Message: "the object of this name can't be deleted: " + stopReason(c)}
}

// stopReason returns why a plan keeps an object that a hook would delete.
func stopReason(c *differ.Change) string {
	switch {
	case c.State == differ.StateHeld || c.State == differ.StateDenied:
		why := fmt.Sprintf("its deletion is %s: %s (rule %s)", c.State, c.Because, c.Rule)
		if c.Approvable() {
			why += "; its hash, for an approval: " + c.Hash
		}
		return why
	case c.Because != "":
		return c.Because
	}
	return "the component has it, too"
}

// planned returns the plan's change of an object, and its state; nil: the plan has none.
func (p *Prepared) planned(id differ.ID) (*differ.Change, *differ.State) {
	for i := range p.Plan.Changes {
		if c := &p.Plan.Changes[i]; c.ID == id {
			return c, &p.states[i]
		}
	}
	return nil, nil
}

// hooksHeld reports whether a hook of some events can't be created, because a rule holds or
// denies the deletion of the object that has its name.
func (p *Prepared) hooksHeld(events ...string) bool {
	for _, event := range events {
		for _, h := range hooksOf(p.want.Target, event) {
			c, _ := p.planned(h.id)
			if c != nil && (c.State == differ.StateHeld || c.State == differ.StateDenied) && p.recordedIn(p.record.Hooks, h).State != records.HookSucceeded {
				return true
			}
		}
	}
	return false
}
