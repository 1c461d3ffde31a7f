package statefulset

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/batch/batchtest"
	"github.com/keelson-io/keelson/controllers/workload/ordinal"
)

func reserve(of ...any) []intstr.IntOrString {
	var out []intstr.IntOrString
	for _, v := range of {
		switch v := v.(type) {
		case int:
			out = append(out, intstr.FromInt32(int32(v)))
		case string:
			out = append(out, intstr.FromString(v))
		}
	}
	return out
}

// A spec that cannot be followed is refused with the name of its field.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*v1beta1.StatefulSetSpec)
		want   string
	}{
		"Fits":             {func(*v1beta1.StatefulSetSpec) {}, ""},
		"NegativeStart":    {func(s *v1beta1.StatefulSetSpec) { s.Ordinals = &v1beta1.StatefulSetOrdinals{Start: -1} }, "spec.ordinals.start"},
		"NegativeReserved": {func(s *v1beta1.StatefulSetSpec) { s.ReserveOrdinals = reserve(3, -1) }, "spec.reserveOrdinals[1]"},
		"Text":             {func(s *v1beta1.StatefulSetSpec) { s.ReserveOrdinals = reserve("5") }, "spec.reserveOrdinals[0]"},
		"Backwards":        {func(s *v1beta1.StatefulSetSpec) { s.ReserveOrdinals = reserve("5-2") }, "spec.reserveOrdinals[0]"},
		"TooLarge":         {func(s *v1beta1.StatefulSetSpec) { s.ReserveOrdinals = reserve("0-99999999999") }, "spec.reserveOrdinals[0]"},
		"NoneLeft":         {func(s *v1beta1.StatefulSetSpec) { s.ReserveOrdinals = reserve(fmt.Sprint("0-", math.MaxInt32)) }, "ordinals"},
		"Order":            {func(s *v1beta1.StatefulSetSpec) { s.PodManagementPolicy = "Sometimes" }, "spec.podManagementPolicy"},
		"Type":             {func(s *v1beta1.StatefulSetSpec) { s.UpdateStrategy.Type = "Sometimes" }, "spec.updateStrategy.type"},
		"Claims":           {func(s *v1beta1.StatefulSetSpec) { s.VolumeClaimUpdateStrategy.Type = "Sometimes" }, "spec.volumeClaimUpdateStrategy.type"},
		"Retention": {func(s *v1beta1.StatefulSetSpec) {
			s.PersistentVolumeClaimRetentionPolicy = &v1beta1.ClaimRetentionPolicy{WhenScaled: "Sometimes"}
		}, "spec.persistentVolumeClaimRetentionPolicy.whenScaled"},
		"Policy": {func(s *v1beta1.StatefulSetSpec) {
			s.UpdateStrategy.RollingUpdate = &v1beta1.StatefulSetRollingUpdateStrategy{PodUpdatePolicy: "Sometimes"}
		}, "spec.updateStrategy.rollingUpdate.podUpdatePolicy"},
		"ManyInOrder": {func(s *v1beta1.StatefulSetSpec) {
			s.UpdateStrategy.RollingUpdate = &v1beta1.StatefulSetRollingUpdateStrategy{MaxUnavailable: new(intstr.FromInt32(2))}
		}, "spec.updateStrategy.rollingUpdate.maxUnavailable can only work with Parallel PodManagementPolicyType"},
		"UnorderedInOrder": {func(s *v1beta1.StatefulSetSpec) {
			s.UpdateStrategy.RollingUpdate = &v1beta1.StatefulSetRollingUpdateStrategy{UnorderedUpdate: &v1beta1.UnorderedUpdateStrategy{}}
		}, "unorderedUpdate can only work with Parallel"},
		"Percentage": {func(s *v1beta1.StatefulSetSpec) {
			s.PodManagementPolicy = appsv1.ParallelPodManagement
			s.UpdateStrategy.RollingUpdate = &v1beta1.StatefulSetRollingUpdateStrategy{MaxUnavailable: new(intstr.FromString("half"))}
		}, "spec.updateStrategy.rollingUpdate.maxUnavailable"},
		"Stranger": {func(s *v1beta1.StatefulSetSpec) { s.Template.Labels = nil }, "spec.selector"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := v1beta1.StatefulSetSpec{Selector: selector()}
			s.Template.Labels = map[string]string{"app": "db"}
			c.change(&s)
			err := check(&s)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// machine is a StatefulSet with its pods, without a cluster. A revision is a number; pods of a bad one
// never become ready.
type machine struct {
	want            want
	pods            map[int]*modelPod
	current, update int
	newest          int // the highest revision so far
	bad             map[int]bool
	inPlace         bool
	hooked, waits   map[int]bool // ordinals whose deletion, and whose update in place, a hook holds back
	size            int          // of the claims that the templates want
	sizes           map[int]int  // of the claims that there are, by ordinal: they are never lost
	own             int          // the partition of the spec; want has that of the batch, too
	batches         *v1beta1.UpdateBatches
	status          *v1beta1.BatchStatus
	released        string
}

type modelPod struct {
	revision                           int
	ready, soaking, ended, terminating bool // soaking: not ready for long enough
	marked, begun, preparing           bool
}

func (m *machine) members() []member {
	var out []member
	for _, n := range slices.Sorted(maps.Keys(m.pods)) {
		p := m.pods[n]
		is := member{
			name: fmt.Sprint("db-", n), ordinal: n, terminating: p.terminating, ended: p.ended, updated: p.revision == m.update, marked: p.marked,
			begun: p.begun, inPlace: m.inPlace && p.revision != m.update, ready: p.ready && !p.terminating && !p.ended,
			undersized: m.want.resize && m.sizes[n] < m.size,
		}
		is.preparing = p.preparing
		is.available = is.ready && !p.soaking && !p.begun && !p.preparing
		is.position, is.kept = m.want.ordinals.Position(n)
		if !is.live() || !is.kept {
			is.undersized = false
		}
		out = append(out, is)
	}
	return out
}

// populate draws a beginning in the middle: pods of several revisions, one of them bad, and some of
// ordinals that are not wanted.
func (m *machine) populate(rt *rapid.T) {
	m.newest, m.bad[2] = 3, true
	m.current, m.update = rapid.IntRange(1, 3).Draw(rt, "current"), rapid.IntRange(1, 3).Draw(rt, "update")
	for n := range rapid.IntRange(0, 10).Draw(rt, "pods") {
		p := &modelPod{revision: rapid.SampledFrom([]int{m.update, m.update, m.current, m.current, 1, 2, 3}).Draw(rt, "revision")}
		p.ready = !m.bad[p.revision] && rapid.IntRange(0, 3).Draw(rt, "ready") > 0
		p.soaking = p.ready && rapid.IntRange(0, 2).Draw(rt, "soaking") == 0
		p.marked = rapid.IntRange(0, 5).Draw(rt, "marked") == 0
		m.pods[n], m.sizes[n] = p, 1
	}
}

// release makes a revision that no pod has.
func (m *machine) release() {
	m.newest++
	m.update = m.newest
}

// available and ready count the wanted pods.
func (m *machine) available() (n int) { return m.count(func(p member) bool { return p.available }) }
func (m *machine) ready() (n int)     { return m.count(func(p member) bool { return p.ready }) }

func (m *machine) count(is func(member) bool) (n int) {
	for _, p := range m.members() {
		if p.kept && is(p) {
			n++
		}
	}
	return n
}

// reconcile does what is decided, and reports whether that was anything. problem is what must never
// be decided.
func (m *machine) reconcile() (did bool, problem string) {
	members := m.members()
	began, problem := m.divide(members)
	if problem != "" {
		return false, problem
	}
	s := m.sums(members)
	p := m.want.decide(members, func(waiting []member) []member {
		slices.SortStableFunc(waiting, func(a, b member) int {
			switch {
			case a.begun == b.begun:
				return a.ordinal%3 - b.ordinal%3 // some priority
			case a.begun:
				return -1
			}
			return 1
		})
		return waiting
	})
	removed := slices.Concat(p.ended, p.condemned, p.marked, p.replace)
	if m.want.idle(s) && len(removed)+len(p.create)+len(p.resize)+len(p.update) > 0 {
		return false, fmt.Sprintf("the sums %+v say that there is nothing to do, but %+v", s, p)
	}
	if problem := m.forbidden(members, p); problem != "" {
		return false, problem
	}
	for _, c := range p.create {
		if m.pods[c.ordinal] != nil {
			return false, fmt.Sprintf("a second pod of ordinal %d", c.ordinal)
		}
		m.pods[c.ordinal] = &modelPod{revision: m.update}
		if c.old {
			m.pods[c.ordinal].revision = m.current
		}
		if m.sizes[c.ordinal] == 0 {
			m.sizes[c.ordinal] = m.size
		}
		did = true
	}
	busy := map[int]bool{}
	for _, r := range removed {
		busy[r.ordinal] = true
		pod := m.pods[r.ordinal]
		if m.hooked[r.ordinal] {
			did = did || !pod.preparing
			pod.preparing = true
			continue
		}
		pod.terminating, did = true, true
	}
	for _, g := range p.resize {
		m.sizes[g.ordinal], did = m.size, true
	}
	for _, u := range p.update {
		busy[u.ordinal] = true
		pod := m.pods[u.ordinal]
		if m.waits[u.ordinal] {
			did = did || !pod.begun
			pod.begun = true
			continue
		}
		pod.revision, pod.ready, pod.begun, did = m.update, false, false, true
	}
	for n, pod := range m.pods { // what is called off
		if !busy[n] && (pod.begun || pod.preparing) {
			pod.begun, pod.preparing, did = false, false, true
		}
	}
	return did || began, ""
}

func (m *machine) sums(members []member) sums {
	var s sums
	for i := range members {
		s.add(&members[i], m.want, 1)
	}
	return s
}

// divide divides the update into batches. It reports whether a batch has begun or changed, and returns
// what is wrong with that.
func (m *machine) divide(members []member) (began bool, problem string) {
	d := divider{want: m.want, batches: m.batches, was: m.status, before: func() string { return fmt.Sprint(m.current) }, update: batch.Update{
		Revision: fmt.Sprint(m.update), Partition: m.own, Paused: m.want.paused, Released: m.released, Now: time.Unix(1e9, 0),
	}}
	d.want.partition, d.want.ahead, d.want.divided, d.want.stopped = m.own, nil, false, false
	w, decision := d.divide(func(w want) (sums, []string) {
		m.want = w
		return m.sums(members), m.failed()
	}, func() []member { return members })
	was := m.status
	m.want, m.status = w, decision.Status
	if was == nil || decision.Status == nil || was.Revision != decision.Status.Revision {
		return decision.Status != nil, ""
	}
	if was.From == "" && was.Reason != v1beta1.BatchDone { // the way back, which is not divided, also when it is scaled
		if decision.Partition > 0 {
			return false, fmt.Sprintf("%d pods wait in batch %s of the way back", decision.Partition, decision.Status.Batch)
		}
		return was.Number != decision.Status.Number || !slices.Equal(was.Ahead, decision.Status.Ahead), ""
	}
	if was.Number == decision.Status.Number || was.Reason == v1beta1.BatchDone || was.Sizes != decision.Status.Sizes {
		return !slices.Equal(was.Ahead, decision.Status.Ahead) || was.Reason == v1beta1.BatchDone && decision.Status.Reason != was.Reason, ""
	}
	if ends := batch.Ends(m.batches.Sizes, m.want.ordinals.Count()); int(was.Number) <= len(ends) {
		return true, m.overlap(members, ends[was.Number-1], was)
	}
	return true, "" // scaling has left fewer batches
}

// overlap returns what is wrong with a batch that begins after one that ends at a number of pods.
func (m *machine) overlap(members []member, end int, was *v1beta1.BatchStatus) string {
	serving := 0
	for _, p := range members {
		if p.kept && p.live() && p.updated && p.available {
			serving++
		}
	}
	if serving < end {
		return fmt.Sprintf("batch %d follows %s, and %d of its %d pods serve", m.status.Number, was.Batch, serving, end)
	}
	return ""
}

// failed returns the updated pods that can't run.
func (m *machine) failed() []string {
	var out []string
	for _, p := range m.members() {
		if p.updated && p.kept && p.live() && !p.ready && m.bad[m.update] {
			out = append(out, p.name)
		}
	}
	return out
}

// forbidden returns what a plan must not have.
func (m *machine) forbidden(members []member, p plan) string {
	w := m.want
	for _, c := range p.create {
		at, kept := w.ordinals.Position(c.ordinal)
		if !kept {
			return fmt.Sprintf("ordinal %d is not wanted", c.ordinal)
		}
		if !w.unordered && c.old != (w.stays(at) && !w.onDelete) {
			return fmt.Sprintf("position %d of partition %d gets the wrong revision", at, w.partition)
		}
		lower := 0
		for _, o := range members {
			if o.kept && o.available && o.position < at {
				lower++
			}
		}
		if w.ordered && (lower < at || len(p.create) > 1) {
			return fmt.Sprintf("ordinal %d is created before those below it are available", c.ordinal)
		}
	}
	if w.ordered && len(p.condemned) > 0 && (len(p.condemned) > 1 || m.available() < w.ordinals.Count()) {
		return fmt.Sprintf("%+v go at once, or while wanted ones are not available", p.condemned)
	}
	for _, top := range p.condemned {
		for _, o := range members {
			if w.ordered && !top.ready && !top.preparing && !o.kept && o.ordinal < top.ordinal && o.live() && o.updated && !o.ready {
				return fmt.Sprintf("%s goes before %s is ready", top.name, o.name)
			}
		}
	}
	for _, u := range slices.Concat(p.replace, p.update, p.resize) {
		switch {
		case w.paused || w.onDelete:
			return fmt.Sprintf("%s is updated although it is paused", u.name)
		case m.status != nil && m.status.Reason != v1beta1.BatchDone && m.status.From != "" && len(m.failed()) > 1: // but for the way back
			return fmt.Sprintf("%s is updated although two pods have failed", u.name)
		case w.stays(u.position), !w.unordered && u.position < m.own:
			return fmt.Sprintf("%s is updated although it is in the partition", u.name)
		}
	}
	for _, u := range p.replace {
		lower := 0
		for _, o := range members {
			if o.kept && o.available && o.position < u.position {
				lower++
			}
		}
		if w.ordered && lower < u.position {
			return fmt.Sprintf("%s is replaced, and would not be created again before those below it are available", u.name)
		}
	}
	for _, u := range slices.Concat(p.replace, p.update) {
		if u.updated {
			return fmt.Sprintf("%s is updated already", u.name)
		}
	}
	if w.unordered {
		old, updated := 0, 0
		for _, o := range members {
			switch {
			case !o.kept || !o.live():
			case o.updated:
				updated++
			default:
				old++
			}
		}
		// A batch may take broken pods instead of missing ones, as many as it has room for.
		if moves := len(p.replace) + len(p.update); moves > max(old-w.partition, 0) && (!w.divided || moves+updated > w.ordinals.Count()-w.partition) {
			return fmt.Sprintf("%d of %d old pods move, and %d are to stay", moves, old, w.partition)
		}
	}
	return ""
}

// Whatever users, kubelets and chance do: no more pods than allowed are out of service because of us,
// an ordinal has one pod, the partition stays, and when they leave us alone it ends as wanted, also
// after a revision whose pods never become ready.
func TestRollouts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		yes := func(what string) bool { return rapid.Bool().Draw(rt, what) }
		m := &machine{
			pods: map[int]*modelPod{}, bad: map[int]bool{}, hooked: map[int]bool{}, waits: map[int]bool{}, sizes: map[int]int{}, size: 1, current: 1, update: 1, newest: 1,
			inPlace: yes("in place"), want: want{ordered: yes("ordered"), maxUnavailable: 1, resize: yes("resize"), toCreate: math.MaxInt},
		}
		if !m.want.ordered {
			m.want.unordered = yes("unordered")
			m.want.maxUnavailable = rapid.IntRange(1, 4).Draw(rt, "maxUnavailable")
			m.want.toCreate = rapid.IntRange(1, 12).Draw(rt, "to create")
		}
		scale := func(rt *rapid.T) {
			s := v1beta1.StatefulSetSpec{Replicas: new(int32(rapid.IntRange(0, 8).Draw(rt, "replicas"))), Ordinals: &v1beta1.StatefulSetOrdinals{Start: int32(rapid.IntRange(0, 2).Draw(rt, "start"))}} //nolint:gosec // few
			s.ReserveOrdinals = reserve(rapid.SampledFrom([]any{"1-2", 0, 3, "4-6", "2-2", 20}).Draw(rt, "reserved"))
			o, err := ordinal.Parse(&s)
			if err != nil {
				rt.Fatal(err)
			}
			m.want.ordinals = o
		}
		scale(rt)
		m.populate(rt)
		pod := func(rt *rapid.T) (int, *modelPod) {
			if len(m.pods) == 0 {
				rt.Skip("no pod")
			}
			n := rapid.SampledFrom(slices.Sorted(maps.Keys(m.pods))).Draw(rt, "pod")
			return n, m.pods[n]
		}
		work := func(rt *rapid.T) bool {
			before, ready := m.available(), m.ready()
			did, problem := m.reconcile()
			if problem != "" {
				rt.Fatalf("%s: %+v, %+v", problem, m.want, m.members())
			}
			if now, floor := m.available(), m.want.ordinals.Count()-m.want.maxUnavailable; now < before && now < floor {
				rt.Fatalf("%d available pods became %d, and %d must stay: %+v", before, now, floor, m.members())
			}
			if now, floor := m.ready(), m.want.ordinals.Count()-m.want.maxUnavailable; now < ready && now < floor {
				rt.Fatalf("%d ready pods became %d, and %d must stay: %+v", ready, now, floor, m.members())
			}
			return did
		}
		become := func(p *modelPod) {
			was := p.ready
			p.ready = !p.terminating && !p.ended && !m.bad[p.revision]
			p.soaking = p.ready && !was
		}
		rt.Repeat(map[string]func(*rapid.T){
			"reconcile": func(rt *rapid.T) { work(rt) },
			"ready":     func(rt *rapid.T) { _, p := pod(rt); become(p) },
			"long":      func(rt *rapid.T) { _, p := pod(rt); p.soaking = false },
			"unready":   func(rt *rapid.T) { _, p := pod(rt); p.ready = false },
			"fail":      func(rt *rapid.T) { _, p := pod(rt); p.ended, p.ready = true, false },
			"mark":      func(rt *rapid.T) { _, p := pod(rt); p.marked = true },
			"delete":    func(rt *rapid.T) { _, p := pod(rt); p.terminating = true },
			"gone": func(rt *rapid.T) {
				if n, p := pod(rt); p.terminating {
					delete(m.pods, n)
				}
			},
			"hook":      func(rt *rapid.T) { n, _ := pod(rt); m.hooked[n] = true },
			"unhook":    func(rt *rapid.T) { n, _ := pod(rt); delete(m.hooked, n) },
			"hold":      func(rt *rapid.T) { n, _ := pod(rt); m.waits[n] = true },
			"let go":    func(rt *rapid.T) { n, _ := pod(rt); delete(m.waits, n) },
			"scale":     scale,
			"partition": func(rt *rapid.T) { m.own = rapid.IntRange(0, 8).Draw(rt, "partition") },
			"pause":     func(*rapid.T) { m.want.paused = !m.want.paused },
			"divide":    func(rt *rapid.T) { m.batches = batchtest.Draw(rt) },
			"next batch": func(*rapid.T) {
				if m.status != nil {
					m.released = batch.Release(m.status, m.status.Number+1)
				}
			},
			"forget": func(*rapid.T) { m.status = nil }, // the status is lost
			"grow":   func(*rapid.T) { m.size++ },
			"release": func(rt *rapid.T) {
				m.release()
				m.bad[m.update] = rapid.IntRange(0, 2).Draw(rt, "bad") == 0
			},
			"roll back": func(*rapid.T) { m.update = m.current },
			"complete": func(*rapid.T) { // as the status does
				if members := m.members(); m.available() == m.want.ordinals.Count() && !slices.ContainsFunc(members, func(p member) bool { return !p.updated }) {
					m.current = m.update
				}
			},
		})
		m.want.paused = false
		if m.batches != nil {
			m.batches.Auto = true
		}
		if m.bad[m.update] || m.bad[m.current] {
			m.release()
			m.own = 0
		}
		if slices.ContainsFunc(slices.Collect(maps.Values(m.pods)), func(p *modelPod) bool { return m.bad[p.revision] }) {
			m.own = 0
		}
		claims := maps.Clone(m.sizes)
		m.end(rt, work, become)
		for n, size := range claims {
			if m.sizes[n] < size {
				rt.Fatalf("the claim of ordinal %d had size %d and has %d", n, size, m.sizes[n])
			}
		}
	})
}

