package cloneset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/batch/batchtest"
)

// Numbers of a spec are read as OpenKruise reads them.
func TestNewWant(t *testing.T) {
	t.Parallel()
	percent, number := intstr.FromString, intstr.FromInt32
	for name, c := range map[string]struct {
		why                    string
		replicas               int32
		partition, unavailable *intstr.IntOrString
		surge                  *intstr.IntOrString
		want                   want
	}{
		"Defaults":     {"20 % rounded up may be missing.", 7, nil, nil, nil, want{replicas: 7, maxUnavailable: 2, toCreate: 7}},
		"Percent":      {"The partition is rounded up.", 7, new(percent("50%")), nil, nil, want{replicas: 7, partition: 4, maxUnavailable: 2, toCreate: 7}},
		"Nearly":       {"99 % are not all of them.", 7, new(percent("99%")), nil, nil, want{replicas: 7, partition: 6, maxUnavailable: 2, toCreate: 7}},
		"All":          {"100 % are.", 7, new(percent("100%")), nil, nil, want{replicas: 7, partition: 7, maxUnavailable: 2, toCreate: 7}},
		"Beyond":       {"More than all are all.", 7, new(number(9)), nil, nil, want{replicas: 7, partition: 7, maxUnavailable: 2, toCreate: 7}},
		"SurgeRounds":  {"With a surge, maxUnavailable is rounded down.", 7, nil, new(percent("20%")), new(percent("20%")), want{replicas: 7, maxUnavailable: 1, maxSurge: 2, toCreate: 7}},
		"NeitherIsOne": {"Nothing would ever change.", 7, nil, new(number(0)), new(number(0)), want{replicas: 7, maxUnavailable: 1, toCreate: 7}},
		"None":         {"There is nothing to round.", 0, new(percent("50%")), nil, nil, want{maxUnavailable: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := newWant(&v1beta1.CloneSetSpec{Replicas: &c.replicas, UpdateStrategy: v1beta1.CloneSetUpdateStrategy{RollingUpdate: &v1beta1.CloneSetRollingUpdateStrategy{
				Partition: c.partition, MaxUnavailable: c.unavailable, MaxSurge: c.surge,
			}}})
			if err != nil || got != c.want {
				t.Errorf("%s %+v, %v; want %+v", c.why, got, err, c.want)
			}
		})
	}
	if _, err := newWant(&v1beta1.CloneSetSpec{UpdateStrategy: v1beta1.CloneSetUpdateStrategy{RollingUpdate: &v1beta1.CloneSetRollingUpdateStrategy{
		Partition: new(percent("half")),
	}}}); err == nil || !strings.Contains(err.Error(), "spec.updateStrategy.rollingUpdate.partition") {
		t.Errorf("%v", err)
	}
}

// With OnDelete no pod changes revision, and a missing one comes back with the newest.
func TestOnDeleteNumbers(t *testing.T) {
	t.Parallel()
	w := want{replicas: 3, maxUnavailable: 3, toCreate: 3, onDelete: true}
	members := []member{{name: "a", available: true}, {name: "b"}}
	c := w.decide(tallies(members))
	if m := c.moved(members); c.createNew != 1 || c.createOld != 0 || len(m.inPlace)+len(m.mark)+len(c.doomed(members)) > 0 {
		t.Errorf("%+v, %+v", c, m)
	}
}

