package differ

import (
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
)

// threeWay decides about one field by its recorded, wanted and live values, and by the owner of the
// live value, without danger rules: the table of docs/concepts/three-way-diff.md.
type threeWay struct {
	view   *objectView
	who    *owners
	exists bool // the object does
	// newToKeelson means that the object exists, and Keelson never wrote to it.
	newToKeelson bool
	// adopt, reportDrift and approved are settings in git.
	adopt, reportDrift, approved bool
	// unread notes that the owners are needed, and were not read.
	unread *Unread
	// sets gets the fields that the removal of a field is about.
	sets *decisions
	// recordStale is set if only the record has to change.
	recordStale bool
}

// hold returns the action to wait for an approval in git, or the given action if git approves.
func (d *threeWay) hold(otherwise Action, because string) (Action, string) {
	if d.approved {
		return otherwise, becauseApproved + because
	}
	return ActionHold, because
}

// action returns the action for the three values and the field's owner, without danger rules; 0 for
// no action.
func (d *threeWay) action(w *row) (Action, string) {
	switch {
	case w.t.present && w.same(w.t, w.l):
		return d.alreadyThere(w)
	case d.newToKeelson && !d.adopt && !d.approved:
		return ActionHold, "the object exists and Keelson never applied it; adopt: true in component.yaml takes it over"
	case w.t.present && !w.l.present && (w.r.present || w.removed) && d.exists && d.reportDrift && !d.view.isNormal(w, w.r):
		return ActionKeep, "it was removed, and drift is only reported"
	case w.t.present && w.r.present && w.same(w.r, w.t):
		return d.drifted(w)
	case w.t.present && w.r.present && (w.same(w.r, w.l) || d.view.isNormal(w, w.r)):
		return ActionSet, ""
	case w.t.present && w.r.present && w.l.present:
		return d.wantedAndDrifted(w)
	case w.t.present:
		return d.newOrTakeover(w)
	case !w.l.present:
		d.recordStale = true // the field is gone already: update the record
		return 0, ""
	}
	return d.noLongerWanted(w)
}

// alreadyThere decides if the live value is the wanted one, and the record differs. If Keelson owns
// the field, only the record must change. Otherwise an apply takes ownership: without it, Keelson
// could never remove the field.
func (d *threeWay) alreadyThere(w *row) (Action, string) {
	if d.ownerOf(w) != ownerUnread && d.who.applied(w.path) && !d.newToKeelson {
		return 0, ""
	}
	return ActionAdopt, ""
}

// drifted decides if another client changed or removed a field that Keelson applied.
func (d *threeWay) drifted(w *row) (Action, string) {
	report := d.reportDrift
	if !w.l.present {
		return ActionRestore, ""
	}
	switch d.ownerOf(w) {
	case ownerYielding, ownerController:
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
		return d.hold(ActionRestore, "an unknown client set it: find the client, or put the value into git")
	case ownerNone:
		if report {
			return ActionKeep, "what Keelson applied was removed, and drift is only reported"
		}
	case ownerUnread, ownerOurs:
	}
	return ActionRestore, ""
}

// wantedAndDrifted decides if git changed a value, and another client set a third value in the
// meantime.
func (d *threeWay) wantedAndDrifted(w *row) (Action, string) {
	switch d.ownerOf(w) {
	case ownerController:
		return ActionKeep, becauseController
	case ownerUnknown:
		return d.hold(ActionSet, "git changed it, and so did an unknown client")
	case ownerPerson:
		if d.reportDrift {
			return ActionKeep, becauseReport
		}
		return ActionSet, "a person changed it, too"
	case ownerBorrowed:
		if d.reportDrift {
			return ActionKeep, becauseBorrowed + ", and drift is only reported"
		}
		return ActionSet, becauseBorrowed
	case ownerUnread, ownerNone, ownerOurs, ownerYielding:
	}
	return ActionSet, ""
}

// newOrTakeover decides if git wants a value that Keelson never applied. A live value without an
// owner is a default, and may be overwritten.
func (d *threeWay) newOrTakeover(w *row) (Action, string) {
	if !w.l.present {
		return ActionSet, ""
	}
	switch d.ownerOf(w) {
	case ownerController:
		return ActionKeep, becauseController
	case ownerPerson, ownerBorrowed, ownerUnknown:
		if !d.newToKeelson {
			return d.hold(ActionSet, "another client set it before git did")
		}
	case ownerUnread, ownerNone, ownerOurs, ownerYielding:
	}
	return ActionSet, ""
}

// noLongerWanted decides if the field left git. Server-side apply removes the field if Keelson is
// its only owner, and otherwise leaves it to the other owners.
func (d *threeWay) noLongerWanted(w *row) (Action, string) {
	whole := w.whole()
	who := d.ownerOf(w)
	switch {
	case who == ownerUnread:
		return ActionRemove, ""
	case d.who.oursAlone(whole):
		if d.who.handedOver(whole) {
			d.sets.dropped.Insert(whole)
		}
		return ActionRemove, ""
	case w.gone > 0 && d.onlyPersons(whole):
		d.sets.taken.Insert(whole)
		return ActionRemove, "the list item left git, with what a person changed in it"
	case w.gone > 0 && d.who.applied(w.path):
		d.sets.kept.Insert(w.path)
		return ActionRelease, "the list item left git, but others own parts of it"
	case who == ownerNone:
		return ActionRelease, "no longer in git, and no longer Keelson's to remove"
	}
	return ActionRelease, "no longer in git, and another client owns it now"
}

// onlyPersons reports whether an item is removed once Keelson stops sending it, and no more is lost
// with it than changes by persons. Such changes are undone anyway.
func (d *threeWay) onlyPersons(item fieldpath.Path) bool {
	return d.who.applied(item) && !d.who.any(item, func(e ownerEntry) bool {
		return !e.applied && (d.spared(e, item) || e.fields.Has(item))
	})
}

// spared reports whether any of an owner's fields in a list item must be left alone.
func (d *threeWay) spared(e ownerEntry, item fieldpath.Path) bool {
	in, spared := fieldpath.NewSet(item), false
	e.fields.Leaves().Iterate(func(p fieldpath.Path) {
		if spared || !hasPrefix(in, p) {
			return
		}
		switch e.at(p) {
		case ownerYielding, ownerController, ownerUnknown:
			spared = true
		case ownerPerson, ownerBorrowed:
			spared = d.reportDrift
		case ownerUnread, ownerNone, ownerOurs:
		}
	})
	return spared
}

// ownerOf returns the owner of a field. If the owners were not read, it notes that.
func (d *threeWay) ownerOf(w *row) owner {
	who := d.who.ownerOf(w.path)
	if who == ownerUnread {
		d.unread.Owners = true
	}
	return who
}

const (
	becauseController = "a controller of the cluster set it"
	becauseReport     = "a person set it, and drift is only reported"
	becauseBorrowed   = "it was set under the name of a controller that is not known to set it (a danger rule with effect keep lets it stay)"
)
