package differ

import (
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// decide applies the three-way table of docs/concepts/three-way-diff.md and the danger rules to one
// field that is not settled. It is not ok if the field needs nothing.
//
// Rules prevent changes, so a rule is applied only if target and live differ. On a create a danger
// is shown, but not held: add-ons need such fields, and the pull request was the review. A rule
// that denies counts there, too.
func (c *comparison) decide(w *row, table *threeWay) (Field, bool) {
	f := Field{Path: w.path.String(), Recorded: w.r.value, Target: w.t.value, Live: w.l.value, at: w.path, item: max(w.gone, w.came)}
	r, found := c.ruleFor(w)
	if found && r.effect() == v1alpha1.EffectKeep && w.l.present && !r.inside {
		f.Action, f.Rule, f.Because = ActionKeep, r.Name, r.Because
	} else {
		f.Action, f.Because = table.action(w)
		if found && guard(r, &f, c.change.Approved) && alone(r, w) {
			c.wait(w)
		}
	}
	c.change.warnOf(c.rules.fired, f)
	switch f.Action {
	case ActionKeep:
		c.kept.Insert(w.path)
	case ActionRemove:
		c.removed.Insert(w.whole())
	case ActionSet, ActionRestore, ActionRelease, ActionHold, ActionDeny, ActionAdopt:
	}
	if f.Action != ActionAdopt && stateOf(f.Action) == StateChanged && !c.waiting.Has(w.path) {
		c.moved.Insert(w.path)
		c.fixed = c.fixed || c.cannotUpdate(w)
		if f.Action != ActionRemove {
			c.differing = append(c.differing, *w)
		}
	}
	if (f.Action == ActionKeep || f.Action == ActionRelease) && !w.t.present && table.ownerOf(w) != ownerUnread {
		// The new record lacks the field. If Keelson still owned the field, the next apply would
		// remove it without being shown.
		c.letGo = c.letGo || c.who.applied(w.path)
	}
	if w.flagged && f.Because == "" {
		f.Because = "keys of the list repeat or are missing: it is compared as a whole"
	}
	return f, f.Action != 0
}

func (c *comparison) ruleFor(w *row) (finding, bool) {
	c.rules.fired = c.rules.fired[:0]
	if w.same(w.t, w.l) {
		return finding{}, false
	}
	r, found := c.rules.find(event(w), w)
	defaulted := c.defaulted(w)
	if defaulted {
		c.rules.fired = c.rules.fired[:0]
	}
	if !found || c.live == nil && r.Effect != v1alpha1.EffectDeny {
		return finding{}, false
	}
	if defaulted && (r.effect() != v1alpha1.EffectKeep || r.inside) {
		return finding{}, false // keeping the live value is right in any case
	}
	return r, true
}

// defaulted reports whether the live value is the API server's completion of the target: git did
// not change the field, and live only adds struct fields. This is no danger. Without a record, only
// this check recognises the normal form. If the field were held, no StatefulSet could be adopted,
// or finished after a crash: the API server fills in its claim templates.
func (c *comparison) defaulted(w *row) bool {
	return (c.rebuilt || !w.r.present || w.same(w.r, w.t)) && w.completed()
}

// guard applies a danger rule to the action from the table, and reports whether the rule changed
// the action. An approved change is not held.
func guard(r finding, f *Field, approved bool) bool {
	if f.Action == 0 || f.Action == ActionKeep || f.Action == ActionRelease {
		return false
	}
	action := ActionHold
	switch r.effect() {
	case v1alpha1.EffectAllow:
		return false
	case v1alpha1.EffectKeep:
		if !r.inside {
			return false // there is no live value
		}
		// A part of a value that changes as a whole can't be kept alone.
	case v1alpha1.EffectHold:
	default: // deny, or an effect that this version does not know
		action = ActionDeny
	}
	f.Rule, f.Because = r.Name, r.because()
	if action == ActionHold && approved {
		f.Because = becauseApproved + f.Because
		return false
	}
	f.Action, f.Fix = action, r.Fix
	return true
}

const becauseApproved = "approved in git, though "

// alone reports whether a field waits while the rest of its object is applied. A field of a list
// item that comes or goes as a whole can't wait alone. The API server would refuse the item without
// the field, or parts of the item would stay.
func alone(r finding, w *row) bool {
	if r.Effect != v1alpha1.EffectHold || r.Scope != v1alpha1.ScopeField {
		return false
	}
	if w.gone > 0 {
		return r.pattern.matches(w.path[:w.gone])
	}
	return !w.fresh
}

// wait leaves a field out of all requests, and undoes what the table noted for its removal.
func (d *decisions) wait(w *row) {
	d.waiting.Insert(w.path)
	whole := w.whole()
	d.dropped = d.dropped.Difference(fieldpath.NewSet(whole))
	d.taken = d.taken.Difference(fieldpath.NewSet(whole))
}

func event(w *row) v1alpha1.Event {
	switch {
	case !w.l.present:
		return v1alpha1.OnAdd
	case !w.t.present:
		return v1alpha1.OnRemove
	}
	return v1alpha1.OnChange
}