// A pod whose update waits for a hook has the old revision, but can count as updated when pods are
// created and when there are too many. Then the partition gets other pods.
func TestCountPreparingUpdate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why              string
		counts           bool
		replicas         int
		wantOld, wantNew int
		wantGone         []string
	}{
		"CreateOff": {"There are enough old pods, so a new pod is updated.", false, 5, 0, 1, nil},
		"CreateOn":  {"One pod stays old, so another old one is created, and both updates go on.", true, 5, 1, 0, nil},
		"RemoveOff": {"One pod of each revision is too many.", false, 2, 0, 0, []string{"a", "d"}},
		"RemoveOn":  {"The partition needs all old pods, so those that count as updated are too many.", true, 2, 0, 0, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := want{replicas: c.replicas, partition: 2, maxUnavailable: 5, toCreate: 5}
			members := []member{
				{name: "a", inPlace: true, begun: true, preparingUpdate: c.counts},
				{name: "b", inPlace: true, begun: true, preparingUpdate: c.counts},
				{name: "c", inPlace: true, available: true},
				{name: "d", updated: true, available: true},
			}
			did := w.decide(tallies(members))
			if got := names(did.moved(members).inPlace); c.counts && c.wantOld > 0 && !cmp.Equal(got, []string{"a", "b"}) {
				t.Errorf("%s %v go on", c.why, got)
			}
			if did.createOld != c.wantOld || did.createNew != c.wantNew || !cmp.Equal(names(did.doomed(members)), c.wantGone) {
				t.Errorf("%s It creates %d old and %d new, and deletes %v", c.why, did.createOld, did.createNew, names(did.doomed(members)))
			}
		})
	}
}

// While an update is stopped, new pods get the old revision: the new one can't run.
func TestStoppedNumbers(t *testing.T) {
	t.Parallel()
	for partition, replicas := range map[int]int{7: 100, 0: 20} {
		w := want{replicas: replicas, partition: partition, maxUnavailable: 3, toCreate: 100, divided: true, stopped: true}
		if c := w.decide(tally{available: 7}, tally{unavailable: 3}); c.createNew != 0 || c.createOld != replicas-10 {
			t.Errorf("partition %d: %+v", partition, c)
		}
	}
}

// An update that has begun goes on before another begins, although the pod of the other one serves
// less.
func TestBegunFirst(t *testing.T) {
	t.Parallel()
	w := want{replicas: 4, partition: 2, maxUnavailable: 4, toCreate: 4}
	members := []member{ // sorted for deletion: a pod without a node comes first
		{name: "new", inPlace: true}, {name: "a", inPlace: true, begun: true}, {name: "b", inPlace: true, begun: true}, {name: "c", inPlace: true, available: true},
	}
	if got := names(w.decide(tallies(members)).moved(members).inPlace); !cmp.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v go on", got)
	}
}

// A pod that was asked to be replaced goes at once where enough others serve, and waits
// for its replacement where they don't.
func TestSpecifiedDelete(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why                         string
		maxUnavailable, maxSurge    int
		others, otherUnavailable    int
		unavailable                 bool // the pod itself
		wantCreated, wantGoes, then int
	}{
		"TwoOne":       {"(2,1) and another pod is unavailable: at once.", 2, 1, 1, 1, false, 0, 1, 1},
		"OneOne":       {"(1,1) and another pod is unavailable: create, wait, delete.", 1, 1, 1, 1, false, 1, 0, 0},
		"OneOneItself": {"(1,1) and it is unavailable itself: at once.", 1, 1, 2, 0, true, 0, 1, 1},
		"ZeroOne":      {"(0,1): create, wait, delete.", 0, 1, 2, 0, false, 1, 0, 0},
		"OneZero":      {"(1,0) and another pod is unavailable: it waits.", 1, 0, 1, 1, false, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := want{replicas: 3, maxUnavailable: c.maxUnavailable, maxSurge: c.maxSurge, toCreate: 3}
			members := []member{{name: "it", updated: true, marked: true, available: !c.unavailable}}
			for i := range c.others {
				members = append(members, member{name: fmt.Sprint("other", i), updated: true, available: true})
			}
			for i := range c.otherUnavailable {
				members = append(members, member{name: fmt.Sprint("unavailable", i), updated: true})
			}
			did := w.decide(tallies(members))
			if did.createNew != c.wantCreated || did.createOld != 0 || len(did.doomed(members)) != c.wantGoes {
				t.Errorf("%s It creates %d and deletes %v", c.why, did.createNew, did.doomed(members))
			}
			if c.wantCreated == 0 {
				return
			}
			members = append(members, member{name: "new", updated: true})
			if did = w.decide(tallies(members)); did.createNew > 0 || len(did.doomed(members)) > 0 {
				t.Errorf("%s While the replacement isn't available: %+v", c.why, did)
			}
			members[len(members)-1].available = true
			if did = w.decide(tallies(members)); did.createNew > 0 || !cmp.Equal(names(did.doomed(members)), []string{"it"}) {
				t.Errorf("%s When the replacement is available: %+v deletes %v", c.why, did, names(did.doomed(members)))
			}
		})
	}
}

