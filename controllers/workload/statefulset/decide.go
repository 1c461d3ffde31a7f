package statefulset

import "slices"

// member is a pod of a StatefulSet, which has the name of its ordinal.
type member struct {
	name    string
	ordinal int
	// kept: the ordinal is wanted, and position is its index among the wanted ones.
	kept     bool
	position int
	// terminating: it is being deleted. ended: it has succeeded or failed.
	terminating, ended bool
	// updated: the pod has the update revision.
	updated bool
	// ready: the pod is running and ready. available: it also has been so for long enough, no hook
	// takes it out of service, and its claims have their size.
	ready, available bool
	// marked: a label asks for its replacement, or a hook holds back a deletion that cannot be called
	// off.
	marked bool
	// preparing: a hook holds its deletion back, which may take it out of its Services.
	preparing bool
	// begun: an update in place has taken the pod out of service, or waits for a hook.
	begun bool
	// inPlace: the pod can come to the update revision without replacement.
	inPlace bool
	// undersized: a claim is smaller than its template, and has to grow. resizing: it is about to.
	undersized, resizing bool
}

// live reports whether a pod runs or will run, and is not being deleted.
func (m member) live() bool { return !m.terminating && !m.ended }

// creation is a pod to create, of the current revision or of the update revision.
type creation struct {
	ordinal int
	old     bool
}

// plan is what to do now.
type plan struct {
	create []creation
	// Pods to delete: condemned are those whose ordinals are not wanted, ended those that
	// run no more, marked those that a user wants to be replaced, and replace those that cannot be
	// updated in place.
	condemned, ended, marked, replace []member
	// resize are pods whose claims grow before their update, and update those to update in place.
	resize, update []member
}

// sums are counts of pods, from which [want.idle] sees that there is nothing to do.
type sums struct {
	// kept pods that are live, and of these the available ones.
	kept, available int
	// condemned pods exist although their ordinals are not wanted.
	condemned, ended, marked int
	// outdated are live kept pods that may come to the update revision, undersized are others whose
	// claims have to grow, and broken are those of both that are not available.
	outdated, undersized, broken int
	// notUpdatable are outdated pods that InPlaceOnly keeps at their revision.
	notUpdatable int
	// reached are live kept pods with the update revision. renewed are those of them that are not in a
	// partition by position, and renewedAvailable the available ones of these.
	reached, renewed, renewedAvailable int
}

// add adds a member to the counts if by is 1, or removes it if by is -1.
func (s *sums) add(m *member, w want, by int) {
	if !m.kept {
		s.condemned += by
		return
	}
	if m.ended && !m.terminating {
		s.ended += by
	}
	if !m.live() {
		return
	}
	s.kept += by
	if m.available {
		s.available += by
	}
	if m.marked {
		s.marked += by
	}
	if m.updated {
		s.reached += by
	}
	if m.updated && !w.stays(m.position) {
		s.renewed += by
		if m.available { // claims that grow later are no part of the batch
			s.renewedAvailable += by
		}
	}
	switch {
	case w.stays(m.position), m.updated && !m.undersized:
		return
	case m.updated:
		s.undersized += by
	default:
		s.outdated += by
	}
	if w.notUpdatable(*m) {
		s.notUpdatable += by
	} else if !m.available {
		s.broken += by
	}
}

// notUpdatable reports whether InPlaceOnly keeps a pod at its revision.
func (w want) notUpdatable(m member) bool {
	return w.inPlaceOnly && !m.updated && !m.inPlace && !m.undersized
}

// moves returns how many of the outdated pods have to come to the update revision. The partition by
// position is no part of them. A batch that has room takes broken pods before pods that are missing:
// those may wait for the broken ones.
func (w want) moves(outdated, broken, updated int) int {
	if !w.unordered {
		return outdated
	}
	n := max(outdated-w.partition, 0)
	if w.divided {
		n = max(n, min(broken, w.ordinals.Count()-w.partition-updated))
	}
	return n
}

