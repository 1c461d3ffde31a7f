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

// roster holds the facts about the nodes of a DaemonSet, from one reconcile to the next. Facts
// stay valid until the node, its pods or the DaemonSet change, so a reconcile evaluates only
// changed nodes and then updates sums. All data comes from the objects: a new process builds it
// again.
type roster struct {
	basis   basis
	mark    podclient.Mark[*corev1.Pod]
	version int64 // of nodes, at the last sync
	pods    map[types.UID]*corev1.Pod
	byName  map[string]*corev1.Pod // without pods that are being deleted
	entries map[string]*entry      // by node name
	sums    sums
	sorted  []*place // by name; nil: must be rebuilt
	// soon are the nodes whose facts change by time alone, without an event.
	soon map[*entry]struct{}
	// unsettled are pods that are not being deleted and may have unfinished steps.
	unsettled map[types.UID]*corev1.Pod
}

// basis is the input of all facts, apart from nodes and pods. If it changes, all facts are void.
type basis struct {
	generation, specs int64
	updated, history  string // names of revisions
}

// entry is a node with its pods.
type entry struct {
	facts
	is   *corev1.Node // nil: the node does not exist
	pods []*corev1.Pod
}

// facts are the state of a node and its pods in the DaemonSet.
type facts struct {
	place
	// ready: a pod is ready, but perhaps not long enough to be available.
	ready bool
	// failed: the updated pod has failed, or had and is not available since.
	failed bool
	// due is when to evaluate the node again without a change; zero means never.
	due time.Time
}

func newRoster() *roster {
	return &roster{
		pods: map[types.UID]*corev1.Pod{}, byName: map[string]*corev1.Pod{}, entries: map[string]*entry{}, soon: map[*entry]struct{}{},
		unsettled: map[types.UID]*corev1.Pod{}, sums: sums{revisions: map[string]int{}},
	}
}

// sync applies the changes, and returns when to evaluate the next node again without a change; 0
// means never.
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

// at returns the entry of a node, and adds a missing one.
func (r *roster) at(node string) *entry {
	e := r.entries[node]
	if e == nil {
		e = &entry{facts: facts{place: place{node: node}}}
		r.entries[node], r.sorted = e, nil
	}
	return e
}

// put adds or updates a pod.
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

// drop removes a deleted pod, or the old state of a changed one.
func (r *roster) drop(uid types.UID, touched map[*entry]struct{}) {
	p := r.pods[uid]
	if p == nil {
		return // it existed only briefly, or is new
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

// judge evaluates a node again, and updates the sums.
func (r *roster) judge(e *entry, judge func(*entry) facts) {
	r.sums.add(&e.facts, -1)
	is := judge(e)
	is.failed = is.failed || e.failed && is.updated != "" && is.updated == e.updated && !is.updatedAvailable
	e.facts = is
	r.sums.add(&e.facts, 1)
	delete(r.soon, e)
	if !e.due.IsZero() {
		r.soon[e] = struct{}{}
	}
	if e.is == nil && len(e.pods) == 0 { // its facts are empty as well
		delete(r.entries, e.node)
		r.sorted = nil
	}
}

// places returns all places, by name.
func (r *roster) places() []*place {
	if r.sorted == nil {
		r.sorted = make([]*place, 0, len(r.entries))
		for _, name := range slices.Sorted(maps.Keys(r.entries)) {
			r.sorted = append(r.sorted, &r.entries[name].place)
		}
	}
	return r.sorted
}

// sums are the counts of all nodes.
type sums struct {
	// running nodes should run a pod; filled of them have one. An empty node can get a pod.
	running, filled, empty int
	// reachable nodes should run a pod and are selected; renewed of them have a pod of the
	// newest revision, and renewedAvailable an available one.
	reachable, renewed, renewedAvailable int
	// failed are those of them whose updated pod has failed, and behind those that have only a pod of
	// another revision.
	failed, behind int
	// olds have a pod of another revision. On poor ones that pod is not available. Surging ones
	// also have a pod of the newest revision.
	olds, poor, surging int
	// crowded have a pod that is deleted whatever the strategy.
	crowded int
	// updated, ready and available nodes should run a pod, and have one in that state.
	// misscheduled should not run a pod, but have one.
	updated, ready, available, misscheduled int

	revisions map[string]int // number of pods, by hash
}

// add adds a node to the sums if by is 1, or removes it if by is -1.
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
		{&s.renewedAvailable, f.runs && f.selected && f.updatedAvailable},
		{&s.behind, f.runs && f.selected && f.old != "" && f.updated == ""},
		{&s.failed, f.runs && f.selected && f.failed},
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

// failedPods returns the names of the updated pods that have failed, sorted.
func (r *roster) failedPods() []string {
	if r.sums.failed == 0 {
		return nil
	}
	var out []string
	for _, e := range r.entries {
		if e.failed && e.runs && e.selected {
			out = append(out, e.updated)
		}
	}
	slices.Sort(out)
	return out
}
