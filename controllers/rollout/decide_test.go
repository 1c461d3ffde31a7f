package rollout_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry/window"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	out, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// run is one rollout over clusters that are where they should be a minute after they
// were released, unless a test says otherwise.
type run struct {
	t      *testing.T
	course rollout.Course
	state  rollout.State
	facts  rollout.Facts
	last   rollout.Decision
	log    []string
}

// newRun has clusters test, canary-1, canary-2, prod-1 to prod-4, which run old.
func newRun(t *testing.T, change func(stages map[string]*rollout.Stage)) *run {
	t.Helper()
	r := &run{t: t, course: rollout.Course{Change: "new", Want: map[string]string{}, From: map[string]string{}}}
	stages := map[string]*rollout.Stage{}
	all := []*rollout.Stage{
		{Name: "testing", Clusters: []string{"test"}},
		{Name: "canary", Clusters: []string{"canary-1", "canary-2"}},
		{Name: "production", Clusters: []string{"prod-1", "prod-2", "prod-3", "prod-4"}},
	}
	for _, s := range all {
		s.MaxConcurrent, s.MaxUnavailable, s.Timeout = 1, 1, 10*time.Minute
		stages[s.Name] = s
	}
	if change != nil {
		change(stages)
	}
	r.facts = rollout.Facts{
		Now: start, Clusters: map[string]rollout.Fact{}, Frozen: map[string]string{}, Checks: map[rollout.Check]rollout.Result{},
	}
	for _, s := range all {
		r.course.Stages = append(r.course.Stages, *s)
		for _, name := range s.Clusters {
			r.course.Want[name], r.course.From[name] = "new", "old"
			r.facts.Clusters[name] = rollout.Fact{Hash: "old", Seen: start, Healthy: true}
		}
	}
	r.decide()
	return r
}

func (r *run) decide() {
	r.t.Helper()
	before := fmt.Sprint(r.state)
	d := rollout.Decide(r.course, r.state, r.facts)
	if got := fmt.Sprint(r.state); got != before {
		r.t.Fatalf("the argument was modified: %s, %s", before, got)
	}
	for _, e := range d.Events {
		if e.Time != r.facts.Now {
			r.t.Errorf("%+v happens at %s", e, r.facts.Now)
		}
		where := strings.TrimSpace(e.Stage + " " + e.Cluster)
		r.log = append(r.log, strings.TrimSpace(fmt.Sprintf("%s %s: %s", e.Time.Format("15:04"), where, e.Message)))
	}
	r.last, r.state = d, d.State
}

// minutes pass, and each cluster comes to where it is told to be, but those that hang.
func (r *run) minutes(n int, hang ...string) {
	r.t.Helper()
	for range n {
		r.facts.Now = r.facts.Now.Add(time.Minute)
		for name, f := range r.facts.Clusters {
			f.Seen = r.facts.Now
			if c, released := r.state.Clusters[name]; released && !slices.Contains(hang, name) {
				if f.Hash = r.course.Want[name]; c.Back {
					f.Hash, f.Healthy, f.Failed = r.course.From[name], true, ""
				}
			}
			r.facts.Clusters[name] = f
		}
		r.decide()
	}
}

func (r *run) fact(name string, change func(*rollout.Fact)) {
	f := r.facts.Clusters[name]
	change(&f)
	r.facts.Clusters[name] = f
}

// check answers one of the canary's.
func (r *run) check(name string, after, passed bool, message string) {
	r.facts.Checks[rollout.Check{Change: r.course.Change, Stage: "canary", Name: name, After: after}] = rollout.Result{Passed: passed, Message: message}
	r.decide()
}

func (r *run) wants(phase rollout.Phase, log ...string) {
	r.t.Helper()
	if r.state.Phase != phase {
		r.t.Errorf("it is %s: %s; want %s", r.state.Phase, r.state.Because, phase)
	}
	if diff := cmp.Diff(log, r.log); diff != "" {
		r.t.Errorf("timeline (-want +got):\n%s", diff)
	}
	r.log = nil
}

func (r *run) waits(want map[string]string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.last.Waiting); diff != "" {
		r.t.Errorf("who waits for what (-want +got):\n%s", diff)
	}
}