// end leaves the machine alone until it comes to rest, and checks that it is as wanted.
func (m *machine) end(rt *rapid.T, work func(*rapid.T) bool, become func(*modelPod)) {
	for range 1000 {
		for steps := 0; work(rt); steps++ {
			if steps > 100 {
				rt.Fatalf("it finds no end: %+v, %+v", m.want, m.members())
			}
		}
		if len(m.hooked)+len(m.waits) > 0 { // it came to rest while they were held
			clear(m.hooked)
			clear(m.waits)
			continue
		}
		changed := false
		for _, n := range slices.Sorted(maps.Keys(m.pods)) {
			p := m.pods[n]
			if p.terminating {
				delete(m.pods, n)
				changed = true
				break
			}
			if p.soaking {
				p.soaking, changed = false, true
				break
			}
			if !p.ready {
				if become(p); p.ready {
					changed = true
					break
				}
			}
		}
		if !changed {
			break
		}
	}
	m.want.partition = m.own // the last batch leaves no more
	members, old := m.members(), 0
	for _, p := range members {
		if !p.kept || !p.available || p.marked || p.undersized && (m.want.unordered && p.updated || !m.want.unordered && p.position >= m.want.partition) {
			rt.Fatalf("in the end: %+v of %+v in %+v, %+v", p, m.want, m.status, members)
		}
		if !p.updated {
			if old++; !m.want.unordered && p.position >= m.want.partition {
				rt.Fatalf("in the end old: %+v of %+v in %+v, %+v", p, m.want, m.status, members)
			}
		}
	}
	if len(members) != m.want.ordinals.Count() || m.want.unordered && old > m.want.partition {
		rt.Fatalf("in the end %d pods, %d of them old: %+v", len(members), old, m.want)
	}
}

