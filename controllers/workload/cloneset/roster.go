package cloneset

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
)

// roster holds the facts about the pods of a CloneSet, from one reconcile to the next. Facts
// stay valid until the pod or the CloneSet changes, so a reconcile evaluates only changed pods
// and then updates sums and order. All data comes from the objects: a new process builds it
// again.
type roster struct {
	basis   basis
	mark    podclient.Mark[*corev1.Pod]
	entries map[types.UID]*entry
	sums    sums
	// crowds are the active pods of each node.
	crowds map[string][]*entry
	// order has the active pods, sorted for deletion. Entries in loose are not in their right
	// place in order.
	order, loose []*entry
	// soon are the pods that become available by time alone, without an event.
	soon map[*entry]struct{}
	// unsettled are active pods that may have unfinished steps, and failed are updated pods that have
	// failed.
	unsettled, failed map[*entry]struct{}

	claims claims

	compared comparison
}

// basis is the input of all facts, apart from the pods. If it changes, all facts are void.
type basis struct {
	generation, specs         int64
	current, updated, history string // names of revisions, and their versions
}

// entry is a pod. The entry stays the same while the pod changes.
type entry struct {
	facts
	loose, gone bool
}

// facts are the state of a pod in its CloneSet.
type facts struct {
	member
	// active: the pod has not ended, and is not being deleted.
	active bool
	// ready: the pod is ready, but perhaps not long enough to be available.
	ready bool
	// stranger: the selector no longer matches the pod.
	stranger bool
	// failed: the pod is updated and has failed, or had and is not available since.
	failed   bool
	revision string // hash
	rank     podorder.Rank
	// due is when the pod becomes available by time alone; zero means never.
	due time.Time
}

// sums are the counts of all active pods.
type sums struct {
	old, updated tally
	all, renewed served // all: of every revision; renewed: of the update revision
	unselected   int
	revisions    map[string]int // number of pods, by hash
}

// served are counts of pods by their state.
type served struct{ replicas, ready, available int32 }

func (s *served) add(f *facts, by int32) {
	s.replicas += by
	if f.ready {
		s.ready += by
	}
	if f.available {
		s.available += by
	}
}

// with returns the counts with some changes.
func (s served) with(c served) served {
	return served{replicas: s.replicas + c.replicas, ready: s.ready + c.ready, available: s.available + c.available}
}

func newRoster() *roster {
	return &roster{
		entries: map[types.UID]*entry{}, crowds: map[string][]*entry{}, soon: map[*entry]struct{}{}, unsettled: map[*entry]struct{}{}, failed: map[*entry]struct{}{},
		sums: sums{revisions: map[string]int{}},
	}
}

// sync applies the changes, with the facts from judge. It returns when the next pod becomes
// available by time alone; 0 if there is none.
func (r *roster) sync(b basis, since func(*podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod], judge func(*corev1.Pod) facts, now time.Time) time.Duration {
	if b != r.basis {
		r.basis, r.mark = b, podclient.Mark[*corev1.Pod]{}
	}
	changes := since(&r.mark)
	if changes.Anew {
		fresh := newRoster()
		fresh.basis, fresh.mark, fresh.claims, fresh.compared = r.basis, r.mark, r.claims, r.compared
		fresh.claims.stale = true
		*r = *fresh
	}
	for _, uid := range changes.Gone {
		r.drop(uid)
	}
	for _, p := range changes.Are {
		r.put(p, judge(p))
	}
	var after time.Duration
	for e := range r.soon {
		if !now.Before(e.due) {
			r.put(e.pod, judge(e.pod))
		}
		if left := e.due.Sub(now); left > 0 && (after == 0 || left < after) {
			after = left
		}
	}
	return after
}

// put adds or updates a pod.
func (r *roster) put(p *corev1.Pod, is facts) {
	e := r.entries[p.UID]
	if e == nil {
		e = &entry{}
		r.entries[p.UID] = e
		r.claims.stale = true
	} else {
		r.count(e, -1)
		r.claims.stale = r.claims.stale || e.active != is.active || !e.pod.DeletionTimestamp.Equal(p.DeletionTimestamp)
	}
	is.failed = is.failed || e.failed && is.updated && !is.available
	moves := e.place() != is.place()
	if moves {
		r.leave(e)
	}
	e.facts = is
	if moves {
		r.join(e)
	}
	r.count(e, 1)
	r.loosen(e)
	keep(r.soon, e, e.active && !e.due.IsZero())
	keep(r.unsettled, e, e.active)
	keep(r.failed, e, e.active && e.failed)
}