func names(members []member) []string {
	var out []string
	for _, m := range members {
		out = append(out, m.name)
	}
	return out
}

// machine is a CloneSet with its pods, without a cluster.
type machine struct {
	want    want
	inPlace bool // updates are
	pods    []member
	born    int
	final   bool // a deletion that a hook holds back isn't taken back
	hooked  map[string]bool
	// waits are the pods whose updates in place a hook holds back; counts: these count as updated.
	waits  map[string]bool
	counts bool
	turns  bool // a strategy says whose turn it is
	wrong  bool // the sums said that no pod has to be chosen, but a pod was chosen

	revision int // the update revision
	// spec is what the update revision holds, and before what the current one holds. made is what each pod
	// was made from, or updated to. recreates: other claim templates make other revisions.
	spec, before holds
	made         map[string]holds
	recreates    bool

	batches  *v1beta1.UpdateBatches
	status   *v1beta1.BatchStatus
	released string
	failed   map[string]bool // updated pods that can't run
	overlap  string          // a batch began before the one before it served
}

// holds is what a revision holds: a pod template and claim templates, by number.
type holds struct{ template, claims int }

// same reports whether revisions that hold two things are the same revision.
func (m *machine) same(a, b holds) bool { return a == b || !m.recreates && a.template == b.template }

// compare says of each pod whether it is up to date, and whether it can change revision in place.
func (m *machine) compare() {
	m.want.alone = m.same(m.before, m.spec)
	for i := range m.pods {
		p := &m.pods[i]
		made, to := m.made[p.name], m.spec
		if p.updated = m.same(made, m.spec); p.updated {
			to = m.before
		}
		p.inPlace = m.inPlace && (!m.recreates || made.claims == to.claims)
	}
}

// turn switches between claim templates that make other revisions and those that do not. No pod is out of
// date because of it: earlier records are void.
func (m *machine) turn() {
	if m.recreates = !m.recreates; !m.recreates {
		return
	}
	for name, made := range m.made {
		if made.template == m.spec.template {
			m.made[name] = m.spec
		}
	}
	if m.before.template == m.spec.template {
		m.before = m.spec
	}
}

// divide does what a reconcile does, and reports whether a batch has begun.
func (m *machine) divide() bool {
	var p batch.Pods
	for _, pod := range m.pods {
		if !pod.updated {
			if !pod.preparing {
				p.Old++
			}
			continue
		}
		p.Updated++
		if pod.available {
			p.Available++
		} else if m.failed[pod.name] {
			p.Failed = append(p.Failed, pod.name)
		}
	}
	p.Reached = p.Updated
	was := m.status
	var d batch.Decision
	m.want, d = m.want.divide(m.batches, was, batch.Update{Revision: fmt.Sprint("r", m.revision), Before: "r", Released: m.released, Now: time.Unix(1e9, 0)}, p)
	m.status = d.Status
	if was == nil || m.status == nil || was.Revision != m.status.Revision || was.Number == m.status.Number {
		return m.status != nil && (was == nil || was.Revision != m.status.Revision || was.Reason == v1beta1.BatchDone && m.status.Reason != was.Reason)
	}
	if ends := batch.Ends(m.batches.Sizes, m.want.replicas); was.Reason != v1beta1.BatchDone && was.Sizes == m.status.Sizes && int(was.Number) <= len(ends) && p.Available < ends[was.Number-1] {
		m.overlap = fmt.Sprintf("batch %s follows %s: %+v", m.status.Batch, was.Batch, p)
	}
	return true
}

