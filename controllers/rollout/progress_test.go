package rollout

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// TestStand: what is evidence that a stage has passed, and what is not.
func TestStand(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	type state struct {
		status   v1alpha1.RolloutStatus
		clusters map[string]known
	}
	has := func(hash string) known { return known{want: hash, fact: Fact{Hash: hash, Healthy: true}} }
	cases := map[string]struct {
		why    string
		change func(*state)
		halt   string
		// canary and production are why the stage has not passed; empty: it has.
		canary, production string
	}{
		"Passed": {why: "All clusters got there, were healthy, and baked.", change: func(*state) {}},
		"NoRollout": {
			why:    "Nothing is known of what was there before the pipeline: it is no evidence.",
			change: func(s *state) { s.status = v1alpha1.RolloutStatus{} },
			canary: "no change of it has gone through", production: "no change of it has gone through",
		},
		"OtherPipeline": {
			why:    "What was asked there was asked for another way.",
			change: func(s *state) { s.status.Pipeline = "fast" }, canary: "another pipeline", production: "another pipeline",
		},
		"Progressing": {
			why: "One change at a time.", halt: "v1.1.0 is rolling out, in stage production", production: "it has not passed",
			change: func(s *state) {
				s.status.Phase, s.status.Stage, s.status.Stages[1].Passed = v1alpha1.RolloutProgressing, "production", nil
			},
		},
		"PausedByPerson": {
			why: "Whoever says so means what comes, too.", halt: "it is paused by kim: INC-7",
			change: func(s *state) { s.status.Paused = "paused by kim: INC-7" },
		},
		"Failed": {
			why: "A failure is for a person to look at.", halt: "its rollout is Paused: stage canary: c1: it crashes", canary: "c1: it crashes", production: "stage canary has not passed",
			change: func(s *state) {
				s.status.Phase, s.status.Because, s.status.Stages[0].Passed = v1alpha1.RolloutPaused, "stage canary: c1: it crashes", nil
				s.clusters["c1"] = known{want: "new", fact: Fact{Hash: "new", Failed: "it crashes"}}
			},
		},
		"RolledBack": {
			why: "Git still says what clusters went back from.", halt: "its rollout is RolledBack", canary: "c1: its last rollout was for another target", production: "stage canary",
			change: func(s *state) { s.status.Phase, s.status.Clusters[0].Back = v1alpha1.RolloutRolledBack, true },
		},
		"IllSince": {
			why: "It passed, and is ill now.", canary: "c1: it is degraded", production: "stage canary",
			change: func(s *state) {
				s.clusters["c1"] = known{want: "new", fact: Fact{Hash: "new", Failed: "it is degraded"}}
			},
		},
		"GitMovedOn": {
			why: "Git wants another hash of canary by now, and the rollout does not know.", halt: "c1 does not have", canary: "c1: its last rollout was for another target", production: "stage canary",
			change: func(s *state) { s.clusters["c1"] = known{want: "newer", fact: Fact{Hash: "new", Healthy: true}} },
		},
		"Stale": {
			why: "What was told is about another revision.", canary: "c1: it has not told yet", production: "stage canary",
			change: func(s *state) {
				s.clusters["c1"] = known{why: "it has not told yet", fact: Fact{Hash: "new", Healthy: true}}
			},
		},
		"StaleElsewhere": {
			why: "A cluster of a later stage that does not answer is no reason to doubt canary.", production: "p1: it does not answer",
			change: func(s *state) { s.clusters["p1"] = known{why: "it does not answer"} },
		},
		"NewCluster": {
			why: "One that came since the rollout was never asked about.", canary: "c2: its last rollout was for another target", production: "stage canary",
			change: func(s *state) { s.clusters["c2"] = has("new") },
		},
		"Promoted": {
			why: "Who could not wait has shown nothing.", canary: "did not wait for its checks and its bake: kim: CVE-1", production: "stage canary",
			change: func(s *state) { s.status.Stages[0].Promoted = "kim: CVE-1" },
		},
		"Back": {
			why: "What is taken back waits for nothing.", canary: "took a change back", production: "stage canary",
			change: func(s *state) { s.status.Back = true },
		},
		"Idle": {
			why: "A stage that had nothing to do passed at once.", canary: "no cluster of it was seen to get there", production: "stage canary",
			change: func(s *state) { s.status.Clusters[0].Released, s.status.Clusters[0].Settled = nil, nil },
		},
		"AllPinned": {
			why: "Who takes no part shows nothing.", canary: "no cluster of it was seen", production: "stage canary",
			change: func(s *state) { s.clusters["c1"] = known{want: "new", fact: Fact{Hash: "old", Exempt: "pinned"}} },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second, micro := &metav1.Time{Time: at}, &metav1.MicroTime{Time: at}
			s := state{
				status: v1alpha1.RolloutStatus{
					Change: "1", Pipeline: "standard", Phase: v1alpha1.RolloutComplete, To: "v1.1.0",
					Stages: []v1alpha1.RolloutStage{{Name: "canary", Passed: second}, {Name: "production", Passed: second}},
					Clusters: []v1alpha1.RolloutCluster{
						{Name: "c1", Stage: "canary", Want: "new", Released: micro, Settled: micro}, {Name: "p1", Stage: "production", Want: "old", Released: micro, Settled: micro},
					},
				},
				clusters: map[string]known{"c1": has("new"), "p1": has("old")},
			}
			tc.change(&s)
			stages := []Stage{{Name: "canary", Clusters: []string{"c1"}}, {Name: "production", Clusters: []string{"p1"}}}
			if _, more := s.clusters["c2"]; more {
				stages[0].Clusters = append(stages[0].Clusters, "c2")
			}
			got := progress(stages, "standard", s.status, s.clusters)
			if got.Halt != tc.halt && (tc.halt == "" || !strings.HasPrefix(got.Halt, tc.halt)) {
				t.Errorf("%s halts: %q, want %q", tc.why, got.Halt, tc.halt)
			}
			for stage, want := range map[string]string{"canary": tc.canary, "production": tc.production} {
				why, passed := got.NotPassed[stage], got.Passed[stage]
				if (want == "") != passed.Equal(at) || (want == "") != (why == "") || !strings.Contains(why, want) {
					t.Errorf("%s %s: passed %v, not since %q; want %q", tc.why, stage, passed, why, want)
				}
			}
		})
	}
}
