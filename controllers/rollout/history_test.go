package rollout_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry/window"
)

var start = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC) // a Monday

// world is a fleet and its people, drawn at random: clusters that take a change when
// they are released, and not before; that fail, get well, and are pinned; checks that
// pass, fail and answer for changes of the past; freezes; new commits, reverts; a
// controller that is killed before or after it has written down what it decided.
type world struct {
	t       *rapid.T
	now     time.Time
	course  rollout.Course
	state   rollout.State // as it is written down
	facts   rollout.Facts
	changes int
	// settledAt are hashes that a cluster was healthy at.
	before map[string]string
}

func (w *world) clusters() []string {
	var out []string
	for _, s := range w.course.Stages {
		out = append(out, s.Clusters...)
	}
	return out
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, now: start, before: map[string]string{}}
	n := 0
	for i := range rapid.IntRange(1, 4).Draw(t, "stages") {
		s := rollout.Stage{
			Name: fmt.Sprintf("stage-%d", i), MaxConcurrent: rapid.IntRange(1, 3).Draw(t, "concurrent"),
			MaxUnavailable: rapid.IntRange(1, 3).Draw(t, "unavailable"), Silence: minutes(t, "silence", 3), Bake: minutes(t, "bake", 5),
			Timeout: minutes(t, "timeout", 20), Rollback: rapid.Bool().Draw(t, "rollback"),
		}
		for range rapid.IntRange(0, 4).Draw(t, "clusters") {
			s.Clusters = append(s.Clusters, fmt.Sprintf("c%02d", n))
			n++
		}
		if rapid.IntRange(0, 3).Draw(t, "has a window") == 0 {
			hours, err := window.New(rapid.SampledFrom([]string{"*/20 * * * *", "10 * * * *", "5,35 8-10 * * 1-5"}).Draw(t, "cron"), 10*time.Minute, "")
			if err != nil {
				t.Fatal(err)
			}
			s.Windows = window.Windows{hours}
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "checks before") {
			s.Before = append(s.Before, fmt.Sprintf("b%d", i))
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "checks after") {
			s.After = append(s.After, fmt.Sprintf("a%d", i))
		}
		w.course.Stages = append(w.course.Stages, s)
	}
	w.facts = rollout.Facts{Clusters: map[string]rollout.Fact{}, Frozen: map[string]string{}, Checks: map[rollout.Check]rollout.Result{}}
	for _, name := range w.clusters() {
		w.facts.Clusters[name] = rollout.Fact{Hash: "h0", Seen: w.now, Healthy: true}
	}
	w.commit(false)
	return w
}

func minutes(t *rapid.T, what string, most int) time.Duration {
	return time.Duration(rapid.IntRange(0, most).Draw(t, what)) * time.Minute
}

// commit begins another change: the one before is superseded, wherever it was.
func (w *world) commit(back bool) {
	w.changes++
	was := w.course.From
	w.course.Change, w.course.Back = fmt.Sprintf("change-%d", w.changes), back
	w.course.Want, w.course.From, w.state = map[string]string{}, map[string]string{}, rollout.State{}
	for _, name := range w.clusters() {
		w.course.From[name] = w.facts.Clusters[name].Hash
		w.course.Want[name] = fmt.Sprintf("h%d", w.changes)
		if back && was[name] != "" {
			w.course.Want[name] = was[name]
		}
	}
}