// TestOrder: stage by stage, cluster by cluster, each when the one before has settled.
func TestOrder(t *testing.T) {
	t.Parallel()
	r := newRun(t, nil)
	r.waits(map[string]string{
		"test": "it is on its way", "canary-1": "stage testing comes first", "canary-2": "stage testing comes first",
		"prod-1": "stage testing comes first", "prod-2": "stage testing comes first", "prod-3": "stage testing comes first", "prod-4": "stage testing comes first",
	})
	r.minutes(7)
	r.wants(rollout.PhaseComplete,
		"08:00 testing: opened", "08:00 testing test: released",
		"08:01 testing test: settled", "08:01 testing: passed", "08:01 canary: opened", "08:01 canary canary-1: released",
		"08:02 canary canary-1: settled", "08:02 canary canary-2: released",
		"08:03 canary canary-2: settled", "08:03 canary: passed", "08:03 production: opened", "08:03 production prod-1: released",
		"08:04 production prod-1: settled", "08:04 production prod-2: released",
		"08:05 production prod-2: settled", "08:05 production prod-3: released",
		"08:06 production prod-3: settled", "08:06 production prod-4: released",
		"08:07 production prod-4: settled", "08:07 production: passed", "08:07 : complete",
	)
	r.waits(map[string]string{})
	r.minutes(100)
	r.wants(rollout.PhaseComplete)
}

// TestSilenceAndBake: the next cluster waits for the silence, the next stage for the
// bake, and both say until when, and when to look again.
func TestSilenceAndBake(t *testing.T) {
	t.Parallel()
	r := newRun(t, func(s map[string]*rollout.Stage) {
		s["canary"].Silence, s["canary"].Bake = 5*time.Minute, 30*time.Minute
	})
	r.minutes(2)
	r.log = nil
	if got := r.last.Waiting["canary-2"]; got != "silence until 2026-03-02T08:07:00Z" {
		t.Errorf("canary-2: %s", got)
	}
	if want := at(t, "2026-03-02T08:07:00Z"); !r.last.Wake.Equal(want) {
		t.Errorf("wake at %s", r.last.Wake)
	}
	r.minutes(4)
	r.wants(rollout.PhaseProgressing)
	r.minutes(2)
	r.wants(rollout.PhaseProgressing, "08:07 canary canary-2: released", "08:08 canary canary-2: settled")
	if want := at(t, "2026-03-02T08:38:00Z"); !r.last.Wake.Equal(want) {
		t.Errorf("wake at %s", r.last.Wake)
	}
	r.minutes(29)
	r.wants(rollout.PhaseProgressing)
	r.minutes(1)
	r.wants(rollout.PhaseProgressing, "08:38 canary: passed", "08:38 production: opened", "08:38 production prod-1: released")
}

// TestHowManyAtOnce: the limits allow this many clusters at once. Unhealthy clusters of the stage
// count, whatever made them unhealthy.
func TestHowManyAtOnce(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why                     string
		concurrent, unavailable int
		unwell                  string
		goes                    []string
	}{
		"One":         {"The default is one at a time.", 1, 1, "", []string{"prod-1"}},
		"Three":       {"Three clusters are released together.", 3, 4, "", []string{"prod-1", "prod-2", "prod-3"}},
		"Unavailable": {"The smaller of the two limits counts.", 4, 2, "", []string{"prod-1", "prod-2"}},
		"Unwell":      {"A cluster that is unhealthy already counts.", 4, 2, "prod-4", []string{"prod-1"}},
		"UnwellAlone": {"One may be unavailable, and one is: no cluster is released.", 4, 1, "prod-4", nil},
		"UnwellItself": {
			"The next cluster may be the unhealthy one: the change may repair it.", 4, 1, "prod-1", []string{"prod-1"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRun(t, func(s map[string]*rollout.Stage) {
				s["production"].MaxConcurrent, s["production"].MaxUnavailable = c.concurrent, c.unavailable
			})
			if c.unwell != "" {
				r.fact(c.unwell, func(f *rollout.Fact) { f.Healthy = false })
			}
			r.minutes(3)
			var goes []string
			for _, name := range slices.Sorted(maps.Keys(r.state.Clusters)) {
				if strings.HasPrefix(name, "prod") {
					goes = append(goes, name)
				}
			}
			if diff := cmp.Diff(c.goes, goes); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
			if c.goes == nil && r.last.Waiting["prod-1"] != "1 of at most 1 clusters are updating or not healthy: prod-4" {
				t.Errorf("prod-1: %s", r.last.Waiting["prod-1"])
			}
			if name == "Three" && r.last.Waiting["prod-4"] != "3 of at most 3 clusters are updating" {
				t.Errorf("prod-4: %s", r.last.Waiting["prod-4"])
			}
		})
	}
}

