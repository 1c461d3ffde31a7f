package differ

import (
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// decide is the three-way table of DESIGN.md for one field that is not
// settled, and the danger rules over it. It is not ok when nothing needs doing.
//
// Rules stop what would change, so a rule is asked only where target and live
// differ. On a create a danger is shown, not held: add-ons need such fields,
// and the pull request was the review. A deny counts there too.
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
		// The record is about to forget the field. Were Keelson to own it still,
		// the next apply would remove it unseen.
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
		return finding{}, false // to keep what is there is right in any case
	}
	return r, true
}

// defaulted reports whether the live value is what the API server made of the
// target: git did not change it, and live only adds struct fields. This is no
// danger, and without a record it can't be told from its normal form in any
// other way. Were it held, no StatefulSet could be adopted, or be finished after
// a kill: the API server fills in its claim templates.
func (c *comparison) defaulted(w *row) bool {
	return (c.rebuilt || !w.r.present || w.same(w.r, w.t)) && w.completed()
}

// guard lets a danger rule overrule what the table calls for, and reports
// whether it did.
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
		// A part of a whole can't be kept alone.
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

// hold waits for an approval in git; with one, the field goes its way.
func (c *comparison) hold(otherwise Action, because string) (Action, string) {
	if c.change.Approved {
		return otherwise, becauseApproved + because
	}
	return ActionHold, because
}

// alone reports whether a field waits, and the rest of its object moves. A
// field of a list item that comes or goes as a whole can't: the API server would
// refuse the item without it, or the item would stay in pieces.
func alone(r finding, w *row) bool {
	if r.Effect != v1alpha1.EffectHold || r.Scope != v1alpha1.ScopeField {
		return false
	}
	if w.gone > 0 {
		return r.pattern.matches(w.path[:w.gone])
	}
	return !w.fresh
}

// wait leaves a field out of all that is sent, and undoes what the table has
// noted for its removal.
func (c *comparison) wait(w *row) {
	c.waiting.Insert(w.path)
	whole := w.whole()
	c.dropped = c.dropped.Difference(fieldpath.NewSet(whole))
	c.taken = c.taken.Difference(fieldpath.NewSet(whole))
}

// table returns what the three values alone call for; 0 for nothing.
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
		c.change.RecordStale = true // gone already: forget
		return 0, ""
	}
	return c.noLongerWanted(w)
}

// alreadyThere: the live value is the wanted one, but the record says
// otherwise. Where Keelson owns it, only the record has to learn that. Else an
// apply takes its ownership: without it the field could never be removed.
func (c *comparison) alreadyThere(w *row) (Action, string) {
	if c.ownerOf(w) != ownerUnread && c.who.applied(w.path) && !c.newToKeelson {
		return 0, ""
	}
	return ActionAdopt, ""
}

// drifted: somebody changed or removed what Keelson applied.
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
		return c.hold(ActionRestore, "somebody unknown set it: find out who, or put the value into git")
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

// wantedAndDrifted: git wants another value than before, and somebody has set
// a third one meanwhile.
func (c *comparison) wantedAndDrifted(w *row) (Action, string) {
	switch c.ownerOf(w) {
	case ownerController:
		return ActionKeep, becauseController
	case ownerUnknown:
		return c.hold(ActionSet, "git changed it, and so did somebody unknown")
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

// newOrTakeover: git wants a value that Keelson never applied. A default that
// nobody owns is nobody's value.
func (c *comparison) newOrTakeover(w *row) (Action, string) {
	if !w.l.present {
		return ActionSet, ""
	}
	switch c.ownerOf(w) {
	case ownerController:
		return ActionKeep, becauseController
	case ownerPerson, ownerBorrowed, ownerUnknown:
		if !c.newToKeelson {
			return c.hold(ActionSet, "somebody else set it before git did")
		}
	case ownerUnread, ownerNone, ownerOurs:
	}
	return ActionSet, ""
}

// noLongerWanted: the field left git. Server-side apply removes it when
// Keelson is its only owner, and leaves it to the others otherwise.
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
	return ActionRelease, "no longer in git, and somebody else's by now"
}

// onlyPersons reports whether an item would go when Keelson stops sending it,
// and with it no more than what persons have changed in it, whose changes are
// undone anyway.
func (c *comparison) onlyPersons(item fieldpath.Path) bool {
	return c.who.applied(item) && !c.who.any(item, func(e ownerEntry) bool {
		return !e.applied && (c.spared(e, item) || e.fields.Has(item))
	})
}

// spared reports whether an owner's fields in a list item are left alone.
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

// ownerOf asks for the owners where they were not read.
func (c *comparison) ownerOf(w *row) owner {
	who := c.who.of(w.path)
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
