package differ

import (
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// decide applies the three-way table of DESIGN.md and the danger rules to one field that is not
// settled. It is not ok if the field needs nothing.
//
// Rules prevent changes, so a rule is applied only if target and live differ. On a create a danger
// is shown, but not held: add-ons need such fields, and the pull request was the review. A rule
// that denies counts there, too.
func (c *comparison) decide(w *row) (Field, bool) {
	f := Field{Path: w.path.String(), Recorded: w.r.value, Target: w.t.value, Live: w.l.value, at: w.path, item: max(w.gone, w.came)}
	r, found := c.ruleFor(w)
	if found && r.effect() == v1alpha1.EffectKeep && w.l.present && !r.inside {
		f.Action, f.Rule, f.Because = ActionKeep, r.Name, r.Because
	} else {
		f.Action, f.Because = c.table(w)
		if found && c.guard(r, &f) && alone(r, w) {
			c.wait(w)
		}
	}
	c.warnOf(c.fired, f)
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
	if (f.Action == ActionKeep || f.Action == ActionRelease) && !w.t.present && c.ownerOf(w) != ownerUnread {
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
	c.fired = c.fired[:0]
	if w.same(w.t, w.l) {
		return finding{}, false
	}
	r, found := c.find(event(w), w)
	defaulted := c.defaulted(w)
	if defaulted {
		c.fired = c.fired[:0]
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
// the action.
func (c *comparison) guard(r finding, f *Field) bool {
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
	if action == ActionHold && c.change.Approved {
		f.Because = becauseApproved + f.Because
		return false
	}
	f.Action = action
	return true
}

const becauseApproved = "approved in git, though "

// hold returns the action to wait for an approval in git, or the given action if git approves.
func (c *comparison) hold(otherwise Action, because string) (Action, string) {
	if c.change.Approved {
		return otherwise, becauseApproved + because
	}
	return ActionHold, because
}

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
func (c *comparison) wait(w *row) {
	c.waiting.Insert(w.path)
	whole := w.whole()
	c.dropped = c.dropped.Difference(fieldpath.NewSet(whole))
	c.taken = c.taken.Difference(fieldpath.NewSet(whole))
}

// table returns the action for the three values and the field's owner, without danger rules; 0 for
// no action.
func (c *comparison) table(w *row) (Action, string) {
	switch {
	case w.t.present && w.same(w.t, w.l):
		return c.alreadyThere(w)
	case c.newToKeelson && !c.policy.Adopt && !c.change.Approved:
		return ActionHold, "the object exists and Keelson never applied it; adopt: true in component.yaml takes it over"
	case w.t.present && !w.l.present && (w.r.present || w.removed) && c.live != nil && c.policy.Drift == v1alpha1.DriftReport && !c.normal(w, w.r):
		return ActionKeep, "it was removed, and drift is only reported"
	case w.t.present && w.r.present && w.same(w.r, w.t):
		return c.drifted(w)
	case w.t.present && w.r.present && (w.same(w.r, w.l) || c.normal(w, w.r)):
		return ActionSet, ""
	case w.t.present && w.r.present && w.l.present:
		return c.wantedAndDrifted(w)
	case w.t.present:
		return c.newOrTakeover(w)
	case !w.l.present:
		c.change.RecordStale = true // the field is gone already: update the record
		return 0, ""
	}
	return c.noLongerWanted(w)
}

// alreadyThere decides if the live value is the wanted one, and the record differs. If Keelson owns
// the field, only the record must change. Otherwise an apply takes ownership: without it, Keelson
// could never remove the field.
func (c *comparison) alreadyThere(w *row) (Action, string) {
	if c.ownerOf(w) != ownerUnread && c.who.applied(w.path) && !c.newToKeelson {
		return 0, ""
	}
	return ActionAdopt, ""
}

// drifted decides if another client changed or removed a field that Keelson applied.
func (c *comparison) drifted(w *row) (Action, string) {
	report := c.policy.Drift == v1alpha1.DriftReport
	if !w.l.present {
		return ActionRestore, ""
	}
	switch c.ownerOf(w) {
	case ownerController:
		return ActionKeep, becauseController
	case ownerPerson:
		if report {
			return ActionKeep, becauseReport
		}
		return ActionRestore, "a person changed it"
	case ownerBorrowed:
		if report {
			return ActionKeep, becauseBorrowed + ", and drift is only reported"
		}
		return ActionRestore, becauseBorrowed
	case ownerUnknown:
		return c.hold(ActionRestore, "an unknown client set it: find the client, or put the value into git")
	case ownerNone:
		if report {
			return ActionKeep, "what Keelson applied was removed, and drift is only reported"
		}
	case ownerUnread, ownerOurs:
	}
	return ActionRestore, ""
}

const (
	becauseController = "a controller of the cluster set it"
	becauseReport     = "a person set it, and drift is only reported"
	becauseBorrowed   = "it was set under the name of a controller that is not known to set it (a danger rule with effect keep lets it stay)"
)

// wantedAndDrifted decides if git changed a value, and another client set a third value in the
// meantime.
func (c *comparison) wantedAndDrifted(w *row) (Action, string) {
	switch c.ownerOf(w) {
	case ownerController:
		return ActionKeep, becauseController
	case ownerUnknown:
		return c.hold(ActionSet, "git changed it, and so did an unknown client")
	case ownerPerson:
		if c.policy.Drift == v1alpha1.DriftReport {
			return ActionKeep, becauseReport
		}
		return ActionSet, "a person changed it, too"
	case ownerBorrowed:
		if c.policy.Drift == v1alpha1.DriftReport {
			return ActionKeep, becauseBorrowed + ", and drift is only reported"
		}
		return ActionSet, becauseBorrowed
	case ownerUnread, ownerNone, ownerOurs:
	}
	return ActionSet, ""
}

// newOrTakeover decides if git wants a value that Keelson never applied. A live value without an
// owner is a default, and may be overwritten.
func (c *comparison) newOrTakeover(w *row) (Action, string) {
	if !w.l.present {
		return ActionSet, ""
	}
	switch c.ownerOf(w) {
	case ownerController:
		return ActionKeep, becauseController
	case ownerPerson, ownerBorrowed, ownerUnknown:
		if !c.newToKeelson {
			return c.hold(ActionSet, "another client set it before git did")
		}
	case ownerUnread, ownerNone, ownerOurs:
	}
	return ActionSet, ""
}

// noLongerWanted decides if the field left git. Server-side apply removes the field if Keelson is
// its only owner, and otherwise leaves it to the other owners.
func (c *comparison) noLongerWanted(w *row) (Action, string) {
	whole := w.whole()
	who := c.ownerOf(w)
	switch {
	case who == ownerUnread:
		return ActionRemove, ""
	case c.who.oursAlone(whole):
		if c.who.handedOver(whole) {
			c.dropped.Insert(whole)
		}
		return ActionRemove, ""
	case w.gone > 0 && c.onlyPersons(whole):
		c.taken.Insert(whole)
		return ActionRemove, "the list item left git, with what a person changed in it"
	case w.gone > 0 && c.who.applied(w.path):
		c.kept.Insert(w.path)
		return ActionRelease, "the list item left git, but others own parts of it"
	case who == ownerNone:
		return ActionRelease, "no longer in git, and no longer Keelson's to remove"
	}
	return ActionRelease, "no longer in git, and another client owns it now"
}

// onlyPersons reports whether an item is removed once Keelson stops sending it, and no more is lost
// with it than changes by persons. Such changes are undone anyway.
func (c *comparison) onlyPersons(item fieldpath.Path) bool {
	return c.who.applied(item) && !c.who.any(item, func(e ownerEntry) bool {
		return !e.applied && (c.spared(e, item) || e.fields.Has(item))
	})
}

// spared reports whether any of an owner's fields in a list item must be left alone.
func (c *comparison) spared(e ownerEntry, item fieldpath.Path) bool {
	in, spared := fieldpath.NewSet(item), false
	e.fields.Leaves().Iterate(func(p fieldpath.Path) {
		if spared || !hasPrefix(in, p) {
			return
		}
		switch e.at(p) {
		case ownerController, ownerUnknown:
			spared = true
		case ownerPerson, ownerBorrowed:
			spared = c.policy.Drift == v1alpha1.DriftReport
		case ownerUnread, ownerNone, ownerOurs:
		}
	})
	return spared
}

// ownerOf returns the owner of a field. If the owners were not read, it sets OwnersUnread.
func (c *comparison) ownerOf(w *row) owner {
	who := c.who.ownerOf(w.path)
	if who == ownerUnread {
		c.change.OwnersUnread = true
	}
	return who
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
