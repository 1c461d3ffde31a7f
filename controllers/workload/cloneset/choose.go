package cloneset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// member is an active pod of a CloneSet: not ended, and not being deleted.
type member struct {
	name string
	pod  *corev1.Pod
	// updated: the pod has the update revision.
	updated bool
	// preparingUpdate: the pod counts as updated when pods are created and when there are too many,
	// although its update in place still waits for a hook.
	preparingUpdate bool
	// available: the pod is available, and no hook takes it out of service.
	available bool
	// marked: a label or the spec asks for its replacement.
	marked bool
	// preparing: a hook blocks its deletion.
	preparing bool
	// recallable: the blocked deletion can be cancelled.
	recallable bool
	// recalled: this reconcile cancels the deletion, and does nothing else with the pod.
	recalled bool
	// begun: the pod is out of service for a started update in place. held: a hook holds that update
	// back.
	begun, held bool
	// inPlace: the pod can change revision without replacement.
	inPlace bool
}

// recall cancels deletions that hooks block if more pods are wanted again. Members are sorted
// for deletion, so recall starts at the end. Recalled pods do not serve before the next
// reconcile. It recalls no pod beyond the surge while marked available pods still wait, because
// that pod would be deleted again.
func (w want) recall(members []member) []member {
	members = slices.Clone(members)
	kept, stay := 0, 0
	for _, m := range members {
		if !m.preparing && !m.marked {
			kept++
		}
		if !m.preparing && (!m.marked || m.available) {
			stay++
		}
	}
	for i := len(members) - 1; i >= 0 && kept < w.replicas && stay < w.replicas+w.maxSurge; i-- {
		if m := &members[i]; m.preparing && m.recallable {
			m.preparing, m.recalled = false, true
			kept++
			stay++
		}
	}
	return members
}

// tallies counts the members of the old revisions, and of the update revision.
func tallies(members []member) (old, updated tally) {
	for _, m := range members {
		t := &old
		if m.updated {
			t = &updated
		}
		t.add(&m, 1)
	}
	return old, updated
}

// add adds a member to the counts if by is 1, or removes it if by is -1.
func (t *tally) add(m *member, by int) {
	switch {
	case m.preparing:
		t.preparing += by
	case m.marked && m.available:
		t.markedAvailable += by
	case m.marked:
		t.markedUnavailable += by
	case m.available:
		t.available += by
	default:
		t.unavailable += by
	}
	if m.preparingUpdate && !m.updated && !m.preparing && !m.marked {
		t.preparingUpdate += by
	}
}

// countsUpdated reports whether a member counts as updated when there are too many.
func (m member) countsUpdated() bool { return m.updated || m.preparingUpdate }

// take returns the first n members that match.
func take(members []member, n int, is func(member) bool) []member {
	var out []member
	for _, m := range members {
		if len(out) < n && is(m) {
			out = append(out, m)
		}
	}
	return out
}

// doomed returns the members to delete now, of members that are sorted for deletion. These are
// preparing members, marked members as far as availability permits, and the surplus.
func (c counts) doomed(members []member) []member {
	out := take(members, len(members), func(m member) bool { return m.preparing || m.marked && !m.available })
	out = append(out, take(members, c.replace, func(m member) bool { return m.marked && m.available && !m.preparing })...)
	gone := map[string]bool{}
	for _, m := range out {
		gone[m.name] = true
	}
	return append(out, c.surplus(slices.DeleteFunc(slices.Clone(members), func(m member) bool { return gone[m.name] || m.recalled }))...)
}

// surplus returns the members to delete because there are too many: marked members before their
// turn, and unmarked members.
func (c counts) surplus(members []member) []member {
	var out []member
	share := map[bool]*int{false: &c.removeOld, true: &c.removeUpdated} // by member.countsUpdated()
	for _, next := range []func(member) bool{
		func(m member) bool { return m.marked && c.spare > 0 },
		func(m member) bool { return !m.available && *share[m.countsUpdated()] > 0 },
		func(m member) bool { return c.spare > 0 && *share[m.countsUpdated()] > 0 },
		func(m member) bool { return c.beyond > 0 && !m.available },
		func(member) bool { return c.beyond > 0 },
	} {
		members = slices.DeleteFunc(members, func(m member) bool {
			if c.remove == 0 || !next(m) {
				return false
			}
			out = append(out, m)
			c.remove--
			c.beyond-- // any deletion reduces the excess
			if !m.marked {
				*share[m.countsUpdated()]--
			}
			if m.available {
				c.spare--
			}
			return true
		})
	}
	return out
}

// moves are the members that change revision now, in place or by a mark for replacement.
type moves struct {
	inPlace, mark []member
	// waits are members whose turn it is, but not now: they are left alone.
	waits []member
}

// waiting returns the moves of a reconcile that has other work first. Members whose update a hook
// holds back stay so: otherwise their hooks would be told that it is called off.
func (m moves) waiting() moves {
	return moves{waits: take(m.inPlace, len(m.inPlace), func(m member) bool { return m.held })}
}

// moved chooses the members that change revision, of members in update order. Unavailable
// members come first, because their change costs no availability, and of these the started updates.
func (c counts) moved(members []member) moves {
	var out moves
	members = startedFirst(members)
	for _, available := range []bool{false, true} {
		for _, m := range members {
			switch {
			case m.available != available || !c.canUpdate(m):
			case m.inPlace:
				out.inPlace = append(out.inPlace, m)
			default:
				out.mark = append(out.mark, m)
			}
		}
	}
	return out
}

// idle reports whether a member is free for a change of revision: not marked, preparing or
// recalled.
func (m member) idle() bool { return !m.marked && !m.preparing && !m.recalled }

// turn returns the first members of an update strategy, as many as may change revision. Without
// a strategy, unavailable members come first. With a strategy, the partition applies to the
// order of the strategy.
func (c counts) turn(members []member) []member {
	left := map[bool]int{false: c.forward, true: c.back} // by member.updated
	var out []member
	for _, m := range startedFirst(members) {
		if m.idle() && left[m.updated] > 0 {
			left[m.updated]--
			out = append(out, m)
		}
	}
	return out
}

// unavailableFirst sorts pods that are not available first.
func unavailableFirst(a, b member) int {
	switch {
	case a.available == b.available:
		return 0
	case b.available:
		return -1
	}
	return 1
}

// startedFirst returns members with the started updates first.
func startedFirst(members []member) []member {
	members = slices.Clone(members)
	slices.SortStableFunc(members, func(a, b member) int {
		switch {
		case a.begun == b.begun:
			return 0
		case a.begun:
			return -1
		}
		return 1
	})
	return members
}

// canUpdate reports whether a member can change revision now, and reduces the remaining numbers.
func (c *counts) canUpdate(m member) bool {
	left, room := &c.forward, &c.mark
	if m.updated {
		left = &c.back
	}
	if m.inPlace {
		room = &c.spare
	}
	if *left == 0 || !m.idle() || m.available && *room == 0 {
		return false
	}
	if m.available {
		*room--
	}
	*left--
	return true
}
