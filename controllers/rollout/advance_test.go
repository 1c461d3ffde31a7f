package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// way is a rollout over clusters test, canary, prod-1 and prod-2, of which a test says
// what git wants and what they tell. A cluster that is released is there at the next look.
type way struct {
	t      *testing.T
	now    time.Time
	in     input
	status v1alpha1.RolloutStatus
	wake   time.Time
	writes int
}

var wayStart = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

func newWay(t *testing.T) *way {
	t.Helper()
	w := &way{t: t, now: wayStart, in: input{
		component: "web", pipeline: "standard", revision: "1111", clusters: map[string]known{}, frozen: map[string]string{}, checks: map[Check]answer{}, asks: map[string]*v1alpha1.Stage{},
		stages: []Stage{
			{Name: "testing", Clusters: []string{"test"}},
			{Name: "canary", Clusters: []string{"canary"}, Bake: time.Hour},
			{Name: "production", Clusters: []string{"prod-1", "prod-2"}},
		},
	}}
	for i := range w.in.stages {
		s := &w.in.stages[i]
		s.MaxConcurrent, s.MaxUnavailable, s.Timeout = 1, 1, 10*time.Minute
		for _, name := range s.Clusters {
			w.in.clusters[name] = known{want: "v1", has: "v1", gets: "v1", fact: Fact{Hash: "v1", Healthy: true}}
		}
	}
	return w
}

// word has a person say something.
func (w *way) word(say func(v1alpha1.RolloutStatus, Command) (v1alpha1.RolloutStatus, error), because string) {
	w.t.Helper()
	next, err := say(w.status, Command{By: "ada", Because: because, At: w.now})
	if err != nil {
		w.t.Fatal(err)
	}
	w.status = next
}

func (w *way) all() []string { return []string{"test", "canary", "prod-1", "prod-2"} }

// commit has git want something of some clusters, as those tell that have looked.
func (w *way) commit(revision, want string, of ...string) {
	w.in.revision = revision
	for _, name := range of {
		w.tells(name, func(k *known) { k.want, k.gets = want, want })
	}
}

// pushed is a commit of which no cluster has told yet what it means.
func (w *way) pushed(revision string) {
	w.in.revision = revision
	for _, name := range w.all() {
		w.tells(name, func(k *known) { k.want, k.why = "", "it has not told yet" })
	}
}

func (w *way) tells(name string, change func(*known)) {
	k := w.in.clusters[name]
	change(&k)
	w.in.clusters[name] = k
}

// look is one look, after which clusters that were released are there, but those that hang.
func (w *way) look(hang ...string) {
	w.t.Helper()
	before := fmt.Sprint(w.status)
	was := w.status
	s := advance(w.status, w.in, w.now)
	if got := fmt.Sprint(was); got != before {
		w.t.Fatalf("the argument was modified: %s, %s", before, got)
	}
	if !same(w.status, s.status) {
		w.writes++
	}
	w.status, w.wake = s.status, s.wake
	for _, c := range w.status.Clusters {
		if c.Released == nil || slices.Contains(hang, c.Name) {
			continue
		}
		w.tells(c.Name, func(k *known) {
			switch {
			case c.Back:
				k.fact = Fact{Hash: c.From, Healthy: true}
			case k.want == c.Want:
				k.fact.Hash, k.has = c.Want, c.Want
			}
		})
	}
}

func (w *way) looks(n int, hang ...string) {
	w.t.Helper()
	for range n {
		w.now = w.now.Add(time.Minute)
		w.look(hang...)
	}
}

// released are the clusters that were released to what git wants.
func (w *way) released() string {
	var out []string
	for _, c := range w.status.Clusters {
		if c.Released != nil {
			out = append(out, c.Name)
		}
	}
	return strings.Join(out, " ")
}

func (w *way) is(phase v1alpha1.RolloutPhase, released string) {
	w.t.Helper()
	if w.status.Phase != phase || w.released() != released {
		w.t.Errorf("it is %s: %q, and released %q; want %s and %q\n%s", w.status.Phase, w.status.Because, w.released(), phase, released, strings.Join(w.lines(), "\n"))
	}
}