// Pods that are ready, but not for long enough, are not taken away together.
func TestMinReadySeconds(t *testing.T) {
	t.Parallel()
	w := want{maxUnavailable: 2}
	w.ordinals, _ = ordinal.Parse(&v1beta1.StatefulSetSpec{Replicas: new(int32(10))})
	var members []member
	for i := range 10 {
		members = append(members, member{name: fmt.Sprint("db-", i), ordinal: i, position: i, kept: true, ready: true, available: i == 9})
	}
	if p := w.decide(members, nil); len(p.replace) != 2 {
		t.Errorf("%d of 10 ready pods are replaced", len(p.replace))
	}
	for i := range members {
		members[i].updated, members[i].marked = true, true
	}
	if p := w.decide(members, nil); len(p.marked) != 2 {
		t.Errorf("%d of 10 ready pods that users want replaced are deleted", len(p.marked))
	}
}

// A condemned pod that a hook takes out of its Services goes on to be deleted, although a pod with a
// lower ordinal is not ready.
func TestPreparingIsDeleted(t *testing.T) {
	t.Parallel()
	w := want{maxUnavailable: 1, ordered: true}
	w.ordinals, _ = ordinal.Parse(&v1beta1.StatefulSetSpec{Replicas: new(int32(0))})
	members := []member{{name: "db-0", ordinal: 0, updated: true}, {name: "db-1", ordinal: 1, updated: true, preparing: true}}
	if p := w.decide(members, nil); len(p.condemned) != 1 || p.condemned[0].name != "db-1" {
		t.Errorf("%+v", p)
	}
}

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
}

