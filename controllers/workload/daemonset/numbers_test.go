package daemonset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/batch/batchtest"
)

// A node runs a pod where its template, its taints and its affinity let it, and keeps
// one that it has for longer.
func TestEligible(t *testing.T) {
	t.Parallel()
	taint := func(key string, effect corev1.TaintEffect) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"pool": "gpu"}}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Effect: effect}}}}
	}
	tolerates := func(key string) corev1.PodSpec {
		return corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}}
	}
	for name, c := range map[string]struct {
		why         string
		node        *corev1.Node
		spec        corev1.PodSpec
		runs, stays bool
	}{
		"Any":           {"Nothing speaks against it.", &corev1.Node{}, corev1.PodSpec{}, true, true},
		"Selected":      {"It has the label.", taint("", ""), corev1.PodSpec{NodeSelector: map[string]string{"pool": "gpu"}}, true, true},
		"NotSelected":   {"It has another one.", taint("", ""), corev1.PodSpec{NodeSelector: map[string]string{"pool": "cpu"}}, false, false},
		"Named":         {"It is another node.", taint("", ""), corev1.PodSpec{NodeName: "b"}, false, false},
		"NoSchedule":    {"No new ones.", taint("own", corev1.TaintEffectNoSchedule), corev1.PodSpec{}, false, true},
		"NoExecute":     {"None at all.", taint("own", corev1.TaintEffectNoExecute), corev1.PodSpec{}, false, false},
		"Prefer":        {"It is only a wish.", taint("own", corev1.TaintEffectPreferNoSchedule), corev1.PodSpec{}, true, true},
		"Tolerated":     {"It says that it lives with it.", taint("own", corev1.TaintEffectNoExecute), tolerates("own"), true, true},
		"Unschedulable": {"A cordoned node needs its agents.", taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), corev1.PodSpec{}, true, true},
		"NotReady":      {"So does one that isn't ready.", taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), corev1.PodSpec{}, true, true},
		"NoNetwork":     {"What needs a network waits for it.", taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule), corev1.PodSpec{}, false, true},
		"HostNetwork":   {"What makes the network doesn't.", taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule), corev1.PodSpec{HostNetwork: true}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if runs, stays := newFit(&corev1.PodTemplateSpec{Spec: c.spec}).eligible(c.node); runs != c.runs || stays != c.stays {
				t.Errorf("%s It runs %v and stays %v", c.why, runs, stays)
			}
		})
	}
}

// machine is a DaemonSet with its nodes, without a cluster.
type machine struct {
	want   want
	places []*place
	born   int
	beside bool // a pod was created beside one on its way out
	wrong  bool // sums said that there was nothing to do, and there was

	revision int // the newest
	batches  *v1beta1.UpdateBatches
	status   *v1beta1.BatchStatus
	released string
	failed   map[string]bool // updated pods that can't run
	overlap  string          // a batch began before the one before it served
}

func (m *machine) sums() *sums {
	var s sums
	for _, at := range m.places {
		s.add(&facts{place: *at, failed: at.updated != "" && !at.updatedAvailable && m.failed[at.updated]}, 1)
	}
	return &s
}

// divide does what a reconcile does, and reports whether a batch has begun.
func (m *machine) divide() bool {
	s, was := m.sums(), m.status
	var failed []string
	for _, at := range m.places {
		if at.runs && at.selected && m.failed[at.updated] && !at.updatedAvailable {
			failed = append(failed, at.updated)
		}
	}
	before := ""
	if s.olds > 0 {
		before = "r"
	}
	var d batch.Decision
	m.want, d = m.want.divide(m.batches, was, batch.Update{Revision: fmt.Sprint("r", m.revision), Before: before, Paused: !m.want.moves, Released: m.released, Now: time.Unix(1e9, 0)}, s, failed)
	m.status = d.Status
	if was == nil || m.status == nil || was.Revision != m.status.Revision || was.Number == m.status.Number {
		return m.status != nil && (was == nil || was.Revision != m.status.Revision || was.Reason == v1beta1.BatchDone && m.status.Reason != was.Reason)
	}
	if ends := batch.Ends(m.batches.Sizes, s.reachable); was.Reason != v1beta1.BatchDone && was.Sizes == m.status.Sizes && int(was.Number) <= len(ends) && s.renewedAvailable < ends[was.Number-1] {
		m.overlap = fmt.Sprintf("batch %s follows %s: %+v", m.status.Batch, was.Batch, s)
	}
	return true
}