func (m *machine) available() int {
	n := 0
	for _, p := range m.pods {
		if p.available {
			n++
		}
	}
	return n
}

// count is how many pods there are, but for those that aren't to be counted.
func (m *machine) count() int {
	n := 0
	for _, p := range m.pods {
		if !p.preparing || !m.want.excludePreparing {
			n++
		}
	}
	return n
}

func (m *machine) find(name string) *member {
	return &m.pods[slices.IndexFunc(m.pods, func(p member) bool { return p.name == name })]
}

// reconcile does what is decided, and reports whether that was anything.
func (m *machine) reconcile() bool {
	own := m.want
	defer func() { m.want = own }()
	m.compare()
	own.alone = m.want.alone
	began := m.divide()
	for i := range m.pods {
		p := &m.pods[i]
		p.recallable = p.preparing && !p.marked && !m.final
	}
	members := m.want.recall(m.pods)
	old, updated := tallies(members)
	c := m.want.decide(old, updated)
	doomed := c.doomed(members)
	if all := c.moved(members); !c.chooses(old, updated) && len(doomed)+len(all.inPlace)+len(all.mark) > 0 {
		m.wrong = true
	}
	did := c.createOld+c.createNew > 0
	for i := range c.createOld + c.createNew {
		m.born++
		p := member{name: fmt.Sprint("pod", m.born), updated: i >= c.createOld}
		m.pods = append(m.pods, p)
		m.made[p.name] = map[bool]holds{false: m.before, true: m.spec}[p.updated]
	}
	for _, p := range members {
		if p.recalled {
			m.find(p.name).preparing = false
			did = true
		}
	}
	for _, d := range doomed {
		if m.hooked[d.name] {
			it := m.find(d.name)
			did = did || !it.preparing
			it.preparing, it.available = true, false
			continue
		}
		did = true
		m.pods = slices.DeleteFunc(m.pods, func(p member) bool { return p.name == d.name })
	}
	if m.turns {
		if m.want.divided {
			slices.SortStableFunc(members, unavailableFirst)
		}
		members = c.turn(members)
	}
	moved := c.moved(members)
	if n := len(moved.inPlace) + len(moved.mark); n > 0 && m.status != nil && m.status.Failed > 1 && m.status.Reason != v1beta1.BatchDone {
		m.overlap = "pods are updated although too many have failed"
	}
	if did {
		m.callOff(moved.waiting().waits)
		return true
	}
	for _, p := range moved.inPlace {
		it := m.find(p.name)
		if m.waits[p.name] {
			did = did || !it.held
			it.held, it.begun, it.preparingUpdate, it.available = true, true, m.counts, false
			continue
		}
		it.updated, it.available, did = !it.updated, false, true
		m.made[p.name] = map[bool]holds{false: m.before, true: m.spec}[it.updated]
		it.held, it.begun, it.preparingUpdate = false, false, false
	}
	for _, p := range moved.mark {
		m.find(p.name).marked = true
	}
	return m.callOff(moved.inPlace) || did || began || len(moved.mark) > 0
}

// callOff ends the updates that hooks hold back, except those of some pods, and reports whether there
// was one.
func (m *machine) callOff(except []member) bool {
	did := false
	for i := range m.pods {
		p := &m.pods[i]
		if p.held && !slices.ContainsFunc(except, func(e member) bool { return e.name == p.name }) {
			p.held, p.begun, p.preparingUpdate, did = false, false, false, true
		}
	}
	return did
}