// An updated pod that is lost comes back updated, also if an old one is broken meanwhile: the old one
// comes into the batch beside it.
func TestLostPodOfABatch(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{true, false} {
		var w want
		w.ordered, w.maxUnavailable, w.toCreate = ordered, 1, 6
		w.ordinals, _ = ordinal.Parse(&v1beta1.StatefulSetSpec{Replicas: new(int32(6))})
		var members []member
		for i := range 5 {
			members = append(members, member{name: fmt.Sprint("db-", i), ordinal: i, position: i, kept: true, ready: i > 0, available: i > 0})
		}
		d := divider{
			want: w, batches: &v1beta1.UpdateBatches{Sizes: []intstr.IntOrString{intstr.FromInt32(1)}}, before: func() string { return "a" },
			was: &v1beta1.BatchStatus{Revision: "b", From: "a", Number: 1, Sizes: "1", Reached: 1, Reason: v1beta1.BatchApproval}, update: batch.Update{Revision: "b", Now: time.Unix(1e9, 0)},
		}
		for range 2 {
			read := func(w want) (sums, []string) {
				var s sums
				for i := range members {
					s.add(&members[i], w, 1)
				}
				return s, nil
			}
			limited, decision := d.divide(read, func() []member { return members })
			if limited.stays(5) {
				t.Fatalf("ordered %v: db-5 would come back with the old revision: %+v", ordered, limited)
			}
			d.was = decision.Status
		}
		if len(d.was.Ahead) != 2 {
			t.Errorf("ordered %v: %v are ahead", ordered, d.was.Ahead)
		}
	}
}

