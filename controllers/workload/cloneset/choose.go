package cloneset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// member is a pod of a CloneSet that isn't on its way out.
type member struct {
	name string
	pod  *corev1.Pod
	// updated: it has the update revision.
	updated bool
	// available: it serves, and no hook says otherwise.
	available bool
	// marked: somebody asked for its replacement.
	marked bool
	// preparing: a hook holds back its deletion.
	preparing bool
	// recallable: that can be taken back.
	recallable bool
	// recalled: it is, now, and nothing else befalls it in this look.
	recalled bool
	// begun: it was taken out of service to come to another revision.
	begun bool
	// inPlace: it can come to the other revision without being replaced.
	inPlace bool
}

// recall takes back deletions that hooks hold back, where pods are wanted again: those
// that are missed most, of members that are sorted by how little they are missed. They
// serve nobody before the next look. None is taken back beside one that is to go and
// can't yet, where there would be too many of them: it would have to go again.
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

// tallies counts members by revision: those of the current one, and the updated.
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

// add counts a member, by 1, or doesn't any more, by -1.
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
}

// take returns the first n members for which it is so.
func take(members []member, n int, is func(member) bool) []member {
	var out []member
	for _, m := range members {
		if len(out) < n && is(m) {
			out = append(out, m)
		}
	}
	return out
}

// doomed are the members to delete now, of those that are sorted by how little they are
// missed: those that were marked, as far as others serve, and the surplus.
func (c counts) doomed(members []member) []member {
	out := take(members, len(members), func(m member) bool { return m.preparing || m.marked && !m.available })
	out = append(out, take(members, c.replace, func(m member) bool { return m.marked && m.available && !m.preparing })...)
	gone := map[string]bool{}
	for _, m := range out {
		gone[m.name] = true
	}
	return append(out, c.surplus(slices.DeleteFunc(slices.Clone(members), func(m member) bool { return gone[m.name] || m.recalled }))...)
}

// surplus are the members to delete of those that nobody asked for, or whose turn it
// isn't yet, since there are too many.
func (c counts) surplus(members []member) []member {
	var out []member
	share := map[bool]*int{false: &c.removeOld, true: &c.removeUpdated} // by whether it is updated
	for _, next := range []func(member) bool{
		func(m member) bool { return m.marked && c.spare > 0 },
		func(m member) bool { return !m.available && *share[m.updated] > 0 },
		func(m member) bool { return c.spare > 0 && *share[m.updated] > 0 },
		func(m member) bool { return c.beyond > 0 && !m.available },
		func(member) bool { return c.beyond > 0 },
	} {
		members = slices.DeleteFunc(members, func(m member) bool {
			if c.remove == 0 || !next(m) {
				return false
			}
			out = append(out, m)
			c.remove--
			c.beyond-- // whoever goes makes one less
			if !m.marked {
				*share[m.updated]--
			}
			if m.available {
				c.spare--
			}
			return true
		})
	}
	return out
}

// moves are members that come to another revision now: in place, or by being marked for
// replacement.
type moves struct{ inPlace, mark []member }

// moved chooses among members that are sorted by who comes first: those that aren't
// available in any case, for they serve nobody.
func (c counts) moved(members []member) moves {
	var out moves
	for _, available := range []bool{false, true} {
		for _, m := range members {
			switch {
			case m.available != available || !c.goes(m):
			case m.inPlace:
				out.inPlace = append(out.inPlace, m)
			default:
				out.mark = append(out.mark, m)
			}
		}
	}
	return out
}

// idle reports whether nothing else is to befall a member.
func (m member) idle() bool { return !m.marked && !m.preparing && !m.recalled }

// turn are the members whose turn it is where they are sorted by a strategy: the first
// ones, as many as go. Without a strategy, those that serve nobody come first; with one,
// a partition means those that it names.
func (c counts) turn(members []member) []member {
	left := map[bool]int{false: c.forward, true: c.back} // by whether it is updated
	members = slices.Clone(members)
	slices.SortStableFunc(members, func(a, b member) int { // what was begun goes on
		switch {
		case a.begun == b.begun:
			return 0
		case a.begun:
			return -1
		}
		return 1
	})
	var out []member
	for _, m := range members {
		if m.idle() && left[m.updated] > 0 {
			left[m.updated]--
			out = append(out, m)
		}
	}
	return out
}

// goes reports whether a member can come to another revision now, and takes it off what
// is left of the numbers.
func (c *counts) goes(m member) bool {
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
