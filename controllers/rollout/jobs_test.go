package rollout

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// jobWay is a way on which production waits for the Job smoke before it, or after it,
// and clusters tell of the Jobs that they run.
type jobWay struct {
	*way
	seen map[string]*observation
}

func newJobWay(t *testing.T, after bool) *jobWay {
	t.Helper()
	w := &jobWay{way: newWay(t), seen: map[string]*observation{}}
	checks := []v1alpha1.Check{{Name: "smoke", Job: &v1alpha1.JobCheck{Template: "checks/smoke.yaml"}}}
	stage := &v1alpha1.Stage{Name: "production", Before: checks}
	w.in.stages[2].Before = []string{"smoke"}
	if after {
		stage.Before, stage.After = nil, checks
		w.in.stages[2].Before, w.in.stages[2].After = nil, []string{"smoke"}
	}
	w.in.asks["production"], w.in.jobs = stage, map[string]string{"checks/smoke.yaml": "one"}
	w.in.stages[1].Bake = 0
	return w
}

// goes looks so often, as a loop does: what is asked is answered by what clusters tell.
func (w *jobWay) goes(n int) {
	w.t.Helper()
	for range n {
		w.now = w.now.Add(time.Minute)
		w.in.checks = map[Check]answer{}
		for _, q := range advance(w.status, w.in, w.now).questions {
			w.in.checks[q.Check] = jobs(q, w.seen)
		}
		w.look()
	}
}

// asked is the one run that is asked for; empty: none is.
func (w *jobWay) asked() string {
	w.t.Helper()
	switch asked := JobsAsked(&w.status); len(asked) {
	case 0:
		return ""
	case 1:
		return asked[0].Run
	default:
		w.t.Fatalf("asked for %v", asked)
		return ""
	}
}

func (w *jobWay) tell(cluster, run string, state v1alpha1.CheckState, message string) {
	w.seen[cluster] = &observation{checks: []v1alpha1.DeliveryCheck{{Run: run, Job: "web/web-smoke-" + run, State: state, Message: message}}}
}

// check is how far the Job is, as the Rollout says.
func (w *jobWay) check() v1alpha1.RolloutCheck {
	for _, stage := range w.status.Stages {
		for _, c := range stage.Checks {
			return c
		}
	}
	return v1alpha1.RolloutCheck{}
}

// begin has git want v2, and goes until production is asked.
func (w *jobWay) begin() (run string) {
	w.t.Helper()
	w.commit("2222", "v2", w.all()...)
	w.goes(8)
	if run = w.asked(); run == "" {
		w.t.Fatalf("nothing is asked: %+v", w.status)
	}
	return run
}

// TestJobPasses: a Job is asked for when its stage's turn comes, and opens it when every
// cluster has said that it passed, of this question.
func TestJobPasses(t *testing.T) {
	t.Parallel()
	w := newJobWay(t, false)
	run := w.begin()
	says := func(want string) {
		t.Helper()
		if got := w.check().Message; got != want {
			t.Errorf("it says %q; want %q", got, want)
		}
		if got := w.released(); strings.Contains(got, "prod") {
			t.Errorf("released: %s", got)
		}
	}
	says("its Job is yet to begin on prod-1, prod-2")
	w.tell("prod-1", run, v1alpha1.CheckRunning, "")
	w.tell("prod-2", run, v1alpha1.CheckWaiting, "namespace web does not exist")
	w.goes(1)
	says("its Job runs on prod-1, and can't begin on prod-2 (namespace web does not exist)")
	w.tell("prod-1", run, v1alpha1.CheckPassed, "")
	w.tell("prod-2", "another", v1alpha1.CheckPassed, "")
	w.goes(1)
	says("its Job is yet to begin on prod-2")
	if why := w.status.Clusters[2].Because; why != "check smoke has not passed: its Job is yet to begin on prod-2" {
		t.Errorf("prod-1 waits: %s", why)
	}
	writes := w.writes
	if w.goes(1); w.writes != writes {
		t.Error("nothing new is written")
	}
	if w.asked() != run {
		t.Error("it asks another question")
	}
	w.tell("prod-2", run, v1alpha1.CheckPassed, "")
	w.goes(1)
	if w.asked() != "" || w.check().Passed == nil {
		t.Errorf("it has not passed: %+v", w.check())
	}
	w.goes(4)
	if w.status.Phase != v1alpha1.RolloutComplete {
		t.Errorf("%s: %s", w.status.Phase, w.status.Because)
	}
}