func (w *way) lines() []string {
	var out []string
	for _, e := range w.status.Timeline {
		out = append(out, strings.Join(strings.Fields(e.Stage+" "+e.Cluster+" "+e.Message), " "))
	}
	return out
}

func (w *way) cluster(name string) v1alpha1.RolloutCluster {
	i := slices.IndexFunc(w.status.Clusters, func(c v1alpha1.RolloutCluster) bool { return c.Name == name })
	if i < 0 {
		w.t.Fatalf("no cluster %s", name)
	}
	return w.status.Clusters[i]
}

// TestNothingToBring: where all clusters have what git wants there is no rollout, and one
// that has ended is written no more, whatever becomes of its clusters.
func TestNothingToBring(t *testing.T) {
	t.Parallel()
	w := newWay(t)
	w.looks(3)
	if w.status.Change != "" || w.writes > 0 {
		t.Errorf("there is a rollout: %+v", w.status)
	}
	w.commit("2222", "v2", w.all()...)
	w.looks(80)
	w.is(v1alpha1.RolloutComplete, "test canary prod-1 prod-2")
	w.writes = 0
	w.tells("prod-1", func(k *known) { k.fact.Healthy, k.fact.Failed = false, "its pods crash" })
	w.in.revision = "3333" // about something else
	w.looks(100)
	if w.writes > 0 || !w.wake.IsZero() {
		t.Errorf("%d writes of a rollout that has ended, wake at %s", w.writes, w.wake)
	}
}

// TestLateTellers: clusters tell one after the other what a commit means for them. Who
// comes first in its pipeline goes first, also when it tells last; what is told later
// ends nothing that has begun.
func TestLateTellers(t *testing.T) {
	t.Parallel()
	w := newWay(t)
	w.commit("2222", "v2", w.all()...)
	w.looks(80)
	w.pushed("3333")
	w.looks(2)
	w.commit("3333", "v3", "prod-1")
	w.looks(30)
	w.is(v1alpha1.RolloutProgressing, "")
	if got := w.cluster("test").Because; got != "it has not told yet" {
		t.Errorf("test waits: %s", got)
	}
	w.commit("3333", "v3", "prod-2")
	w.commit("3333", "v2", "canary") // nothing new there
	w.looks(30)
	w.is(v1alpha1.RolloutProgressing, "")
	w.commit("3333", "v3", "test")
	w.looks(2)
	w.is(v1alpha1.RolloutProgressing, "test prod-1")
	w.looks(3)
	w.is(v1alpha1.RolloutComplete, "test prod-1 prod-2")
	begins := slices.DeleteFunc(w.lines(), func(l string) bool { return !strings.HasPrefix(l, "begins") })
	if want := []string{"begins: v1 → v2, revision 2222", "begins: v2 → v3, revision 3333"}; !cmp.Equal(begins, want) {
		t.Errorf("the timeline says %q", begins)
	}
}

// TestBakeOutlivesACommit: a commit about later stages does not end the bake of an
// earlier one, and what has passed in between passes for it, too.
func TestBakeOutlivesACommit(t *testing.T) {
	t.Parallel()
	w := newWay(t)
	w.commit("2222", "v2", w.all()...)
	w.looks(30)
	w.is(v1alpha1.RolloutProgressing, "test canary")
	w.commit("3333", "v2b", "prod-1")
	w.looks(30)
	w.is(v1alpha1.RolloutProgressing, "test canary")
	w.looks(10)
	w.is(v1alpha1.RolloutComplete, "test canary prod-1 prod-2")
	if c := w.cluster("prod-1"); c.Want != "v2b" || c.From != "v1" {
		t.Errorf("prod-1: %+v", c)
	}
}

// TestSuperseded: a newer commit begins at the first stage, clusters that got the old one
// among them, and they would go back to what they were seen to run well.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	w := newWay(t)
	w.commit("2222", "v2", w.all()...)
	w.looks(1)
	w.looks(5, "canary")
	w.is(v1alpha1.RolloutProgressing, "test canary")
	w.commit("3333", "v3", w.all()...)
	w.look("test")
	w.is(v1alpha1.RolloutProgressing, "test")
	if got := []string{w.cluster("test").From, w.cluster("canary").From, w.cluster("prod-1").From}; !cmp.Equal(got, []string{"v2", "v1", ""}) {
		t.Errorf("they would go back to %q", got)
	}
	w.looks(80)
	w.is(v1alpha1.RolloutComplete, "test canary prod-1 prod-2")
	if !slices.Contains(w.lines(), "superseded: git wants v3 of revision 3333") {
		t.Errorf("the timeline does not say so: %q", w.lines())
	}
}