// Whatever users, kubelets and chance do: we never have more pods than allowed, never
// take more out of service than allowed, and when they leave us alone it ends as wanted.
func TestRollouts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := &machine{inPlace: rapid.Bool().Draw(rt, "in place"), final: rapid.Bool().Draw(rt, "final"), turns: rapid.Bool().Draw(rt, "turns"), counts: rapid.Bool().Draw(rt, "counts"), recreates: rapid.Bool().Draw(rt, "recreates"), before: holds{template: -1}, made: map[string]holds{}, hooked: map[string]bool{}, waits: map[string]bool{}, want: want{
			excludePreparing: rapid.Bool().Draw(rt, "exclude preparing"),
			replicas:         rapid.IntRange(0, 12).Draw(rt, "replicas"), maxUnavailable: rapid.IntRange(0, 4).Draw(rt, "maxUnavailable"), maxSurge: rapid.IntRange(0, 4).Draw(rt, "maxSurge"),
			toCreate: 100,
		}, failed: map[string]bool{}}
		if m.want.maxUnavailable+m.want.maxSurge == 0 {
			m.want.maxUnavailable = 1
		}
		pod := func(rt *rapid.T) *member {
			if len(m.pods) == 0 {
				rt.Skip("no pod")
			}
			return &m.pods[rapid.IntRange(0, len(m.pods)-1).Draw(rt, "pod")]
		}
		work := func(rt *rapid.T) bool {
			before, had, floor := m.available(), m.count(), m.want.replicas-m.want.maxUnavailable
			did := m.reconcile()
			if m.overlap != "" {
				rt.Fatalf("%s: %+v", m.overlap, m.pods)
			}
			if m.wrong {
				rt.Fatalf("the sums say that no pod has to be chosen, but a pod was chosen: %+v", m.pods)
			}
			if n := m.count(); n > had && n > m.want.replicas+m.want.maxSurge {
				rt.Fatalf("%d pods became %d, of %d and a surge of %d", had, n, m.want.replicas, m.want.maxSurge)
			}
			if now := m.available(); now < before && now < floor {
				rt.Fatalf("%d available pods became %d of %d, of which %d may be unavailable: %+v", before, now, m.want.replicas, m.want.maxUnavailable, m.pods)
			}
			return did
		}
		rt.Repeat(map[string]func(*rapid.T){
			"reconcile": func(rt *rapid.T) { work(rt) },
			"ready": func(rt *rapid.T) {
				p := pod(rt)
				p.available = !p.preparing && !p.held
			},
			"hold":    func(rt *rapid.T) { m.waits[pod(rt).name] = true },
			"let go":  func(rt *rapid.T) { delete(m.waits, pod(rt).name) },
			"hook":    func(rt *rapid.T) { m.hooked[pod(rt).name] = true },
			"unhook":  func(rt *rapid.T) { delete(m.hooked, pod(rt).name) },
			"unready": func(rt *rapid.T) { pod(rt).available = false },
			"mark":    func(rt *rapid.T) { pod(rt).marked = true },
			"lost": func(rt *rapid.T) {
				name := pod(rt).name
				m.pods = slices.DeleteFunc(m.pods, func(p member) bool { return p.name == name })
			},
			"scale": func(rt *rapid.T) {
				m.want.replicas = rapid.IntRange(0, 12).Draw(rt, "replicas")
				m.want.partition = min(m.want.partition, m.want.replicas)
			},
			"partition": func(rt *rapid.T) { m.want.partition = rapid.IntRange(0, m.want.replicas).Draw(rt, "partition") },
			"pause":     func(rt *rapid.T) { m.want.paused = !m.want.paused },
			"fail":      func(rt *rapid.T) { m.failed[pod(rt).name] = true },
			"recover":   func(*rapid.T) { clear(m.failed) },
			"divide":    func(rt *rapid.T) { m.batches = batchtest.Draw(rt) },
			"forget":    func(*rapid.T) { m.status = nil },
			"next batch": func(*rapid.T) {
				if m.status != nil {
					m.released = batch.Release(m.status, m.status.Number+1)
				}
			},
			"release": func(rt *rapid.T) { // of another revision: no pod has it yet
				next := m.spec
				next.template += rapid.IntRange(0, 1).Draw(rt, "template")
				next.claims += rapid.IntRange(0, 1).Draw(rt, "claims")
				if m.same(next, m.spec) {
					rt.Skip("it is the same revision")
				}
				m.revision++
				m.before, m.spec = m.spec, next
				m.compare()
			},
			"switch": func(*rapid.T) {
				m.turn()
				m.compare()
			},
		})
		m.want.paused = false
		clear(m.failed)
		if m.batches != nil {
			m.batches.Auto = true
		}
		for range 1000 {
			for steps := 0; work(rt); steps++ {
				if steps > 100 {
					rt.Fatalf("it finds no end: %+v, %+v", m.want, m.pods)
				}
			}
			if len(m.hooked)+len(m.waits) > 0 { // it came to rest while they were held
				clear(m.hooked)
				clear(m.waits)
				continue
			}
			if i := slices.IndexFunc(m.pods, func(p member) bool { return !p.available }); i >= 0 {
				m.pods[i].available = true
				continue
			}
			break
		}
		old := 0
		for _, p := range m.pods {
			if !p.updated {
				old++
			}
			if p.marked || !p.available || p.preparing {
				rt.Fatalf("in the end: %+v", p)
			}
		}
		// If the current revision is the update revision, no pod goes back to it.
		if len(m.pods) != m.want.replicas || old > m.want.partition || old < m.want.partition && !m.want.alone {
			rt.Fatalf("in the end %d pods, %d of them old: %+v, %+v, %+v", len(m.pods), old, m.want, m.status, m.pods)
		}
	})
}