// drop removes a deleted pod.
func (r *roster) drop(uid types.UID) {
	e := r.entries[uid]
	if e == nil {
		return // it existed only briefly
	}
	r.count(e, -1)
	r.leave(e)
	r.loosen(e)
	delete(r.entries, uid)
	delete(r.soon, e)
	delete(r.unsettled, e)
	delete(r.failed, e)
	e.facts, e.gone = facts{}, true // remaining pointers to the entry must not keep the pod
	r.claims.stale = true
	if len(r.order)+len(r.loose) > 2*len(r.entries)+maxPodsPerReconcile {
		r.sort()
	}
}

func keep(set map[*entry]struct{}, e *entry, is bool) {
	if is {
		set[e] = struct{}{}
	} else {
		delete(set, e)
	}
}

// count adds an entry to the sums if by is 1, or removes it if by is -1.
func (r *roster) count(e *entry, by int) {
	s := &r.sums
	if !e.active {
		return
	}
	if s.revisions[e.revision] += by; s.revisions[e.revision] == 0 {
		delete(s.revisions, e.revision)
	}
	if e.stranger {
		s.unselected += by
	}
	t := &s.old
	if e.updated {
		t = &s.updated
		s.renewed.add(&e.facts, int32(by)) //nolint:gosec // 1 or -1
	}
	t.add(&e.member, by)
	s.all.add(&e.facts, int32(by)) //nolint:gosec // 1 or -1
}

// place returns the node of an active pod; "" if the pod is not active or has no node.
func (f *facts) place() string {
	if !f.active {
		return ""
	}
	return f.pod.Spec.NodeName
}

// leave and join move a pod, and mark all pods of its place to be sorted again.
func (r *roster) leave(e *entry) {
	at := e.place()
	if at == "" {
		return
	}
	left := slices.DeleteFunc(r.crowds[at], func(o *entry) bool { return o == e })
	if r.crowds[at] = left; len(left) == 0 {
		delete(r.crowds, at)
	}
	for _, o := range left {
		r.loosen(o)
	}
}

func (r *roster) join(e *entry) {
	at := e.place()
	if at == "" {
		return
	}
	for _, o := range r.crowds[at] {
		r.loosen(o)
	}
	r.crowds[at] = append(r.crowds[at], e)
}

func (r *roster) loosen(e *entry) {
	if !e.loose {
		e.loose = true
		r.loose = append(r.loose, e)
	}
}

// sort moves the loose entries to their place in order.
func (r *roster) sort() {
	if len(r.loose) == 0 {
		return
	}
	kept := slices.DeleteFunc(r.order, func(e *entry) bool { return e.loose })
	for _, e := range r.loose {
		e.loose, e.rank.Crowd = false, len(r.crowds[e.place()])
	}
	moved := slices.DeleteFunc(r.loose, func(e *entry) bool { return e.gone || !e.active })
	slices.SortFunc(moved, byRank)
	r.order, r.loose = merge(kept, moved), nil
}

func byRank(a, b *entry) int {
	if c := a.rank.Compare(b.rank); c != 0 {
		return c
	}
	return strings.Compare(a.name, b.name) // so that the order is deterministic
}

// merge merges two sorted lists.
func merge(a, b []*entry) []*entry {
	if len(b) == 0 {
		return a
	}
	out := make([]*entry, 0, len(a)+len(b))
	for _, e := range b {
		i, _ := slices.BinarySearchFunc(a, e, byRank)
		out, a = append(append(out, a[:i]...), e), a[i:]
	}
	return append(out, a...)
}

// members returns the active pods, sorted for deletion.
func (r *roster) members() []member {
	r.sort()
	out := make([]member, len(r.order))
	for i, e := range r.order {
		out[i] = e.member
	}
	return out
}

// unselected returns the active pods that the selector no longer matches.
func (r *roster) unselected() []*corev1.Pod {
	if r.sums.unselected == 0 {
		return nil
	}
	var out []*corev1.Pod
	for _, e := range r.entries {
		if e.active && e.stranger {
			out = append(out, e.pod)
		}
	}
	return out
}

// ids returns the instance IDs of all pods, also of ended ones. The value is the end of the
// grace period of a pod that is being deleted, otherwise zero.
func (r *roster) ids() map[string]time.Time {
	out := make(map[string]time.Time, len(r.entries))
	for _, e := range r.entries {
		var ends time.Time
		if e.pod.DeletionTimestamp != nil {
			ends = e.pod.DeletionTimestamp.Time
		}
		out[e.pod.Labels[v1beta1.LabelInstanceID]] = ends
	}
	return out
}

// failedPods returns the names of the updated pods that have failed, sorted.
func (r *roster) failedPods() []string {
	var out []string
	for e := range r.failed {
		out = append(out, e.name)
	}
	slices.Sort(out)
	return out
}