// TestJobFails: one that fails on one cluster fails, whatever the others say, and is asked
// for no more; resumed, it is another question.
func TestJobFails(t *testing.T) {
	t.Parallel()
	w := newJobWay(t, true)
	run := w.begin()
	if why := w.released(); why != "test canary prod-1 prod-2" {
		t.Errorf("asked when released were: %s", why)
	}
	w.tell("prod-1", run, v1alpha1.CheckRunning, "")
	w.tell("prod-2", run, v1alpha1.CheckFailed, "pod x: exit code 1")
	w.goes(1)
	const want = "stage production: check smoke failed: prod-2: Job web/web-smoke-"
	if got := w.status.Because; w.status.Phase != v1alpha1.RolloutPaused || !strings.HasPrefix(got, want) || !strings.HasSuffix(got, ": pod x: exit code 1") {
		t.Errorf("%s: %s", w.status.Phase, got)
	}
	if w.asked() != "" {
		t.Error("it is asked for")
	}
	w.word(Resume, "again")
	w.goes(1)
	again := w.asked()
	if again == "" || again == run || w.status.Phase != v1alpha1.RolloutProgressing {
		t.Errorf("resumed, run %q is asked for after %q: %s", again, run, w.status.Phase)
	}
	w.tell("prod-1", again, v1alpha1.CheckPassed, "")
	w.tell("prod-2", again, v1alpha1.CheckPassed, "")
	w.goes(2)
	if w.status.Phase != v1alpha1.RolloutComplete {
		t.Errorf("%s: %s", w.status.Phase, w.status.Because)
	}
}

// TestJobUnknown: without a status of a cluster the outcome of its Job is unknown. The check fails
// when its timeout is over.
func TestJobUnknown(t *testing.T) {
	t.Parallel()
	w := newJobWay(t, false)
	w.in.asks["production"].Before[0].Timeout = &metav1.Duration{Duration: 15 * time.Minute}
	run := w.begin()
	w.tell("prod-1", run, v1alpha1.CheckPassed, "")
	w.tell("prod-2", run, v1alpha1.CheckRunning, "")
	for range 15 {
		w.goes(1)
		if !strings.HasPrefix(w.released(), "test canary") || strings.Contains(w.released(), "prod") {
			t.Fatalf("released: %s", w.released())
		}
	}
	if got := w.status.Because; got != "stage production: check smoke failed: not in 15m0s: its Job runs on prod-2" {
		t.Errorf("%s", got)
	}
}

// TestJobOnWhom: clusters that take no part run no Job, nor do clusters from which the component is
// removed. If no cluster is left, the check is not asked.
func TestJobOnWhom(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why   string
		tells func(*known)
		want  string // that it waits for
	}{
		"Exempt":  {"A paused or pinned cluster takes no part.", func(k *known) { k.fact.Exempt = "paused in git" }, "prod-1"},
		"Absent":  {"A cluster from which the component is removed has nothing to test.", func(k *known) { k.want = v1alpha1.HashAbsent }, "prod-1"},
		"Unknown": {"A cluster whose state is unknown still has to run the Job.", func(k *known) { k.want, k.why = "", "it does not answer" }, "prod-1, prod-2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newJobWay(t, false)
			w.begin()
			w.tells("prod-2", c.tells)
			w.goes(1)
			if got := w.check().Message; got != "its Job is yet to begin on "+c.want {
				t.Errorf("%s %q", c.why, got)
			}
		})
	}
	w := newJobWay(t, false)
	w.in.clusters["prod-1"] = known{want: v1alpha1.HashAbsent, has: "v1", fact: Fact{Hash: "v1", Healthy: true}}
	w.in.clusters["prod-2"] = w.in.clusters["prod-1"]
	w.goes(4)
	if w.status.Phase != v1alpha1.RolloutComplete {
		t.Errorf("a removal everywhere: %s: %+v", w.status.Phase, w.check())
	}
}