func (m *machine) at(node string) *place {
	return m.places[slices.IndexFunc(m.places, func(p *place) bool { return p.node == node })]
}

func (m *machine) String() string {
	var out []string
	for _, p := range m.places {
		out = append(out, fmt.Sprintf("%+v", *p))
	}
	return strings.Join(out, ", ")
}

func (m *machine) available() int {
	n := 0
	for _, p := range m.places {
		if p.runs && (p.oldAvailable || p.updatedAvailable) {
			n++
		}
	}
	return n
}

func (m *machine) having() (pods, surging int) {
	for _, p := range m.places {
		if p.old != "" || p.updated != "" {
			pods++
		}
		if p.old != "" && p.updated != "" {
			surging++
		}
	}
	return pods, surging
}

// reconcile does what is decided, and reports whether that was anything.
func (m *machine) reconcile() bool {
	own := m.want
	defer func() { m.want = own }()
	began := m.divide()
	p := m.want.decide(m.places)
	m.wrong = m.wrong || m.want.idle(m.sums()) && len(p.create)+len(p.remove)+len(p.update) > 0
	for _, name := range p.remove {
		for _, at := range m.places {
			switch name {
			case at.old:
				at.old, at.oldAvailable, at.occupied = "", false, true
			case at.updated:
				at.updated, at.updatedAvailable, at.occupied = "", false, true
			}
		}
	}
	if m.status != nil && m.status.Failed > 1 && m.status.Reason != v1beta1.BatchDone && len(p.update) > 0 {
		m.overlap = "pods are updated although too many have failed"
	}
	for _, name := range p.update {
		for _, at := range m.places {
			if at.old == name {
				at.updated, at.old, at.oldAvailable, at.updatedAvailable = at.old, "", false, false
			}
		}
	}
	for _, node := range p.create {
		m.born++
		m.beside = m.beside || m.at(node).occupied
		m.at(node).updated = fmt.Sprint("pod", m.born)
	}
	return began || len(p.create)+len(p.remove)+len(p.update) > 0
}