// A broken pod comes into a batch whose other pods do not run, because they wait for it. They may have been
// updated before, so they keep their places, and the batch gets larger by one.
func TestBatchWaitsForABrokenPod(t *testing.T) {
	t.Parallel()
	updated := member{updated: true, ready: true, available: true}
	for name, c := range map[string]struct {
		members map[int]member
		reached int32
		ahead   []int32
	}{
		"Missing": {map[int]member{0: updated, 1: {}}, 2, []int32{2, 3, 0}},
		"Ended":   {map[int]member{0: updated, 1: {}, 2: {updated: true, ended: true}}, 1, []int32{2, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := want{ordered: true, maxUnavailable: 1, toCreate: 4}
			w.ordinals, _ = ordinal.Parse(&v1beta1.StatefulSetSpec{Replicas: new(int32(4))})
			var members []member
			for _, at := range slices.Sorted(maps.Keys(c.members)) {
				m := c.members[at]
				m.name, m.ordinal, m.position, m.kept = fmt.Sprint("db-", at), at, at, true
				members = append(members, m)
			}
			d := divider{
				want: w, batches: &v1beta1.UpdateBatches{Sizes: []intstr.IntOrString{intstr.FromInt32(2)}}, before: func() string { return "a" },
				was: &v1beta1.BatchStatus{
					Revision: "b", From: "a", Number: 1, Sizes: "2", Reached: c.reached, Reason: v1beta1.BatchUpdating, Ahead: c.ahead,
				},
				update: batch.Update{Revision: "b", Now: time.Unix(1e9, 0)},
			}
			_, decision := d.divide(func(w want) (s sums, failed []string) {
				for i := range members {
					s.add(&members[i], w, 1)
				}
				return s, nil
			}, func() []member { return members })
			if want := append(slices.Clone(c.ahead), 1); !slices.Equal(decision.Status.Ahead, want) {
				t.Errorf("%v are ahead", decision.Status.Ahead)
			}
		})
	}
}