// A deletion that a hook holds back causes no other deletion. It is taken back when more pods are
// wanted, first for the pod that is last in the order of deletion.
func TestPreparing(t *testing.T) {
	t.Parallel()
	serving := member{updated: true, available: true}
	preparing := member{updated: true, preparing: true, recallable: true}
	marked := member{updated: true, preparing: true, marked: true}
	for name, c := range map[string]struct {
		why      string
		replicas int
		exclude  bool
		members  []member
		created  int
		doomed   []string
		recalled []string
	}{
		"Held":      {"The held pod is deleted, and no other.", 2, false, []member{preparing, serving, serving}, 0, []string{"0"}, nil},
		"Fewer":     {"One more pod is deleted.", 1, false, []member{preparing, serving, serving}, 0, []string{"0", "1"}, nil},
		"More":      {"The deletion is taken back.", 3, false, []member{preparing, serving, serving}, 0, nil, []string{"0"}},
		"MostFirst": {"The last pod of the order is wanted first.", 3, false, []member{preparing, preparing, serving, serving}, 0, []string{"0"}, []string{"1"}},
		"Marked":    {"A user marked the pod for deletion: its replacement waits until it is gone.", 3, false, []member{marked, serving, serving}, 0, []string{"0"}, nil},
		"Excluded":  {"The marked pod isn't counted: its replacement doesn't wait.", 3, true, []member{marked, serving, serving}, 1, []string{"0"}, nil},
		"NotBeside": {"A recalled pod would be one too many, and would be deleted again: the marked pod serves until the others do.", 2, false, []member{preparing, {updated: true}, {updated: true, marked: true, available: true}}, 0, []string{"0"}, nil},
		"InPlaceOf": {"The recalled pod replaces a marked one.", 2, false, []member{preparing, {updated: true, marked: true}, serving}, 0, []string{"1"}, []string{"0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range c.members {
				c.members[i].name = fmt.Sprint(i)
			}
			w := want{replicas: c.replicas, maxUnavailable: 1, toCreate: 100, excludePreparing: c.exclude}
			members := w.recall(c.members)
			did := w.decide(tallies(members))
			var recalled []string
			for _, m := range members {
				if m.recalled {
					recalled = append(recalled, m.name)
				}
			}
			if did.createNew != c.created || !slices.Equal(names(did.doomed(members)), c.doomed) || !slices.Equal(recalled, c.recalled) {
				t.Errorf("%s It creates %d, deletes %v and takes back %v", c.why, did.createNew, names(did.doomed(members)), recalled)
			}
		})
	}
}