// TestFailure: a cluster that fails stops the rollout where it is: later stages never
// see the change, and the reason is told. A person may let it go on.
func TestFailure(t *testing.T) {
	t.Parallel()
	fails := func(r *run) {
		r.minutes(1)
		r.fact("canary-1", func(f *rollout.Fact) { f.Hash, f.Healthy, f.Failed = "new", false, "its pods crash" })
		r.log = nil
		r.minutes(1)
	}
	t.Run("Pauses", func(t *testing.T) {
		t.Parallel()
		r := newRun(t, nil)
		fails(r)
		r.wants(rollout.PhasePaused, "08:02 canary: paused: canary-1: its pods crash")
		if got := r.last.Waiting; got["canary-1"] != "its pods crash" || got["prod-1"] != "the rollout is Paused: stage canary: canary-1: its pods crash" {
			t.Errorf("they wait: %v", got)
		}
		r.minutes(100)
		r.wants(rollout.PhasePaused)
		r.fact("canary-1", func(f *rollout.Fact) { f.Healthy, f.Failed = true, "" })
		r.state.Phase = rollout.PhaseProgressing
		r.minutes(1)
		r.wants(rollout.PhaseProgressing, "09:43 canary canary-1: settled", "09:43 canary canary-2: released")
	})
	t.Run("RollsBack", func(t *testing.T) {
		t.Parallel()
		r := newRun(t, func(s map[string]*rollout.Stage) { s["canary"].Rollback = true })
		fails(r)
		r.wants(rollout.PhaseRollingBack, "08:02 canary: rolls back: canary-1: its pods crash", "08:02 canary canary-1: goes back")
		if got := r.last.Waiting["canary-1"]; got != "it goes back: stage canary: canary-1: its pods crash" {
			t.Errorf("canary-1: %s", got)
		}
		r.fact("canary-1", func(f *rollout.Fact) { f.Hash, f.Healthy = "old", false }) // there, and not well yet
		r.decide()
		r.wants(rollout.PhaseRollingBack)
		r.minutes(1)
		r.wants(rollout.PhaseRolledBack, "08:03 : rolled back: stage canary: canary-1: its pods crash")
		r.minutes(100)
		r.wants(rollout.PhaseRolledBack)
		if len(r.state.Clusters) != 2 || r.facts.Clusters["test"].Hash != "new" {
			t.Errorf("another stage was touched: %v", r.state.Clusters)
		}
	})
	t.Run("WhileItBakes", func(t *testing.T) {
		t.Parallel()
		r := newRun(t, func(s map[string]*rollout.Stage) { s["testing"].Bake = time.Hour })
		r.minutes(30)
		r.fact("test", func(f *rollout.Fact) { f.Healthy, f.Failed = false, "its pods crash" })
		r.log = nil
		r.minutes(1)
		r.wants(rollout.PhasePaused, "08:31 testing: paused: test: its pods crash")
	})
	t.Run("TakesTooLong", func(t *testing.T) {
		t.Parallel()
		r := newRun(t, nil)
		if want := start.Add(10 * time.Minute); !r.last.Wake.Equal(want) {
			t.Errorf("wake at %s", r.last.Wake)
		}
		r.log = nil
		r.minutes(9, "test")
		r.wants(rollout.PhaseProgressing)
		r.minutes(1, "test")
		r.wants(rollout.PhasePaused, "08:10 testing: paused: test did not get there in 10m0s")
	})
	t.Run("OfTheOldHash", func(t *testing.T) { // what it ran before had failed, and this is the cure
		t.Parallel()
		r := newRun(t, nil)
		r.fact("test", func(f *rollout.Fact) { f.Healthy, f.Failed = false, "its pods crash" })
		r.decide()
		r.fact("test", func(f *rollout.Fact) { f.Healthy, f.Failed = true, "" })
		r.log = nil
		r.minutes(1)
		r.wants(rollout.PhaseProgressing, "08:01 testing test: settled", "08:01 testing: passed", "08:01 canary: opened", "08:01 canary canary-1: released")
	})
}