// idle reports whether decide has nothing to do.
func (w want) idle(s sums) bool {
	spare := w.maxUnavailable - (w.ordinals.Count() - s.available)
	still := w.still() || w.moves(s.outdated, s.broken, s.reached)+s.undersized == 0 || spare <= 0 && s.broken == 0
	return s.kept == w.ordinals.Count() && s.condemned+s.ended+s.marked == 0 && still
}

// decide returns what to do with the members, which are sorted by ordinal. order sorts the pods that
// are updated by priority; it is used if w.unordered.
func (w want) decide(members []member, order func([]member) []member) plan {
	var p plan
	first := slices.IndexFunc(members, func(m member) bool { return m.kept })
	complete, blocker := true, -1 // with OrderedReady: the position at which the walk has ended
	if w.ordered {
		complete, blocker = w.createInOrder(&p, members)
	} else {
		w.createInParallel(&p, members)
	}
	if done := w.scaleDown(&p, members, complete); done || first < 0 {
		return p
	}
	left := w.newBudget(members)
	w.replaceMarked(&p, members, &left)
	if !w.still() {
		w.move(&p, w.candidates(members, order), &left, blocker)
	}
	return p
}

// budget is how many more pods may be taken out of service: available of those that are available, and
// ready of those that are ready, but perhaps not for long enough. A pod that is not ready is free.
type budget struct{ available, ready int }

func (w want) newBudget(members []member) budget {
	b := budget{w.maxUnavailable - w.ordinals.Count(), w.maxUnavailable - w.ordinals.Count()}
	for _, m := range members {
		if m.kept && m.available {
			b.available++
		}
		if m.kept && m.live() && m.ready {
			b.ready++
		}
	}
	return b
}

// allows reports whether a pod may be taken out of service.
func (b *budget) allows(m member) bool {
	return !m.ready && !m.available || b.ready > 0 && (!m.available || b.available > 0)
}

// spend counts a pod that is taken out of service.
func (b *budget) spend(m member) {
	if m.available {
		b.available--
	}
	if m.ready || m.available {
		b.ready--
	}
}

// createInOrder creates the first missing pod, or removes the first that has ended. It ends at the
// first pod that is not available, and returns its position; complete: there is none.
func (w want) createInOrder(p *plan, members []member) (complete bool, blocker int) {
	next := 0
	for _, m := range members {
		if !m.kept {
			continue
		}
		if m.position > next {
			break // a pod is missing before it
		}
		switch {
		case m.ended && !m.terminating:
			p.ended = append(p.ended, m)
			return false, next
		case !m.available:
			return false, next
		}
		next++
	}
	if next >= w.ordinals.Count() {
		return true, -1
	}
	p.create = append(p.create, creation{w.ordinals.At(next), w.getsCurrentRevision(members, next, nil)})
	return false, next
}

// createInParallel creates the missing pods, as far as the scale strategy allows, and removes all that
// have ended. A pod that waits for its creation does not hold back a removal.
func (w want) createInParallel(p *plan, members []member) {
	next, away := 0, 0
	missing := func(until int) {
		for ; next < until && away < w.toCreate && len(p.create) < maxPodsPerReconcile; next++ {
			p.create = append(p.create, creation{w.ordinals.At(next), w.getsCurrentRevision(members, next, p.create)})
			away++
		}
		next = until
	}
	for _, m := range members {
		if !m.kept {
			continue
		}
		missing(m.position)
		next++
		if m.ended && !m.terminating {
			p.ended = append(p.ended, m)
		}
		if !m.available {
			away++
		}
	}
	missing(w.ordinals.Count())
}