// TestJobFrozen: a Job is not begun in a freeze, which takes none of its time. One that
// runs goes on.
func TestJobFrozen(t *testing.T) {
	t.Parallel()
	w := newJobWay(t, false)
	w.in.frozen["prod-2"] = "the fair"
	w.commit("2222", "v2", w.all()...)
	w.goes(100)
	if got := w.status.Clusters[2].Because; w.asked() != "" || got != "check smoke has not passed: its Job is not begun while prod-2 is frozen: the fair" {
		t.Errorf("in the freeze %q is asked, and prod-1 waits: %s", w.asked(), got)
	}
	delete(w.in.frozen, "prod-2")
	w.goes(1)
	run := w.asked()
	w.in.frozen["prod-1"] = "the fair"
	if w.goes(1); run == "" || w.asked() != run {
		t.Errorf("after it %q is asked, and in the next one %q", run, w.asked())
	}
}

// TestJobAskedNoMore: what is no question any more is none that a cluster hears, and what
// asks something else is another one.
func TestJobAskedNoMore(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		do   func(*jobWay)
		want string // the same run, another, or none
	}{
		"Restart":    {"A decider that begins again asks what is written.", func(w *jobWay) { w.status = *w.status.DeepCopy() }, "same"},
		"Commit":     {"A commit that changes nothing of it is no other question.", func(w *jobWay) { w.in.revision = "3333" }, "same"},
		"Superseded": {"Another change is another question, when its turn comes.", func(w *jobWay) { w.commit("3333", "v3", w.all()...) }, "another"},
		"Template":   {"Another file, too.", func(w *jobWay) { w.in.jobs = map[string]string{"checks/smoke.yaml": "two"} }, "another"},
		"Gone":       {"A check that git has no more.", func(w *jobWay) { w.in.asks["production"].Before, w.in.stages[2].Before = nil, nil }, "none"},
		"Kind":       {"One that asks in another way.", func(w *jobWay) { w.in.asks["production"].Before = []v1alpha1.Check{{Name: "smoke", CEL: "false"}} }, "none"},
		"Promoted": {"A person does not wait for it.", func(w *jobWay) {
			w.word(func(s v1alpha1.RolloutStatus, word Command) (v1alpha1.RolloutStatus, error) {
				return Promote(s, "", word)
			}, "now")
		}, "none"},
		"Aborted":  {"It is over.", func(w *jobWay) { w.word(Abort, "no") }, "none"},
		"Reverted": {"What goes back needs no check.", func(w *jobWay) { w.commit("3333", "v1", w.all()...) }, "none"},
		"Paused":   {"A person has it wait, and the answer counts when it goes on.", func(w *jobWay) { w.word(Pause, "wait") }, "same"},
		"Resumed":  {"It has its time anew, and is not run again.", func(w *jobWay) { w.word(Pause, "wait"); w.goes(1); w.word(Resume, "go") }, "same"},
		"Again": {"What was taken back and is tried again is another question.", func(w *jobWay) {
			w.word(Abort, "no")
			w.goes(2)
			w.word(Resume, "again")
		}, "another"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newJobWay(t, false)
			run := w.begin()
			c.do(w)
			if name == "Superseded" {
				w.goes(8)
			}
			w.goes(1)
			got := map[string]string{run: "same", "": "none"}[w.asked()]
			if got == "" {
				got = "another"
			}
			if got != c.want {
				t.Errorf("%s It asks %s, want %s: %+v", c.why, got, c.want, w.status.Stages)
			}
		})
	}
}

// TestJobName: the name of a Job is one that its pods can bear as a label, ends with its
// run, and tells as much of the rest as there is room for.
func TestJobName(t *testing.T) {
	t.Parallel()
	run := strings.Repeat("0", runLength)
	got := []string{
		AskedJob{RolloutJob: v1alpha1.RolloutJob{Run: run}, Check: "smoke"}.Name("web"),
		AskedJob{RolloutJob: v1alpha1.RolloutJob{Run: run}, Check: "smoke"}.Name(strings.Repeat("w", 60)),
		AskedJob{RolloutJob: v1alpha1.RolloutJob{Run: run}, Check: "smoke"}.Name(strings.Repeat("w", 41)),
	}
	want := []string{"web-smoke-" + run, strings.Repeat("w", 42) + "-" + run, strings.Repeat("w", 41) + "-" + run}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