// TestStaleEvidence: health that was seen before, or at another hash, opens nothing.
func TestStaleEvidence(t *testing.T) {
	t.Parallel()
	r := newRun(t, nil)
	r.log = nil
	r.facts.Now = r.facts.Now.Add(time.Minute)
	for name, change := range map[string]func(*rollout.Fact){
		"seen before it was released": func(f *rollout.Fact) { f.Hash, f.Seen = "new", start.Add(-time.Second) },
		"another hash":                func(f *rollout.Fact) { f.Hash, f.Seen = "other", r.facts.Now },
		"not healthy":                 func(f *rollout.Fact) { f.Hash, f.Healthy = "new", false },
	} {
		was := r.facts.Clusters["test"]
		r.fact("test", change)
		r.decide()
		if len(r.log) > 0 {
			t.Errorf("%s: %q", name, r.log)
		}
		r.facts.Clusters["test"] = was
	}
	r.facts.Checks[rollout.Check{Change: "old", Stage: "canary", Name: "prometheus"}] = rollout.Result{Passed: true}
	r.course.Stages[1].Before = []string{"prometheus"}
	r.minutes(1)
	if _, released := r.state.Clusters["canary-1"]; released {
		t.Error("the check of another change opened the stage")
	}
}

// TestChecks: before a stage and after it; what has no answer is waited for, and what
// fails stops the rollout.
func TestChecks(t *testing.T) {
	t.Parallel()
	checked := func(t *testing.T) *run {
		t.Helper()
		return newRun(t, func(s map[string]*rollout.Stage) {
			s["canary"].Before, s["canary"].After = []string{"approval", "load"}, []string{"errors"}
		})
	}
	t.Run("Pass", func(t *testing.T) {
		t.Parallel()
		r := checked(t)
		r.minutes(1)
		r.log = nil
		if got := r.last.Waiting["canary-1"]; got != "check approval has not passed" {
			t.Errorf("canary-1: %s", got)
		}
		r.check("approval", false, true, "")
		if got := r.last.Waiting["canary-1"]; got != "check load has not passed" {
			t.Errorf("canary-1: %s", got)
		}
		r.check("load", false, true, "")
		r.wants(rollout.PhaseProgressing, "08:01 canary: opened", "08:01 canary canary-1: released")
		r.check("load", false, false, "later") // it is open
		r.minutes(10)
		r.wants(rollout.PhaseProgressing, "08:02 canary canary-1: settled", "08:02 canary canary-2: released", "08:03 canary canary-2: settled")
		r.check("errors", true, true, "")
		r.wants(rollout.PhaseProgressing, "08:11 canary: passed", "08:11 production: opened", "08:11 production prod-1: released")
	})
	t.Run("FailBefore", func(t *testing.T) {
		t.Parallel()
		r := checked(t)
		r.minutes(1)
		r.log = nil
		r.check("load", false, false, "5 > 4")
		r.wants(rollout.PhasePaused, "08:01 canary: paused: check load failed: 5 > 4")
		if len(r.state.Clusters) != 1 {
			t.Errorf("%v were released", r.state.Clusters)
		}
	})
	t.Run("FailAfter", func(t *testing.T) {
		t.Parallel()
		r := checked(t)
		r.check("load", false, true, "")
		r.check("approval", false, true, "")
		r.minutes(3)
		r.log = nil
		r.check("errors", true, false, "12 % of requests")
		r.wants(rollout.PhasePaused, "08:03 canary: paused: check errors failed: 12 % of requests")
	})
}

// TestHeldBack: a window that is closed, and a freeze, hold what was not released yet, and
// say so. What is on its way goes on.
func TestHeldBack(t *testing.T) {
	t.Parallel()
	afternoon, err := window.New("0 14 * * *", time.Hour, "")
	if err != nil {
		t.Fatal(err)
	}
	r := newRun(t, func(s map[string]*rollout.Stage) { s["canary"].Windows = window.Windows{afternoon} })
	r.facts.Frozen["test"] = "double 11"
	r.minutes(1)
	r.log = nil
	if got := r.last.Waiting["canary-1"]; got != "the window opens at 2026-03-02T14:00:00Z" {
		t.Errorf("canary-1: %s", got)
	}
	if want := at(t, "2026-03-02T14:00:00Z"); !r.last.Wake.Equal(want) {
		t.Errorf("wake at %s", r.last.Wake)
	}
	r.minutes(6*60 - 2)
	r.wants(rollout.PhaseProgressing)
	r.facts.Frozen["canary-1"] = "double 11"
	r.minutes(2) // a later one goes first
	r.wants(rollout.PhaseProgressing, "14:00 canary canary-2: released", "14:01 canary canary-2: settled")
	if got := r.last.Waiting["canary-1"]; got != "frozen: double 11" {
		t.Errorf("canary-1: %s", got)
	}
	clear(r.facts.Frozen)
	r.minutes(2)
	r.wants(rollout.PhaseProgressing, "14:02 canary canary-1: released",
		"14:03 canary canary-1: settled", "14:03 canary: passed", "14:03 production: opened", "14:03 production prod-1: released")
}

