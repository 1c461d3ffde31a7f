package differ

import (
	"github.com/keelson-io/keelson/api/v1alpha1"
)

// decide is the three-way table of DESIGN.md for one field that is not
// settled, and the danger rules over it. It is not ok when nothing needs doing.
//
// Rules stop what would change, so a rule is asked only where target and live
// differ. On a create a danger is shown, not held: add-ons need such fields,
// and the pull request was the review. A deny counts there too.
func (c *comparison) decide(w *row) (Field, bool) {
	f := Field{Path: w.path.String(), Recorded: w.r.value, Target: w.t.value, Live: w.l.value}
	r := c.ruleFor(w)
	if r != nil && r.Effect == v1alpha1.EffectKeep && w.l.present {
		f.Action, f.Rule, f.Because = ActionKeep, r.Name, r.Because
	} else {
		f.Action, f.Because = c.table(w)
		c.guard(r, &f)
	}
	if f.Action == ActionKeep {
		c.kept.Insert(w.path)
	}
	return f, f.Action != 0
}

func (c *comparison) ruleFor(w *row) *rule {
	if w.same(w.t, w.l) {
		return nil
	}
	r := c.policy.find(c.state.ID, event(w), w)
	if r != nil && c.live == nil && r.Effect != v1alpha1.EffectDeny {
		return nil
	}
	return r
}

// guard lets a danger rule overrule what the table calls for.
func (c *comparison) guard(r *rule, f *Field) {
	if r == nil || f.Action == 0 || f.Action == ActionKeep || f.Action == ActionRelease {
		return
	}
	switch r.Effect {
	case v1alpha1.EffectAllow, v1alpha1.EffectKeep: // keep: there is no live value
		return
	case v1alpha1.EffectHold:
		f.Action = ActionHold
	case v1alpha1.EffectDeny:
		f.Action = ActionDeny
	default:
		f.Action = ActionDeny // an effect that this version does not know
	}
	f.Rule, f.Because = r.Name, r.Because
}

// table returns what the three values alone call for; 0 for nothing.
func (c *comparison) table(w *row) (Action, string) {
	switch {
	case w.t.present && w.same(w.t, w.l):
		// The live value is the wanted one, but the record says otherwise. An
		// apply takes its ownership: without it the field could never be removed.
		return ActionAdopt, ""
	case w.t.present && w.r.present && w.same(w.r, w.t):
		return c.drifted(w)
	case w.t.present && w.r.present && w.same(w.r, w.l):
		return ActionSet, ""
	case w.t.present && w.r.present && w.l.present:
		return c.wantedAndDrifted(w)
	case w.t.present && !w.l.present:
		return ActionSet, ""
	case w.t.present:
		return c.takeover(w)
	case !w.l.present:
		c.change.RecordStale = true // gone already: forget
		return 0, ""
	case w.same(w.r, w.l):
		return ActionRemove, ""
	}
	return c.noLongerWanted(w)
}

// drifted: somebody changed what Keelson applied.
func (c *comparison) drifted(w *row) (Action, string) {
	if !w.l.present {
		return ActionRestore, ""
	}
	switch c.ownerOf(w) {
	case ownerController:
		return ActionKeep, "a controller of the cluster set it"
	case ownerPerson:
		if c.policy.Drift == v1alpha1.DriftReport {
			return ActionKeep, "a person set it, and drift is only reported"
		}
		return ActionRestore, "a person changed it"
	case ownerUnknown:
		return ActionHold, "somebody unknown set it: find out who, or put the value into git"
	case ownerUnread, ownerNone, ownerOurs:
	}
	return ActionRestore, ""
}

// wantedAndDrifted: git wants another value than before, and somebody has set
// a third one meanwhile.
func (c *comparison) wantedAndDrifted(w *row) (Action, string) {
	switch c.ownerOf(w) {
	case ownerController:
		return ActionKeep, "a controller of the cluster set it"
	case ownerUnknown:
		return ActionHold, "git changed it, and so did somebody unknown"
	case ownerUnread, ownerNone, ownerOurs, ownerPerson:
	}
	return ActionSet, ""
}

// takeover: git wants a value that Keelson never applied, and another is there.
// A default that nobody owns is nobody's value.
func (c *comparison) takeover(w *row) (Action, string) {
	if c.newToKeelson {
		if c.policy.Adopt {
			return ActionSet, ""
		}
		return ActionHold, "the object exists and Keelson never applied it; adopt: true in component.yaml takes it over"
	}
	switch c.ownerOf(w) {
	case ownerController:
		return ActionKeep, "a controller of the cluster set it"
	case ownerPerson, ownerUnknown:
		return ActionHold, "somebody else set it before git did"
	case ownerUnread, ownerNone, ownerOurs:
	}
	return ActionSet, ""
}

// noLongerWanted: the field left git, and somebody has changed it meanwhile.
func (c *comparison) noLongerWanted(w *row) (Action, string) {
	c.ownerOf(w)
	if c.who.oursAlone(w.path) {
		return ActionRemove, ""
	}
	return ActionRelease, "no longer in git, and somebody else's by now"
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
