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

// roster is what one look at a CloneSet leaves to the next. What a pod is to its
// CloneSet holds until one of the two changes, so a look judges those that changed; sums
// and order follow. It holds nothing that isn't in the objects: a process that starts
// anew makes it again.
type roster struct {
	basis   basis
	mark    podclient.Mark[*corev1.Pod]
	entries map[types.UID]*entry
	sums    sums
	// crowds are the active pods of each node.
	crowds map[string][]*entry
	// order has the active ones, those first that are missed least, but for those that
	// are in loose, whose place in it holds no more.
	order, loose []*entry
	// soon become others when time passes, and nobody says so.
	soon map[*entry]struct{}
	// unsettled are active, and may be in the middle of something.
	unsettled map[*entry]struct{}

	claims claims
}

// basis is what all that is known of pods depends on, beside the pods.
type basis struct {
	generation                int64
	current, updated, history string // names of revisions
}

// entry is a pod. It stays the same one while the pod changes.
type entry struct {
	facts
	loose, gone bool
}

// facts are what a pod is to its CloneSet.
type facts struct {
	member
	// active: it hasn't ended, and isn't on its way out.
	active bool
	// ready: it serves, be it not for long enough to be available.
	ready bool
	// stranger: the selector doesn't find it any more.
	stranger bool
	revision string // hash
	rank     podorder.Rank
	// due is when it becomes available by itself; zero: never.
	due time.Time
}

// sums are those of all pods.
type sums struct {
	old, updated tally
	all, renewed served // of both revisions, and of the updated one
	strangers    int
	revisions    map[string]int // pods that have them, by hash
}

// served are pods, and how far they are.
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

func newRoster() *roster {
	return &roster{
		entries: map[types.UID]*entry{}, crowds: map[string][]*entry{}, soon: map[*entry]struct{}{}, unsettled: map[*entry]struct{}{},
		sums: sums{revisions: map[string]int{}},
	}
}

// sync takes in what changed, as judge has it, and returns when the next pod becomes
// another one by itself; 0: none.
func (r *roster) sync(b basis, since func(*podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod], judge func(*corev1.Pod) facts, now time.Time) time.Duration {
	if b != r.basis {
		r.basis, r.mark = b, podclient.Mark[*corev1.Pod]{}
	}
	changes := since(&r.mark)
	if changes.Anew {
		fresh := newRoster()
		fresh.basis, fresh.mark, fresh.claims = r.basis, r.mark, r.claims
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

// put takes in a pod as it is now.
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
}

// drop takes in that a pod has gone.
func (r *roster) drop(uid types.UID) {
	e := r.entries[uid]
	if e == nil {
		return // it came and went
	}
	r.count(e, -1)
	r.leave(e)
	r.loosen(e)
	delete(r.entries, uid)
	delete(r.soon, e)
	delete(r.unsettled, e)
	e.facts, e.gone = facts{}, true // whatever still points to it holds no pod
	r.claims.stale = true
	if len(r.order)+len(r.loose) > 2*len(r.entries)+burst {
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

// count adds what an entry is to the sums, or takes it off: by 1 or -1.
func (r *roster) count(e *entry, by int) {
	s := &r.sums
	if !e.active {
		return
	}
	if s.revisions[e.revision] += by; s.revisions[e.revision] == 0 {
		delete(s.revisions, e.revision)
	}
	if e.stranger {
		s.strangers += by
	}
	t := &s.old
	if e.updated {
		t = &s.updated
		s.renewed.add(&e.facts, int32(by)) //nolint:gosec // 1 or -1
	}
	t.add(&e.member, by)
	s.all.add(&e.facts, int32(by)) //nolint:gosec // 1 or -1
}

// place is where an active pod stands among others; "": nowhere.
func (f *facts) place() string {
	if !f.active {
		return ""
	}
	return f.pod.Spec.NodeName
}

// leave and join have those that share a pod's place ranked anew.
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

// sort puts those that are loose in their place.
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
	return strings.Compare(a.name, b.name) // so that two looks agree
}

// merge returns what two sorted lists have, sorted.
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

// members are the active pods, those first that are missed least.
func (r *roster) members() []member {
	r.sort()
	out := make([]member, len(r.order))
	for i, e := range r.order {
		out[i] = e.member
	}
	return out
}

// strangers are the active pods that the selector doesn't find any more.
func (r *roster) strangers() []*corev1.Pod {
	if r.sums.strangers == 0 {
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

// active reports whether a pod hasn't ended, and isn't on its way out.
func active(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// ids are those that pods have, also those that have ended: until when those that are
// deleted have time.
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