// TestExempt: a pinned or paused cluster takes no part, and no other cluster waits for it.
func TestExempt(t *testing.T) {
	t.Parallel()
	r := newRun(t, nil)
	r.fact("test", func(f *rollout.Fact) { f.Exempt = "pinned to delivery 7" })
	r.fact("canary-1", func(f *rollout.Fact) { f.Exempt, f.Healthy = "paused", true })
	r.log = nil
	r.decide()
	r.wants(rollout.PhaseProgressing, "08:00 testing: passed", "08:00 canary: opened", "08:00 canary canary-2: released")
	if got := r.last.Waiting; got["test"] != "pinned to delivery 7" || got["canary-1"] != "paused" {
		t.Errorf("they wait: %v", got)
	}
}

// TestUnknown: a cluster of which nothing is known is not taken for anything: its stage
// waits for it.
func TestUnknown(t *testing.T) {
	t.Parallel()
	r := newRun(t, nil)
	delete(r.facts.Clusters, "canary-1")
	r.minutes(20)
	if got := r.last.Waiting["canary-1"]; got != "its state is unknown" || len(r.state.Clusters) != 1 {
		t.Errorf("canary-1: %s; released: %v", got, r.state.Clusters)
	}
}

// TestThereAlready: who has the change needs no turn: git was reverted, say, and most
// never left.
func TestThereAlready(t *testing.T) {
	t.Parallel()
	r := newRun(t, nil)
	r.log = nil
	for name := range r.facts.Clusters {
		if name != "canary-2" {
			r.fact(name, func(f *rollout.Fact) { f.Hash = "new" })
		}
	}
	r.minutes(2)
	r.wants(rollout.PhaseComplete, "08:01 testing test: settled", "08:01 testing: passed", "08:01 canary: opened", "08:01 canary canary-2: released",
		"08:02 canary canary-2: settled", "08:02 canary: passed", "08:02 production: opened", "08:02 production: passed", "08:02 : complete")
}

// TestInAHurry: what takes back another change, and a stage that a person promotes,
// wait for health and freezes, and for nothing else.
func TestInAHurry(t *testing.T) {
	t.Parallel()
	slow := func(s map[string]*rollout.Stage) {
		never, err := window.New("0 0 31 2 *", time.Hour, "")
		if err != nil {
			t.Fatal(err)
		}
		c := s["canary"]
		c.Silence, c.Bake, c.Windows, c.Before, c.After = time.Hour, time.Hour, window.Windows{never}, []string{"a"}, []string{"b"}
	}
	for name, hurry := range map[string]func(*run){
		"Back":     func(r *run) { r.course.Back = true },
		"Promoted": func(r *run) { r.state.Promoted = map[string]string{"canary": "ada: CVE-2026-1"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRun(t, slow)
			hurry(r)
			r.check("a", false, false, "no")
			r.minutes(1)
			if len(r.state.Clusters) != 2 {
				t.Errorf("more than one at once: %v", r.state.Clusters)
			}
			r.facts.Frozen["canary-2"] = "double 11"
			r.minutes(5)
			if got := r.last.Waiting["canary-2"]; got != "frozen: double 11" {
				t.Errorf("canary-2: %s", got)
			}
			clear(r.facts.Frozen)
			r.minutes(2)
			if r.state.Passed["canary"].IsZero() {
				t.Errorf("the canary has not passed: %v", r.last.Waiting)
			}
		})
	}
	r := newRun(t, slow)
	r.check("a", false, true, "")
	r.minutes(1)
	if got := r.last.Waiting["canary-1"]; got != "its window never opens" {
		t.Errorf("canary-1: %s", got)
	}
}