// Whatever users, kubelets and chance do: we take no more nodes' pods out of service
// than allowed, run no more beside each other than allowed, and when they leave us
// alone it ends as wanted.
func TestRollouts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		inPlace := rapid.Bool().Draw(rt, "in place")
		m := &machine{want: want{
			maxUnavailable: rapid.IntRange(0, 3).Draw(rt, "maxUnavailable"), maxSurge: rapid.IntRange(0, 3).Draw(rt, "maxSurge"), maxPodsPerReconcile: rapid.IntRange(1, 20).Draw(rt, "burst"), moves: true,
		}, failed: map[string]bool{}}
		if m.want.maxUnavailable+m.want.maxSurge == 0 {
			m.want.maxUnavailable = 1
		}
		for i := range rapid.IntRange(1, 10).Draw(rt, "nodes") {
			m.places = append(m.places, &place{node: fmt.Sprint("node", i), runs: true, stays: true, selected: true, inPlace: inPlace})
		}
		any := func(rt *rapid.T) *place { return m.places[rapid.IntRange(0, len(m.places)-1).Draw(rt, "node")] }
		work := func(rt *rapid.T) bool {
			before, nodes := m.available(), 0
			_, surging := m.having()
			for _, p := range m.places {
				if p.runs {
					nodes++
				}
			}
			did := m.reconcile()
			if now := m.available(); now < before && now < nodes-m.want.maxUnavailable {
				rt.Fatalf("%d available nodes became %d of %d, of which %d may be unavailable: %s", before, now, nodes, m.want.maxUnavailable, m)
			}
			if m.overlap != "" {
				rt.Fatalf("%s: %s", m.overlap, m)
			}
			if m.wrong {
				rt.Fatalf("by its sums there is nothing to do: %+v, %s", m.want, m)
			}
			if m.beside {
				rt.Fatalf("a node got a pod before its last one had gone: %s", m)
			}
			if _, now := m.having(); now > surging && now > m.want.maxSurge {
				rt.Fatalf("%d nodes run two pods, %d may", now, m.want.maxSurge)
			}
			return did
		}
		rt.Repeat(map[string]func(*rapid.T){
			"reconcile": func(rt *rapid.T) { work(rt) },
			"ready": func(rt *rapid.T) {
				p := any(rt)
				p.oldAvailable, p.updatedAvailable = p.old != "", p.updated != ""
			},
			"unready":   func(rt *rapid.T) { p := any(rt); p.oldAvailable, p.updatedAvailable = false, false },
			"lost":      func(rt *rapid.T) { p := any(rt); p.old, p.oldAvailable = "", false },
			"leaves":    func(rt *rapid.T) { any(rt).occupied = true },
			"left":      func(rt *rapid.T) { any(rt).occupied = false },
			"tainted":   func(rt *rapid.T) { p := any(rt); p.runs = !p.runs; p.stays = p.runs || rapid.Bool().Draw(rt, "stays") },
			"partition": func(rt *rapid.T) { m.want.partition = rapid.IntRange(0, len(m.places)).Draw(rt, "partition") },
			"pause":     func(*rapid.T) { m.want.moves = !m.want.moves },
			"select":    func(rt *rapid.T) { p := any(rt); p.selected = !p.selected },
			"fail":      func(rt *rapid.T) { m.failed[any(rt).updated] = true },
			"recover":   func(*rapid.T) { clear(m.failed) },
			"divide":    func(rt *rapid.T) { m.batches = batchtest.Draw(rt) },
			"forget":    func(*rapid.T) { m.status = nil },
			"next batch": func(*rapid.T) {
				if m.status != nil {
					m.released = batch.Release(m.status, m.status.Number+1)
				}
			},
			"release": func(*rapid.T) { // of another revision: no pod has it yet
				m.revision++
				for _, p := range m.places {
					if p.old == "" {
						p.old, p.oldAvailable, p.updated, p.updatedAvailable = p.updated, p.updatedAvailable, "", false
					}
				}
			},
		})
		m.want.moves, m.want.partition = true, 0
		clear(m.failed)
		if m.batches != nil {
			m.batches.Auto = true
		}
		for _, p := range m.places {
			p.selected = true
		}
		for range 200 {
			for steps := 0; work(rt); steps++ {
				if steps > 100 {
					rt.Fatalf("it finds no end: %+v, %s", m.want, m)
				}
			}
			for _, p := range m.places {
				p.oldAvailable, p.updatedAvailable, p.occupied = p.old != "", p.updated != "", false
			}
			if !work(rt) {
				break
			}
		}
		for _, p := range m.places {
			if p.runs && (p.updated == "" || p.old != "") || !p.stays && p.old+p.updated != "" {
				rt.Fatalf("in the end: %+v", p)
			}
		}
	})
}

// Those nodes come to the new revision that are selected, less the partition: those
// that have come already, then those that have none, then those whose pod isn't
// available, then the others.
func TestReach(t *testing.T) {
	t.Parallel()
	places := []*place{
		{node: "a", runs: true, selected: true, old: "1", oldAvailable: true},
		{node: "b", runs: true, selected: true, old: "2"},
		{node: "c", runs: true, selected: true, updated: "3"},
		{node: "d", runs: true, old: "4", oldAvailable: true},
		{node: "e", selected: true, old: "5", oldAvailable: true},
		{node: "f", runs: true, selected: true, old: "6", oldAvailable: true},
		{node: "g", runs: true, selected: true},
	}
	for partition, want := range map[int][]string{
		0: {"c", "g", "b", "a", "f"}, 1: {"c", "g", "b", "a", "f"}, 2: {"c", "g", "b", "a"}, 3: {"c", "g", "b"}, 4: {"c", "g"}, 5: {"c"}, 6: nil,
	} {
		var got []string
		for _, at := range with(partition).reach(places) {
			got = append(got, at.node)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("partition %d: -want +got:\n%s", partition, diff)
		}
	}
}

