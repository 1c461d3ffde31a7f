package statefulset

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/controllers/workload/podclient"
)

// roster holds the facts about the pods of a StatefulSet, from one reconcile to the next. Facts stay
// valid until the pod, its claims or the StatefulSet change. All data comes from the objects: a new
// process builds it again.
type roster struct {
	basis   basis
	mark    podclient.Mark[*corev1.Pod]
	entries map[types.UID]*entry
	// order has the pods by ordinal.
	order  []*entry
	sums   sums
	counts counts
	// claims has for each template how many claims follow it.
	claims []claimCounts
	// revisions has the number of pods, by hash.
	revisions map[string]int
	// soon are the pods that become available by time alone, without an event. unsettled are live
	// pods that may have unfinished steps. unclaimed are pods whose claims are missing, or have other
	// owners than they should.
	soon, unsettled, unclaimed map[*entry]struct{}
	// unselected are active pods that are not of the StatefulSet any more, and failed are updated pods
	// that have failed.
	unselected, failed map[*entry]struct{}
}

// basis is the input of all facts, apart from the pods and their claims. If it changes, all facts are
// void.
type basis struct {
	generation, specs         int64
	current, updated, history string // names of revisions
	partition                 int
	ahead                     string // positions
}

// entry is a pod. The entry stays the same while the pod changes.
type entry struct{ facts }

// facts are the state of a pod in its StatefulSet.
type facts struct {
	member
	pod *corev1.Pod
	// stranger: the selector no longer matches the pod, or its name has no ordinal.
	stranger bool
	// current: the pod has the current revision. serving: it is available, whatever its claims.
	current, serving bool
	// started: the pod has a phase. revision is its hash.
	started  bool
	revision string
	// failed: the pod is updated and has failed, or had and is not available since.
	failed bool
	// due is when the pod becomes available by time alone; zero means never.
	due time.Time
	// claims are the facts about its claims, by template.
	claims []claimFacts
}

// counts are the numbers of pods in the status.
type counts struct{ replicas, ready, available, current, updated, updatedReady, updatedAvailable int32 }

// add adds a pod to the counts if by is 1, or removes it if by is -1.
func (c *counts) add(f *facts, by int32) {
	if !f.started {
		return
	}
	c.replicas += by
	for _, n := range []struct {
		count *int32
		is    bool
	}{
		{&c.ready, f.ready},
		{&c.available, f.serving},
		{&c.current, f.current && !f.terminating},
		{&c.updated, f.updated && !f.terminating},
		{&c.updatedReady, f.updated && f.ready && !f.terminating},
		{&c.updatedAvailable, f.updated && f.serving},
	} {
		if n.is {
			*n.count += by
		}
	}
}

func newRoster() *roster {
	return &roster{
		entries: map[types.UID]*entry{}, revisions: map[string]int{}, soon: map[*entry]struct{}{}, unsettled: map[*entry]struct{}{},
		unclaimed: map[*entry]struct{}{}, unselected: map[*entry]struct{}{}, failed: map[*entry]struct{}{},
	}
}

// rosterInput is what a roster reads: the wanted state, and the changes since the last reconcile.
type rosterInput struct {
	basis basis
	want  want
	since func(*podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod]
	judge func(*corev1.Pod) facts
	// claimed are the ordinals whose claims have changed.
	claimed []int
	now     time.Time
}

// sync applies the changes. It returns when the next pod becomes available by time alone; 0 if there
// is none.
func (r *roster) sync(in rosterInput) time.Duration {
	if in.basis != r.basis {
		r.basis, r.mark = in.basis, podclient.Mark[*corev1.Pod]{}
	}
	changes := in.since(&r.mark)
	if changes.Anew {
		fresh := newRoster()
		fresh.basis, fresh.mark = r.basis, r.mark
		*r = *fresh
	}
	for _, uid := range changes.Gone {
		r.drop(uid, in.want)
	}
	for _, p := range changes.Are {
		r.put(p, in)
	}
	for _, ordinal := range in.claimed {
		if e := r.at(ordinal); e != nil {
			r.put(e.pod, in)
		}
	}
	var after time.Duration
	for e := range r.soon {
		if !in.now.Before(e.due) {
			r.put(e.pod, in)
		}
		if left := e.due.Sub(in.now); left > 0 && (after == 0 || left < after) {
			after = left
		}
	}
	return after
}