// happens is what the controller does not decide.
func (w *world) happens() {
	t := w.t
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 240).Draw(t, "seconds")) * time.Second)
	all := w.clusters()
	if len(all) == 0 {
		return
	}
	name := rapid.SampledFrom(all).Draw(t, "cluster")
	f := w.facts.Clusters[name]
	stage := rapid.SampledFrom(w.course.Stages).Draw(t, "stage")
	switch rapid.SampledFrom([]string{
		"seen", "seen", "seen", "seen", "seen", "seen", "check", "check", "check", "check", "resume", "resume", "well", "thaw",
		"unwell", "fails", "pinned", "freeze", "commit", "revert",
	}).Draw(t, "event") {
	case "seen": // the deliveries of all clusters come in
		for _, name := range all {
			f := w.facts.Clusters[name]
			if c, released := w.state.Clusters[name]; released && f.Exempt == "" {
				hash := w.course.Want[name]
				if c.Back {
					hash = w.course.From[name]
				}
				if f.Hash != hash {
					f.Failed = ""
				}
				f.Hash, f.Healthy = hash, f.Failed == ""
			}
			f.Seen = w.now
			w.facts.Clusters[name] = f
		}
		return
	case "unwell":
		f.Healthy = false
	case "well":
		f.Healthy, f.Failed = true, ""
	case "fails":
		f.Healthy, f.Failed = false, "its pods crash"
	case "pinned":
		f.Exempt = rapid.SampledFrom([]string{"", "pinned"}).Draw(t, "exempt")
	case "freeze":
		w.facts.Frozen[name] = "double 11"
	case "thaw":
		clear(w.facts.Frozen)
	case "check":
		after := rapid.Bool().Draw(t, "after")
		names := stage.Before
		if after {
			names = stage.After
		}
		change := w.course.Change
		if len(names) > 0 {
			if rapid.IntRange(0, 4).Draw(t, "of the past") == 0 {
				change = fmt.Sprintf("change-%d", w.changes-1)
			}
			w.facts.Checks[rollout.Check{Change: change, Stage: stage.Name, Name: rapid.SampledFrom(names).Draw(t, "check"), After: after}] = rollout.Result{Passed: rapid.IntRange(0, 9).Draw(t, "passes") > 0}
		}
	case "commit":
		if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
			w.commit(false)
		}
		return
	case "revert":
		if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
			w.commit(true)
		}
		return
	case "resume": // a person
		if w.state.Phase == rollout.PhasePaused {
			w.state.Phase = rollout.PhaseProgressing
		}
	}
	f.Seen = w.now
	w.facts.Clusters[name] = f
}

// passed says in the test's own words what a check said of this change.
func (w *world) passed(stage rollout.Stage, names []string, after bool) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		return !w.facts.Checks[rollout.Check{Change: w.course.Change, Stage: stage.Name, Name: name, After: after}].Passed
	})
}

// judge compares what is about to be written down with what was, and knows the rules
// by their wording in docs/concepts/rollouts.md alone.
func (w *world) judge(next rollout.State) {
	t, was := w.t, w.state
	gate := true // all stages before have passed
	for _, s := range w.course.Stages {
		var fresh []string
		moving, unavailable := 0, 0
		var last time.Time // before this decision
		for _, name := range s.Clusters {
			c, released := next.Clusters[name]
			old, known := was.Clusters[name]
			f := w.facts.Clusters[name]
			if known && (!released || !c.Released.Equal(old.Released) || !old.Settled.IsZero() && !c.Settled.Equal(old.Settled)) {
				t.Fatalf("%s was released, and that is forgotten: %+v, %+v", name, old, c)
			}
			if released && !known {
				fresh = append(fresh, name)
			}
			onItsWay := released && c.Settled.IsZero() && f.Exempt == ""
			if onItsWay {
				moving++
			}
			if onItsWay || !f.Healthy {
				unavailable++
			}
			for _, at := range []time.Time{old.Released, c.Settled} {
				if at.After(last) {
					last = at
				}
			}
			if !c.Settled.IsZero() && old.Settled.IsZero() && (!f.Healthy || f.Hash != w.course.Want[name] || f.Seen.Before(c.Released)) {
				t.Fatalf("%s settled by stale evidence: %+v, wants %s", name, f, w.course.Want[name])
			}
		}
		hurried := w.course.Back
		if len(fresh) > 0 {
			switch {
			case !gate:
				t.Fatalf("%v released before the stages before %s have passed", fresh, s.Name)
			case was.Phase != "" && was.Phase != rollout.PhaseProgressing:
				t.Fatalf("%v released while %s", fresh, was.Phase)
			case !hurried && next.Opened[s.Name].IsZero(), !hurried && was.Opened[s.Name].IsZero() && !w.passed(s, s.Before, false):
				t.Fatalf("%v released, and the checks before %s have not passed", fresh, s.Name)
			case moving > s.MaxConcurrent:
				t.Fatalf("%d on their way of at most %d", moving, s.MaxConcurrent)
			case unavailable > s.MaxUnavailable:
				t.Fatalf("%d unavailable of at most %d", unavailable, s.MaxUnavailable)
			case !hurried && s.Silence > 0 && (len(fresh) > 1 || !last.IsZero() && w.now.Sub(last) < s.Silence):
				t.Fatalf("%v released in the silence after %s", fresh, last)
			}
			if _, open := s.Windows.At(w.now); !open && !hurried {
				t.Fatalf("%v released outside of the window", fresh)
			}
			for _, name := range fresh {
				if w.facts.Frozen[name] != "" {
					t.Fatalf("%s released in a freeze", name)
				}
			}
		}
		if !next.Passed[s.Name].IsZero() && was.Passed[s.Name].IsZero() {
			if !gate || !hurried && (!w.passed(s, s.After, true) || !last.IsZero() && w.now.Sub(last) < s.Bake) {
				t.Fatalf("%s passed before its time", s.Name)
			}
			for _, name := range s.Clusters {
				if f := w.facts.Clusters[name]; f.Exempt == "" && (!f.Healthy || f.Hash != w.course.Want[name]) {
					t.Fatalf("%s passed, and %s is not there: %+v", s.Name, name, f)
				}
			}
		}
		gate = gate && !next.Passed[s.Name].IsZero()
	}
	if next.Phase == rollout.PhaseComplete && !gate {
		t.Fatal("complete, and not all stages have passed")
	}
}

