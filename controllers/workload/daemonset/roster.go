package daemonset

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// roster is what one look at a DaemonSet leaves to the next. What a node is to its
// DaemonSet holds until the node, its pods or the DaemonSet change, so a look judges the
// nodes on which something did; sums follow. It holds nothing that isn't in the objects:
// a process that starts anew makes it again.
type roster struct {
	basis   basis
	mark    podclient.Mark[*corev1.Pod]
	version int64 // of the nodes
	pods    map[types.UID]*corev1.Pod
	byName  map[string]*corev1.Pod // those that aren't on their way out
	entries map[string]*entry      // by name of the node
	sums    sums
	sorted  []*place // by name; nil: make it again
	// soon become others when time passes, and nobody says so.
	soon map[*entry]struct{}
	// unsettled aren't on their way out, and may be in the middle of something.
	unsettled map[types.UID]*corev1.Pod
}

// basis is what all that is known of nodes depends on, beside them and their pods.
type basis struct {
	generation       int64
	updated, history string // names of revisions
}

// entry is a node with what it has.
type entry struct {
	facts
	is   *corev1.Node // nil: it has gone
	pods []*corev1.Pod
}

// facts are what a node with its pods is to its DaemonSet.
type facts struct {
	place
	// ready: its pod serves, be it not for long enough to be available.
	ready bool
	// due is when it is to be judged again though nothing changes; zero: never.
	due time.Time
}

func newRoster() *roster {
	return &roster{
		pods: map[types.UID]*corev1.Pod{}, byName: map[string]*corev1.Pod{}, entries: map[string]*entry{}, soon: map[*entry]struct{}{},
		unsettled: map[types.UID]*corev1.Pod{}, sums: sums{revisions: map[string]int{}},
	}
}

// sync takes in what changed, and returns when the next node is to be judged again; 0:
// when it or its pods change.
func (r *roster) sync(b basis, since func(*podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod], all *nodes, judge func(*entry) facts, now time.Time) time.Duration {
	if b != r.basis {
		r.basis, r.mark = b, podclient.Mark[*corev1.Pod]{}
	}
	changes := since(&r.mark)
	if changes.Anew {
		fresh := newRoster()
		fresh.basis, fresh.mark = r.basis, r.mark
		*r = *fresh
	}
	touched := map[*entry]struct{}{}
	for _, uid := range changes.Gone {
		r.drop(uid, touched)
	}
	for _, p := range changes.Are {
		r.put(p, touched)
	}
	r.version = all.since(r.version, func(is *corev1.Node) {
		e := r.at(is.Name)
		e.is = is
		touched[e] = struct{}{}
	}, func(there func(string) bool) {
		for name, e := range r.entries {
			if e.is != nil && !there(name) {
				e.is = nil
				touched[e] = struct{}{}
			}
		}
	})
	for e := range r.soon {
		if !now.Before(e.due) {
			touched[e] = struct{}{}
		}
	}
	for e := range touched {
		r.judge(e, judge)
	}
	var after time.Duration
	for e := range r.soon {
		if left := e.due.Sub(now); after == 0 || left < after {
			after = left
		}
	}
	return after
}

// at is the entry of a node.
func (r *roster) at(node string) *entry {
	e := r.entries[node]
	if e == nil {
		e = &entry{facts: facts{place: place{node: node}}}
		r.entries[node], r.sorted = e, nil
	}
	return e
}

// put takes in a pod as it is now.
func (r *roster) put(p *corev1.Pod, touched map[*entry]struct{}) {
	r.drop(p.UID, touched)
	e := r.at(nodeOf(p))
	e.pods = append(e.pods, p)
	touched[e] = struct{}{}
	r.pods[p.UID] = p
	if p.DeletionTimestamp == nil {
		r.byName[p.Name], r.unsettled[p.UID] = p, p
		r.sums.revisions[hashOf(p)]++
	}
}

// drop takes in that a pod has gone, or isn't as it was.
func (r *roster) drop(uid types.UID, touched map[*entry]struct{}) {
	p := r.pods[uid]
	if p == nil {
		return // it came and went, or is new
	}
	e := r.at(nodeOf(p))
	e.pods = slices.DeleteFunc(e.pods, func(o *corev1.Pod) bool { return o.UID == uid })
	touched[e] = struct{}{}
	delete(r.pods, uid)
	delete(r.unsettled, uid)
	if p.DeletionTimestamp != nil {
		return
	}
	if r.byName[p.Name] == p {
		delete(r.byName, p.Name)
	}
	if r.sums.revisions[hashOf(p)]--; r.sums.revisions[hashOf(p)] == 0 {
		delete(r.sums.revisions, hashOf(p))
	}
}

func hashOf(p *corev1.Pod) string { return revision.Hash(p.Labels[revision.Label]) }

// judge has a node judged again.
func (r *roster) judge(e *entry, judge func(*entry) facts) {
	r.sums.add(&e.facts, -1)
	e.facts = judge(e)
	r.sums.add(&e.facts, 1)
	delete(r.soon, e)
	if !e.due.IsZero() {
		r.soon[e] = struct{}{}
	}
	if e.is == nil && len(e.pods) == 0 { // nor does it count for anything
		delete(r.entries, e.node)
		r.sorted = nil
	}
}

// places are those that there are, by name.
func (r *roster) places() []*place {
	if r.sorted == nil {
		r.sorted = make([]*place, 0, len(r.entries))
		for _, name := range slices.Sorted(maps.Keys(r.entries)) {
			r.sorted = append(r.sorted, &r.entries[name].place)
		}
	}
	return r.sorted
}

// sums are those of all nodes.
type sums struct {
	// running should run a pod, and filled ones of them have one; empty ones can be given
	// one.
	running, filled, empty int
	// reachable should run a pod and are selected, and renewed ones of them have one of
	// the newest revision.
	reachable, renewed int
	// olds have a pod of another revision, which isn't available in poor ones; surging ones
	// have one of the newest beside it.
	olds, poor, surging int
	// crowded have a pod that is to go whatever the strategy says.
	crowded int
	// updated, ready and available should run a pod, and have such a one; misscheduled
	// shouldn't, and have one.
	updated, ready, available, misscheduled int

	revisions map[string]int // pods that have them, by hash
}

// add adds what a node is to the sums, or takes it off: by 1 or -1.
func (s *sums) add(f *facts, by int) {
	has := f.old != "" || f.updated != ""
	for _, c := range [...]struct {
		n  *int
		is bool
	}{
		{&s.running, f.runs},
		{&s.filled, f.runs && has},
		{&s.empty, f.fillable()},
		{&s.olds, f.old != ""},
		{&s.poor, f.old != "" && !f.oldAvailable},
		{&s.surging, f.old != "" && f.updated != ""},
		{&s.crowded, len(f.leaving()) > 0},
		{&s.reachable, f.runs && f.selected},
		{&s.renewed, f.runs && f.selected && f.updated != ""},
		{&s.updated, f.runs && f.updated != ""},
		{&s.misscheduled, !f.runs && has},
		{&s.ready, f.runs && f.ready},
		{&s.available, f.runs && f.serves()},
	} {
		if c.is {
			*c.n += by
		}
	}
}