// TestFailedAndSuperseded: a failure ends where git wants something else of the stage
// that failed, and not where it wants something else after it.
func TestFailedAndSuperseded(t *testing.T) {
	t.Parallel()
	for name, rollback := range map[string]bool{"Paused": false, "RolledBack": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWay(t)
			w.in.stages[1].Rollback = rollback
			w.commit("2222", "v2", w.all()...)
			w.looks(2, "canary")
			w.tells("canary", func(k *known) { k.fact = Fact{Hash: "v2", Failed: "its pods crash"} })
			w.looks(5)
			failed := v1alpha1.RolloutPaused
			if rollback {
				failed = v1alpha1.RolloutRolledBack
			}
			w.is(failed, "test canary")
			w.commit("3333", "v2b", "prod-2")
			w.looks(5)
			w.is(failed, "test canary")
			w.tells("canary", func(k *known) { k.fact.Healthy, k.fact.Failed = true, "" })
			w.commit("4444", "v3", "canary", "prod-1", "prod-2")
			w.looks(80)
			w.is(v1alpha1.RolloutComplete, "test canary prod-1 prod-2")
		})
	}
}

// TestReverted: a revert takes back what clusters got, in their order, and waits for no
// bake; whoever tells first what it means. Those that had nothing stay as they are.
func TestReverted(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]string{
		"InOrder": {"test", "canary", "prod-1", "prod-2"}, "LastFirst": {"prod-2", "prod-1", "canary", "test"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWay(t)
			w.in.stages[0].Bake = time.Hour
			w.commit("2222", "v2", w.all()...)
			w.looks(70)
			w.is(v1alpha1.RolloutProgressing, "test canary")
			w.pushed("3333")
			for _, name := range order {
				w.commit("3333", "v1", name)
				w.look()
			}
			w.looks(5)
			if !slices.Contains(w.lines(), "takes back: v2 → v1, revision 3333") {
				t.Errorf("the timeline does not say so: %q", w.lines())
			}
			if !w.status.Back || w.in.clusters["test"].fact.Hash != "v1" || w.in.clusters["canary"].fact.Hash != "v1" {
				t.Errorf("not taken back: %+v", w.in.clusters)
			}
			w.is(v1alpha1.RolloutComplete, "test canary")
		})
	}
	t.Run("AndMore", func(t *testing.T) { // what brings something besides is a change like any other
		t.Parallel()
		w := newWay(t)
		w.in.stages[0].Bake = time.Hour
		w.commit("2222", "v2", w.all()...)
		w.looks(70)
		w.commit("3333", "v1", "test", "canary")
		w.commit("3333", "v3", "prod-1", "prod-2")
		w.looks(30)
		w.is(v1alpha1.RolloutProgressing, "test")
	})
}

// TestGoesBackToWhatItHad: what a cluster goes back to is what it ran before this change,
// however many there were before and whoever told first what this one means.
func TestGoesBackToWhatItHad(t *testing.T) {
	t.Parallel()
	third := func(t *testing.T) *way {
		t.Helper()
		w := newWay(t)
		w.in.stages[1].Rollback = true
		for _, change := range []string{"2222", "3333"} {
			w.commit(change, "v"+change[:1], w.all()...)
			w.looks(80)
			w.is(v1alpha1.RolloutComplete, "test canary prod-1 prod-2")
		}
		w.pushed("4444")
		for _, name := range []string{"prod-2", "prod-1", "canary", "test"} {
			w.commit("4444", "v4", name)
			w.look()
		}
		return w
	}
	t.Run("Rollback", func(t *testing.T) {
		t.Parallel()
		w := third(t)
		w.looks(2, "canary")
		w.tells("canary", func(k *known) { k.fact = Fact{Hash: "v4", Failed: "its pods crash"} })
		w.looks(5)
		w.is(v1alpha1.RolloutRolledBack, "test canary")
		if got := w.in.clusters["canary"].fact.Hash; got != "v3" {
			t.Errorf("canary went back to %s, and had v3", got)
		}
	})
	t.Run("Revert", func(t *testing.T) {
		t.Parallel()
		w := third(t)
		w.looks(3)
		w.is(v1alpha1.RolloutProgressing, "test canary")
		w.pushed("5555")
		for _, name := range []string{"prod-2", "canary", "test", "prod-1"} {
			w.commit("5555", "v3", name)
			w.look()
		}
		w.looks(3)
		if !w.status.Back {
			t.Errorf("it is no change that is taken back: %q", w.lines())
		}
		w.is(v1alpha1.RolloutComplete, "test canary")
	})
}