// In batches, a node whose pod can't go comes last: it may be dead, and the batch would never end.
func TestReachInBatches(t *testing.T) {
	t.Parallel()
	var places []*place
	for _, node := range []string{"a", "b", "c", "d"} {
		places = append(places, &place{node: node, runs: true, selected: true, old: node, oldAvailable: node != "a", occupied: node == "a"})
	}
	for divided, first := range map[bool]string{false: "a", true: "b"} {
		w := want{partition: 3, divided: divided}
		if reach := w.reach(places); len(reach) != 1 || reach[0].node != first {
			t.Errorf("divided %v: %+v", divided, reach)
		}
	}
}

// One look creates, deletes and updates no more than burstReplicas says, which may be a
// percentage of the nodes that run a pod; one at least, or nothing would ever happen.
func TestBurstReplicas(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		burst *intstr.IntOrString
		most  int
	}{
		"Default": {nil, 250}, "Number": {new(intstr.FromInt32(7)), 7}, "Percentage": {new(intstr.FromString("2%")), 8}, "None": {new(intstr.FromInt32(0)), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := &v1beta1.DaemonSet{Spec: v1beta1.DaemonSetSpec{BurstReplicas: c.burst}}
			set.Spec.UpdateStrategy.RollingUpdate = &v1beta1.DaemonSetRollingUpdateStrategy{MaxUnavailable: new(intstr.FromString("100%"))}
			w, err := newWant(set, 400)
			if err != nil {
				t.Fatal(err)
			}
			for what, at := range map[string]place{
				"create": {runs: true, stays: true, selected: true}, "delete": {old: "pod"}, "update": {runs: true, stays: true, selected: true, old: "pod", oldAvailable: true, inPlace: true},
			} {
				var places []*place
				for i := range 400 {
					one := at
					one.node = fmt.Sprint("node", i)
					places = append(places, &one)
				}
				p := w.decide(places)
				if n := len(p.create) + len(p.remove) + len(p.update); n != c.most {
					t.Errorf("%s: %d pods, and not %d", what, n, c.most)
				}
			}
		})
	}
}

func with(partition int) want { return want{partition: partition} }

// Where creation is progressive the partition is how many nodes have no pod of the newest
// revision: none, at first; after another image they may have one of before. Whoever lost
// that to its replacement gets one.
func TestProgressiveReplaces(t *testing.T) {
	t.Parallel()
	m := &machine{want: want{maxUnavailable: 2, maxPodsPerReconcile: 100, moves: true, progressive: true, partition: 7}}
	for i := range 10 {
		m.places = append(m.places, &place{node: fmt.Sprint("node", i), runs: true, stays: true, selected: true, old: fmt.Sprint("old", i), oldAvailable: true})
	}
	m.places[9].old, m.places[9].oldAvailable = "", false // it has none yet
	for range 20 {
		for m.reconcile() {
		}
		for _, p := range m.places {
			p.oldAvailable, p.updatedAvailable, p.occupied = p.old != "", p.updated != "", false
		}
	}
	pods, _ := m.having()
	updated := 0
	for _, p := range m.places {
		if p.updated != "" {
			updated++
		}
	}
	if pods != 10 || updated != 3 {
		t.Errorf("%d nodes have a pod, %d of them the newest, of 10 and 3: %s", pods, updated, m)
	}
}

// Where creation is progressive, as many nodes stay without a pod as the partition says.
func TestProgressive(t *testing.T) {
	t.Parallel()
	m := &machine{want: want{maxUnavailable: 1, maxPodsPerReconcile: 100, moves: true, progressive: true, partition: 3}}
	for i := range 5 {
		m.places = append(m.places, &place{node: fmt.Sprint("node", i), runs: true, stays: true, selected: true})
	}
	for _, step := range []struct{ partition, pods int }{{5, 0}, {3, 2}, {4, 2}, {1, 4}, {0, 5}} {
		m.want.partition = step.partition
		for m.reconcile() {
		}
		if pods, _ := m.having(); pods != step.pods {
			t.Errorf("partition %d: %d nodes have a pod, want %d", step.partition, pods, step.pods)
		}
	}
}