// getsCurrentRevision reports whether a new pod gets the current revision: the partition is filled
// before pods get the update revision. In batches it is the other way round, since pods that are missing
// may be missing because of the current one. created are the earlier creations of this reconcile.
func (w want) getsCurrentRevision(members []member, position int, created []creation) bool {
	switch {
	case w.stopped && w.unordered:
		return true // what can't run spreads no further
	case w.onDelete || w.partition == 0:
		return false
	case !w.unordered:
		return w.stays(position)
	}
	n := map[bool]int{} // by whether they have the current revision
	for _, m := range members {
		if m.kept && m.live() {
			n[!m.updated]++
		}
	}
	for _, c := range created {
		n[c.old]++
	}
	if w.divided {
		return n[false] >= w.ordinals.Count()-w.partition
	}
	return n[true] < w.partition
}

// scaleDown removes condemned pods, the highest ordinal first. With OrderedReady it removes one at a
// time, after all wanted pods are available, and nothing else is done meanwhile.
func (w want) scaleDown(p *plan, members []member, complete bool) (done bool) {
	var condemned []member
	for _, m := range slices.Backward(members) {
		if !m.kept {
			condemned = append(condemned, m)
		}
	}
	if !w.ordered {
		for _, m := range condemned {
			if !m.terminating {
				p.condemned = append(p.condemned, m)
			}
		}
		return false
	}
	if len(condemned) == 0 || !complete {
		return false
	}
	// An unready pod stays until the unready pods with lower ordinals are ready: those may need it. It
	// does not wait for a pod of an earlier revision, which may be broken for good.
	top := condemned[0]
	lower := slices.ContainsFunc(condemned[1:], func(m member) bool { return !m.ready && m.updated && !m.ended })
	if !slices.ContainsFunc(condemned, func(m member) bool { return m.terminating }) && (top.ready || top.preparing || !lower) {
		p.condemned = []member{top}
	}
	return true
}

// replaceMarked removes pods that users want to be replaced, the highest ordinal first.
func (w want) replaceMarked(p *plan, members []member, b *budget) {
	for _, m := range slices.Backward(members) {
		if m.kept && m.live() && m.marked && b.allows(m) {
			b.spend(m)
			p.marked = append(p.marked, m)
		}
	}
}

// candidates returns the pods that may be updated, in their order.
func (w want) candidates(members []member, order func([]member) []member) []member {
	var out, waiting []member
	broken, updated := 0, 0
	for _, m := range slices.Backward(members) {
		if m.kept && m.live() && m.updated {
			updated++
		}
		switch {
		case !m.kept || w.stays(m.position):
		case w.unordered && m.live() && !m.updated:
			waiting = append(waiting, m)
			if !m.available {
				broken++
			}
		default:
			out = append(out, m)
		}
	}
	if !w.unordered {
		return out
	}
	waiting = order(waiting)
	if w.divided { // otherwise the pods of a batch could wait for a pod that none will update
		slices.SortStableFunc(waiting, unavailableFirst)
	}
	return append(out, waiting[:w.moves(len(waiting), broken, updated)]...)
}

// move brings candidates to the update revision. Pods that are not available do not wait for pods
// before them, which may wait for them; as many are updated as there is room. With OrderedReady
// only the first pod that is not available may be replaced: another one would not be created again
// before that.
func (w want) move(p *plan, candidates []member, b *budget, blocker int) {
	blocked := false
	for _, m := range candidates {
		if !m.live() || m.marked || m.updated && !m.undersized || m.resizing || w.notUpdatable(m) {
			continue
		}
		if blocked && m.available {
			continue
		}
		if !b.allows(m) {
			blocked = blocked || m.available
			continue
		}
		switch {
		case m.undersized:
			p.resize = append(p.resize, m)
		case m.inPlace:
			p.update = append(p.update, m)
		case w.ordered && !m.available && m.position != blocker:
			continue
		default:
			p.replace = append(p.replace, m)
		}
		b.spend(m)
	}
}

// unavailableFirst sorts started updates first, then pods that are not available.
func unavailableFirst(a, b member) int {
	rank := func(m member) int {
		switch {
		case m.begun:
			return 0
		case !m.available:
			return 1
		}
		return 2
	}
	return rank(a) - rank(b)
}