// TestRevertIsReverted: a change was reverted before a cluster had it, and the revert was reverted.
// The cluster gets the change like any other: after the check before its stage.
func TestRevertIsReverted(t *testing.T) {
	t.Parallel()
	w := newWay(t)
	w.in.stages[0].Before = []string{"up"}
	w.in.asks["testing"] = &v1alpha1.Stage{Name: "testing", Before: []v1alpha1.Check{{Name: "up", HTTP: &v1alpha1.HTTPCheck{}}}}
	w.commit("2222", "v2", w.all()...)
	w.looks(2)
	w.is(v1alpha1.RolloutProgressing, "") // the check has no answer yet
	w.pushed("3333")
	w.commit("3333", "v1", "canary")
	w.looks(2)
	w.pushed("4444")
	w.commit("4444", "v2", "test")
	w.looks(2)
	w.is(v1alpha1.RolloutProgressing, "")
}

// TestPausedByAPerson: until that person says otherwise, whatever git wants meanwhile.
func TestPausedByAPerson(t *testing.T) {
	t.Parallel()
	w := newWay(t)
	w.commit("2222", "v2", w.all()...)
	w.looks(2)
	w.word(Pause, "look at the graphs")
	w.looks(100)
	w.is(v1alpha1.RolloutPaused, "test canary")
	w.commit("3333", "v3", w.all()...)
	w.looks(100)
	w.is(v1alpha1.RolloutPaused, "")
	if got := w.cluster("prod-1").Because; got != "the rollout is Paused: paused by ada: look at the graphs" {
		t.Errorf("prod-1 waits: %s", got)
	}
	w.word(Resume, "fine")
	w.looks(100)
	w.is(v1alpha1.RolloutComplete, "test canary prod-1 prod-2")
}

// TestExemptLater: a cluster that was pinned gets the change when the pin ends, also of
// a rollout that has ended.
func TestExemptLater(t *testing.T) {
	t.Parallel()
	w := newWay(t)
	w.commit("2222", "v2", w.all()...)
	w.tells("prod-1", func(k *known) { k.fact.Exempt = "pinned to delivery 3" })
	w.looks(80)
	w.is(v1alpha1.RolloutComplete, "test canary prod-2")
	w.tells("prod-1", func(k *known) { k.fact.Exempt = "" })
	w.looks(2)
	w.is(v1alpha1.RolloutComplete, "test canary prod-1") // prod-2 has no part in it
}

// TestPinnedTellsLate: a stage that was opened for what was known then is opened anew for a
// cluster that told later what it is to get; that it was pinned meanwhile changes nothing.
func TestPinnedTellsLate(t *testing.T) {
	t.Parallel()
	w := newWay(t)
	w.checked(2, v1alpha1.Check{Name: "load", HTTP: &v1alpha1.HTTPCheck{}})
	yes := func() {
		w.in.checks = map[Check]answer{{Change: w.status.Stages[2].Evidence, Stage: "production", Name: "load"}: {yes: true}}
	}
	w.commit("2222", "v2", "test", "canary", "prod-2")
	w.tells("prod-1", func(k *known) { k.want, k.fact.Exempt = "", "pinned to delivery 3" })
	w.looks(80)
	yes()
	w.look("prod-2")
	w.is(v1alpha1.RolloutProgressing, "test canary prod-2")
	w.tells("prod-1", func(k *known) { k.want, k.gets = "v2", "v2" })
	w.look()
	w.tells("prod-1", func(k *known) { k.fact.Exempt = "" })
	w.looks(5)
	w.is(v1alpha1.RolloutProgressing, "test canary prod-2")
	yes()
	w.looks(5)
	w.is(v1alpha1.RolloutComplete, "test canary prod-1 prod-2")
}