// TestHistories: whatever happens, in whatever order, and wherever the controller is
// killed, no gate is passed that is not open.
func TestHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.happens()
			w.facts.Now = w.now
			d := rollout.Decide(w.course, w.state, w.facts)
			w.judge(d.State)
			if !d.Wake.IsZero() && !d.Wake.After(w.now) {
				t.Fatalf("it wants to be woken in the past: %s", d.Wake)
			}
			if rapid.IntRange(0, 5).Draw(t, "killed") > 0 { // else nothing of it was written down
				w.state = d.State
			}
		}
	})
}

// TestHistoriesEnd: when nothing fails, freezes or is forbidden any more, and people
// say yes, every change gets everywhere, by the times it asks to be woken alone.
func TestHistoriesEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			w.happens()
			w.facts.Now = w.now
			w.state = rollout.Decide(w.course, w.state, w.facts).State
		}
		w.commit(false)
		clear(w.facts.Frozen)
		for _, s := range w.course.Stages {
			for _, name := range s.Before {
				w.facts.Checks[rollout.Check{Change: w.course.Change, Stage: s.Name, Name: name}] = rollout.Result{Passed: true}
			}
			for _, name := range s.After {
				w.facts.Checks[rollout.Check{Change: w.course.Change, Stage: s.Name, Name: name, After: true}] = rollout.Result{Passed: true}
			}
		}
		for range 200 {
			for _, name := range w.clusters() {
				f := w.facts.Clusters[name]
				f.Healthy, f.Failed, f.Exempt, f.Seen = true, "", "", w.now
				if _, released := w.state.Clusters[name]; released {
					f.Hash = w.course.Want[name]
				}
				w.facts.Clusters[name] = f
			}
			w.facts.Now = w.now
			d := rollout.Decide(w.course, w.state, w.facts)
			w.judge(d.State)
			if d.State.Phase == rollout.PhaseComplete {
				if len(d.Waiting) > 0 {
					t.Fatalf("the rollout is complete, but clusters wait: %v", d.Waiting)
				}
				return
			}
			if len(d.Waiting) == 0 && len(d.Events) == 0 && d.Wake.IsZero() {
				t.Fatalf("no cluster waits, and the rollout does not end: %+v", d.State)
			}
			w.state = d.State
			switch {
			case len(d.Events) > 0:
				w.now = w.now.Add(time.Second)
			case d.Wake.IsZero():
				t.Fatalf("the rollout waits forever: %v", d.Waiting)
			default:
				w.now = d.Wake
			}
		}
		t.Fatalf("it does not end: %+v", w.state)
	})
}