// If there are too many pods, those that are needed are deleted last.
func TestTooMany(t *testing.T) {
	t.Parallel()
	old, updated := member{}, member{updated: true, available: true}
	for name, c := range map[string]struct {
		why     string
		want    want
		members []member
		doomed  []string
	}{
		"Shares":     {"Each revision loses the pods beyond its share.", want{replicas: 2, partition: 1, maxUnavailable: 1}, []member{old, old, updated, updated}, []string{"0", "2"}},
		"Surge":      {"The other pods serve, and the surge lets them stay until the pods of the partition serve.", want{replicas: 2, partition: 2, maxSurge: 3}, []member{old, old, updated, updated}, nil},
		"FarTooMany": {"The pods that do not serve are deleted, so no serving pod has to be.", want{replicas: 2, partition: 2, maxSurge: 3}, []member{old, old, old, old, updated, updated}, []string{"0", "1"}},
		"NoSurge":    {"Two pods are too many: those that do not serve are deleted.", want{replicas: 2, partition: 2, maxUnavailable: 0}, []member{old, old, updated, updated}, []string{"0", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range c.members {
				c.members[i].name = fmt.Sprint(i)
			}
			if got := names(c.want.decide(tallies(c.members)).doomed(c.members)); !slices.Equal(got, c.doomed) {
				t.Errorf("%s %v go, and not %v", c.why, got, c.doomed)
			}
		})
	}
}

// A partition of 80, 60, 40, 20 and 0 % of 100 pods is five batches, and raising it takes
// as many back each time, with never more than maxUnavailable out of service.
func TestBatchesOf100(t *testing.T) {
	t.Parallel()
	m := &machine{inPlace: true, spec: holds{template: 1}, made: map[string]holds{}, want: want{replicas: 100, maxUnavailable: 10, toCreate: 100}}
	for i := range 100 {
		m.pods = append(m.pods, member{name: fmt.Sprint("pod", i), available: true})
	}
	for _, step := range []struct{ percent, updated int }{{80, 20}, {60, 40}, {40, 60}, {20, 80}, {0, 100}, {20, 80}, {40, 60}, {60, 40}, {80, 20}, {100, 0}} {
		w, err := newWant(&v1beta1.CloneSetSpec{Replicas: new(int32(100)), UpdateStrategy: v1beta1.CloneSetUpdateStrategy{RollingUpdate: &v1beta1.CloneSetRollingUpdateStrategy{
			Partition: new(intstr.FromString(fmt.Sprint(step.percent, "%"))), MaxUnavailable: new(intstr.FromInt32(10)),
		}}})
		if err != nil {
			t.Fatal(err)
		}
		m.want = w
		changed := 0
		for m.reconcile() {
			if m.available() < 90 {
				t.Fatalf("partition %d %%: %d are available", step.percent, m.available())
			}
			for i := range m.pods {
				if !m.pods[i].available {
					changed++
				}
				m.pods[i].available = true
			}
		}
		updated := 0
		for _, p := range m.pods {
			if p.updated {
				updated++
			}
		}
		if updated != step.updated || changed != 20 || len(m.pods) != 100 || m.born > 0 {
			t.Errorf("partition %d %%: %d are updated, want %d; %d changed; %d pods, %d of them new", step.percent, updated, step.updated, changed, len(m.pods), m.born)
		}
	}
}