// TestIdleStages: what a stage has no part in needs none of its checks.
func TestIdleStages(t *testing.T) {
	t.Parallel()
	w := newWay(t)
	for i := range w.in.stages[1:] {
		w.checked(i+1, v1alpha1.Check{Name: "approval", Approval: &v1alpha1.ApprovalCheck{}})
	}
	w.commit("2222", "v2", "prod-1")
	w.looks(5)
	w.is(v1alpha1.RolloutProgressing, "")
	if got := w.cluster("prod-1").Because; got != "check approval has not passed" || w.status.Stage != "production" {
		t.Errorf("prod-1 waits in %s: %s", w.status.Stage, got)
	}
	stage := w.status.Stages[2]
	w.in.checks[Check{Change: "another", Stage: "production", Name: "approval"}] = answer{yes: true}
	w.in.checks[Check{Change: stage.Evidence, Stage: "canary", Name: "approval"}] = answer{yes: true}
	w.looks(1)
	w.is(v1alpha1.RolloutProgressing, "")
	w.in.checks[Check{Change: stage.Evidence, Stage: "production", Name: "approval"}] = answer{yes: true}
	w.looks(2)
	w.is(v1alpha1.RolloutComplete, "prod-1")
}

// checked has a stage opened by checks.
func (w *way) checked(stage int, before ...v1alpha1.Check) {
	s := &w.in.stages[stage]
	w.in.asks[s.Name] = &v1alpha1.Stage{Name: s.Name, Before: before}
	for _, c := range before {
		s.Before = append(s.Before, c.Name)
	}
}

// answers has the canary's check load answer so from now on.
func (w *way) answers(is answer) {
	w.in.checks = map[Check]answer{{Change: w.status.Stages[1].Evidence, Stage: "canary", Name: "load"}: is}
}

// TestChecksInTime: a check passes when it holds for as long as it has to, without a
// break, and fails when it has not in time; what it found is of what its stage brings.
// What a controller found that has ended says nothing of the time in which none looked.
func TestChecksInTime(t *testing.T) {
	t.Parallel()
	load := v1alpha1.Check{
		Name: "load", HTTP: &v1alpha1.HTTPCheck{}, For: &metav1.Duration{Duration: 5 * time.Minute}, Timeout: &metav1.Duration{Duration: 20 * time.Minute},
	}
	begun := func(t *testing.T) *way {
		t.Helper()
		w := newWay(t)
		w.checked(1, load)
		w.commit("2222", "v2", w.all()...)
		w.looks(3)
		w.is(v1alpha1.RolloutProgressing, "test")
		return w
	}
	t.Run("Holds", func(t *testing.T) {
		t.Parallel()
		w := begun(t)
		w.answers(answer{yes: true})
		w.looks(3)
		w.answers(answer{why: "5 > 4"}) // a break
		w.looks(1)
		w.is(v1alpha1.RolloutProgressing, "test")
		if got := w.cluster("canary").Because; got != "check load has not passed: 5 > 4" {
			t.Errorf("canary waits: %s", got)
		}
		w.writes = 0
		w.answers(answer{why: "6 > 4"})
		w.looks(3)
		if w.writes > 0 {
			t.Errorf("%d writes of another number", w.writes)
		}
		w.answers(answer{yes: true})
		w.looks(5)
		w.is(v1alpha1.RolloutProgressing, "test")
		w.looks(1)
		w.is(v1alpha1.RolloutProgressing, "test canary")
	})
	t.Run("NobodyLooked", func(t *testing.T) {
		t.Parallel()
		w := begun(t)
		w.answers(answer{yes: true})
		w.looks(4)
		w.answers(answer{yes: true, since: w.now.Add(time.Minute)}) // another process, which begins with the next look
		w.looks(5)
		w.is(v1alpha1.RolloutProgressing, "test")
		w.looks(2)
		w.is(v1alpha1.RolloutProgressing, "test canary")
	})
	t.Run("TooLate", func(t *testing.T) {
		t.Parallel()
		w := begun(t)
		w.answers(answer{why: "5 > 4"})
		w.looks(30)
		w.is(v1alpha1.RolloutPaused, "test")
		if want := "stage canary: check load failed: not in 20m0s: 5 > 4"; w.status.Because != want {
			t.Errorf("because %s, want %s", w.status.Because, want)
		}
		w.word(Resume, "the load is gone")
		w.answers(answer{yes: true})
		w.looks(6)
		w.is(v1alpha1.RolloutProgressing, "test canary")
	})
	t.Run("OfAnotherChange", func(t *testing.T) {
		t.Parallel()
		w := begun(t)
		w.answers(answer{yes: true})
		w.looks(4)
		stale := w.in.checks
		w.commit("3333", "v3", w.all()...)
		w.in.checks = stale
		w.looks(20)
		w.is(v1alpha1.RolloutProgressing, "test")
	})
}