// put adds or updates a pod.
func (r *roster) put(p *corev1.Pod, in rosterInput) {
	is := in.judge(p)
	e := r.entries[p.UID]
	if e != nil && e.stranger != is.stranger {
		r.drop(p.UID, in.want)
		e = nil
	}
	if e == nil {
		e = &entry{is}
		r.entries[p.UID] = e
		if !is.stranger {
			i, _ := slices.BinarySearchFunc(r.order, e, byOrdinal)
			r.order = slices.Insert(r.order, i, e)
		}
	} else {
		r.count(e, in.want, -1)
		is.failed = is.failed || e.failed && is.updated && !is.available && !is.terminating
		e.facts = is
	}
	r.count(e, in.want, 1)
	keep(r.soon, e, !e.due.IsZero())
	keep(r.unsettled, e, e.live() && !e.stranger)
	keep(r.unclaimed, e, needsClaims(&e.facts))
	keep(r.unselected, e, e.stranger && e.live())
	keep(r.failed, e, e.failed && e.kept && !e.stranger)
}

// drop removes a deleted pod.
func (r *roster) drop(uid types.UID, w want) {
	e := r.entries[uid]
	if e == nil {
		return // it existed only briefly
	}
	r.count(e, w, -1)
	delete(r.entries, uid)
	if i := slices.Index(r.order, e); i >= 0 {
		r.order = slices.Delete(r.order, i, i+1)
	}
	for _, set := range []map[*entry]struct{}{r.soon, r.unsettled, r.unclaimed, r.unselected, r.failed} {
		delete(set, e)
	}
}

func byOrdinal(a, b *entry) int { return cmp.Compare(a.ordinal, b.ordinal) }

// at returns the pod of an ordinal; nil if there is none.
func (r *roster) at(ordinal int) *entry {
	i, found := slices.BinarySearchFunc(r.order, ordinal, func(e *entry, n int) int { return cmp.Compare(e.ordinal, n) })
	if !found {
		return nil
	}
	return r.order[i]
}

func keep(set map[*entry]struct{}, e *entry, is bool) {
	if is {
		set[e] = struct{}{}
	} else {
		delete(set, e)
	}
}

// count adds an entry to the sums if by is 1, or removes it if by is -1.
func (r *roster) count(e *entry, w want, by int) {
	if r.revisions[e.revision] += by; r.revisions[e.revision] == 0 {
		delete(r.revisions, e.revision)
	}
	if e.stranger {
		return
	}
	r.sums.add(&e.member, w, by)
	r.counts.add(&e.facts, int32(by)) //nolint:gosec // 1 or -1
	if len(r.claims) < len(e.claims) {
		r.claims = append(r.claims, make([]claimCounts, len(e.claims)-len(r.claims))...)
	}
	if e.kept {
		for i, c := range e.claims {
			r.claims[i].add(c, int32(by)) //nolint:gosec // 1 or -1
		}
	}
}

// members returns the pods by ordinal.
func (r *roster) members() []member {
	out := make([]member, len(r.order))
	for i, e := range r.order {
		out[i] = e.member
	}
	return out
}

// released returns the active pods that are not of the StatefulSet any more.
func (r *roster) released() []*corev1.Pod {
	var out []*corev1.Pod
	for e := range r.unselected {
		out = append(out, e.pod)
	}
	return out
}

// failedPods returns the names of the updated pods that have failed, the highest ordinal first.
func (r *roster) failedPods() []string {
	all := slices.SortedFunc(maps.Keys(r.failed), func(a, b *entry) int { return byOrdinal(b, a) })
	var out []string
	for _, e := range all {
		out = append(out, e.name)
	}
	return out
}
