package probe_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/probe"
	"github.com/keelson-io/keelson/registry"
)

// runs are results of runs that began at minutes after noon and took a minute each; one
// that is followed by ! failed.
func runs(hash string, at ...string) v1alpha1.ProbeResultStatus {
	s := v1alpha1.ProbeResultStatus{Hash: hash}
	for _, text := range at {
		minutes, failed := strings.CutSuffix(text, "!")
		d, err := time.ParseDuration(minutes + "m")
		if err != nil {
			panic(err)
		}
		run := v1alpha1.ProbeRun{Begun: metav1.NewMicroTime(noon().Add(d)), Ended: metav1.NewMicroTime(noon().Add(d + time.Minute)), Outcome: v1alpha1.ProbePassed}
		s.Message = ""
		if failed {
			run.Outcome, run.Failed, s.Message = v1alpha1.ProbeFailed, []string{"web/upgrade"}, "web/upgrade: no pod"
		}
		s.Runs = append(s.Runs, run)
	}
	return s
}

func noon() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }

// A check passes by runs that began after it was asked, of the probe as it is now, on
// each cluster, and lately. Whatever is not known is not passed.
func TestAnswer(t *testing.T) {
	t.Parallel()
	f := newRepo(t).load()
	p := f.Probe("workloads")
	in := []*registry.Cluster{f.Cluster("a"), f.Cluster("b")}
	both := func(s v1alpha1.ProbeResultStatus) map[string]v1alpha1.ProbeResultStatus {
		return map[string]v1alpha1.ProbeResultStatus{"a": s, "b": s}
	}
	cases := map[string]struct {
		why      string
		clusters []*registry.Cluster // those of the stage; nil: a and b
		results  map[string]v1alpha1.ProbeResultStatus
		runs     int
		before   bool
		minutes  int // since noon, when it was asked
		want     string
		final    bool
	}{
		"Passed":         {why: "All clusters have a run since.", results: both(runs(p.Hash, "1")), minutes: 3},
		"Row":            {why: "The runs that are asked for came in a row.", results: both(runs(p.Hash, "1", "6", "11")), runs: 3, minutes: 13},
		"TooFew":         {why: "Two runs are not three.", results: both(runs(p.Hash, "1", "6")), runs: 3, minutes: 8, want: "a: it waits for 3 runs of probe workloads in a row that begin after 2026-11-22T12:00:00Z and pass"},
		"Earlier":        {why: "A run from before the change does not count.", results: both(runs(p.Hash, "-9", "-4", "0")), minutes: 2, want: "a: it waits for 1 runs"},
		"OneCluster":     {why: "Each cluster has to pass.", results: map[string]v1alpha1.ProbeResultStatus{"a": runs(p.Hash, "1")}, minutes: 3, want: "b: it waits for 1 runs"},
		"Unknown":        {why: "Without a result the outcome is unknown.", minutes: 3, want: "a: it waits for 1 runs"},
		"OtherProbe":     {why: "The probe was changed in git: the changed probe has no result yet.", results: both(runs("another", "1")), minutes: 3, want: "a: it waits for 1 runs"},
		"Stale":          {why: "The controller may be gone: 2 × 5m and 2m after the last run the result is unknown.", results: both(runs(p.Hash, "1")), minutes: 15, want: "a: nothing was heard of probe workloads since 2026-11-22T12:02:00Z"},
		"FailedAfter":    {why: "A run that fails once the stage has the change fails the check.", results: both(runs(p.Hash, "1", "6!")), minutes: 8, want: "a: probe workloads failed at 2026-11-22T12:07:00Z: web/upgrade: no pod", final: true},
		"FailedAndWell":  {why: "A later run that passes does not undo the failure.", results: both(runs(p.Hash, "1!", "6")), minutes: 8, want: "a: probe workloads failed at 2026-11-22T12:02:00Z: web/upgrade", final: true},
		"FailedElse":     {why: "The failure of one cluster is reported, rather than the wait for another.", results: map[string]v1alpha1.ProbeResultStatus{"b": runs(p.Hash, "1!")}, minutes: 3, want: "b: probe workloads failed", final: true},
		"FailedEarlier":  {why: "A failure from before the change does not count.", results: both(runs(p.Hash, "-4!", "1")), minutes: 3},
		"FailedBefore":   {why: "Before a stage nothing has changed, so the check waits instead of failing.", results: both(runs(p.Hash, "1", "6!")), minutes: 8, before: true, want: "a: probe workloads fails: web/upgrade: no pod"},
		"RecoversBefore": {why: "The row begins anew.", results: both(runs(p.Hash, "1", "6!", "11")), minutes: 13, runs: 2, before: true, want: "a: it waits for 2 runs"},
		"NotSelected":    {why: "The probe cannot pass on a cluster where it does not run.", clusters: []*registry.Cluster{f.Cluster("other")}, want: "other: probe workloads does not run there"},
		"Paused":         {why: "A paused cluster takes no part.", clusters: []*registry.Cluster{f.Cluster("a"), f.Cluster("paused")}, results: both(runs(p.Hash, "1")), minutes: 3},
		"AllPaused":      {why: "The outcome is unknown if all clusters of the stage are paused.", clusters: []*registry.Cluster{f.Cluster("paused")}, want: "all clusters of the stage are paused"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := probe.Question{Probe: p, Clusters: in, Runs: c.runs, Asked: noon(), After: !c.before}
			if c.clusters != nil {
				q.Clusters = c.clusters
			}
			got := q.Answer(c.results, noon().Add(time.Duration(c.minutes)*time.Minute))
			if got.Yes != (c.want == "") || got.Final != c.final || !strings.HasPrefix(got.Why, c.want) {
				t.Errorf("%s got %+v, want %q", c.why, got, c.want)
			}
		})
	}
}