// TestWords: what a person says about a rollout, and when that makes no sense.
func TestWords(t *testing.T) {
	t.Parallel()
	t.Run("PromoteAndAbort", func(t *testing.T) {
		t.Parallel()
		w := newWay(t)
		w.commit("2222", "v2", w.all()...)
		w.looks(5)
		w.is(v1alpha1.RolloutProgressing, "test canary") // it bakes
		w.word(func(s v1alpha1.RolloutStatus, word Command) (v1alpha1.RolloutStatus, error) {
			return Promote(s, "", word)
		}, "CVE-2026-1")
		w.look("prod-1")
		w.is(v1alpha1.RolloutProgressing, "test canary prod-1")
		w.word(Abort, "it was a hoax")
		w.looks(2)
		w.is(v1alpha1.RolloutRolledBack, "test canary prod-1")
		if got := w.in.clusters["prod-1"].fact.Hash; got != "v1" || w.in.clusters["canary"].fact.Hash != "v2" {
			t.Errorf("prod-1 has %s, the canary %s", got, w.in.clusters["canary"].fact.Hash)
		}
		if want := "aborted by ada: it was a hoax"; w.status.Because != want {
			t.Errorf("because: %s", w.status.Because)
		}
		w.word(Resume, "it was none")
		w.looks(5)
		w.is(v1alpha1.RolloutComplete, "test canary prod-1 prod-2")
	})
	t.Run("AfterATimeout", func(t *testing.T) { // who is on its way has its time anew
		t.Parallel()
		w := newWay(t)
		w.commit("2222", "v2", w.all()...)
		w.looks(15, "test")
		w.is(v1alpha1.RolloutPaused, "test")
		w.word(Resume, "the registry is back")
		w.looks(5, "test")
		w.is(v1alpha1.RolloutProgressing, "test")
		w.looks(80)
		w.is(v1alpha1.RolloutComplete, "test canary prod-1 prod-2")
	})
	t.Run("Senseless", func(t *testing.T) {
		t.Parallel()
		word := Command{By: "ada", Because: "so"}
		ended := v1alpha1.RolloutStatus{Phase: v1alpha1.RolloutComplete}
		moving := v1alpha1.RolloutStatus{Phase: v1alpha1.RolloutProgressing, Stage: "a", Stages: []v1alpha1.RolloutStage{{Name: "a"}}}
		for name, says := range map[string]func() error{
			"resume what has ended":    func() error { _, err := Resume(ended, word); return err },
			"resume what goes on":      func() error { _, err := Resume(moving, word); return err },
			"promote what has ended":   func() error { _, err := Promote(ended, "", word); return err },
			"promote what is no stage": func() error { _, err := Promote(moving, "b", word); return err },
			"abort what has ended":     func() error { _, err := Abort(ended, word); return err },
			"pause what is paused":     func() error { _, err := Pause(v1alpha1.RolloutStatus{Paused: "paused by bob: so"}, word); return err },
		} {
			if says() == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}
