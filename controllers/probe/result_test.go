package probe_test

import (
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/probe"
)

func failed(step, message string) probe.Failure {
	return probe.Failure{Subject: "web", Step: step, Message: message}
}

// TestRecorded: since when it is so, when it passed last, the last ten runs of one probe.
func TestRecorded(t *testing.T) {
	t.Parallel()
	at := func(minutes int) time.Time { return noon().Add(time.Duration(minutes) * time.Minute) }
	var s v1alpha1.ProbeResultStatus
	for i := range 12 {
		s = probe.Recorded(s, "one", at(5*i), at(5*i+1))
	}
	if len(s.Runs) != 10 || !s.Runs[9].Begun.Time.Equal(at(55)) || s.Outcome != v1alpha1.ProbePassed || !s.Since.Time.Equal(at(0)) || !s.Passed.Time.Equal(at(56)) {
		t.Errorf("passed 12 times: %+v", s)
	}
	before := s
	s = probe.Recorded(s, "one", at(60), at(62), failed("upgrade", "no pod "+strings.Repeat("x", 5000)))
	if s.Outcome != v1alpha1.ProbeFailed || !s.Since.Time.Equal(at(60)) || !s.Passed.Time.Equal(at(56)) || len(s.Message) > 4100 || !strings.HasPrefix(s.Message, "web/upgrade: no pod") || s.Runs[9].Failed[0] != "web/upgrade" {
		t.Errorf("failed: %+v", s)
	}
	if last := before.Runs[9]; last.Outcome != v1alpha1.ProbePassed {
		t.Error("it changed what it was given")
	}
	s = probe.Recorded(s, "two", at(65), at(66))
	if len(s.Runs) != 1 || s.Hash != "two" || s.Message != "" || !s.Since.Time.Equal(at(65)) {
		t.Errorf("another probe: %+v", s)
	}
}

// TestTells: a fleet whose probes pass writes once an hour, unless a check waits for runs.
func TestTells(t *testing.T) {
	t.Parallel()
	passed := probe.Recorded(v1alpha1.ProbeResultStatus{}, "one", noon(), noon())
	again := probe.Recorded(passed, "one", noon().Add(time.Minute), noon().Add(time.Minute))
	fails := probe.Recorded(passed, "one", noon(), noon(), failed("upgrade", "no pod"))
	louder := probe.Recorded(fails, "one", noon(), noon(), failed("upgrade", "no pod, 2 times"))
	other := probe.Recorded(fails, "one", noon(), noon(), failed("delete", "it stays"))
	left := again
	left.Objects = []v1alpha1.ProbeObject{{Name: "a"}}
	cases := map[string]struct {
		why       string
		shown, is v1alpha1.ProbeResultStatus
		asked     bool
		since     time.Duration
		want      bool
	}{
		"First":        {why: "The first run is news.", is: passed, want: true},
		"Again":        {why: "That it still passes is none.", shown: passed, is: again},
		"Asked":        {why: "A check has to see each run.", shown: passed, is: again, asked: true, want: true},
		"AskedNothing": {why: "What is there is not written twice.", shown: again, is: again, asked: true},
		"Heartbeat":    {why: "What is shown is an hour old at most.", shown: passed, is: again, since: time.Hour, want: true},
		"Failed":       {why: "Another outcome.", shown: passed, is: fails, want: true},
		"FailedAgain":  {why: "The same step fails, in other words.", shown: fails, is: louder},
		"FailedElse":   {why: "Another step fails.", shown: fails, is: other, want: true},
		"Objects":      {why: "What may be left behind has to be known before it is there.", shown: again, is: left, want: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := probe.Tells(c.shown, c.is, c.asked, c.since); got != c.want {
				t.Errorf("%s got %v", c.why, got)
			}
		})
	}
}

// TestDue: a check that asks gets a run at once, one run, and the others when their time
// comes.
func TestDue(t *testing.T) {
	t.Parallel()
	next := noon().Add(5 * time.Minute)
	ran := probe.Recorded(v1alpha1.ProbeResultStatus{}, "one", noon(), noon())
	cases := map[string]struct {
		why   string
		hash  string
		asked time.Time
		want  time.Time
	}{
		"NotAsked": {why: "The schedule decides.", hash: "one", want: next},
		"Asked":    {why: "The last run began before.", hash: "one", asked: noon().Add(time.Minute), want: noon().Add(time.Minute + time.Second)},
		"Answered": {why: "A run has begun since.", hash: "one", asked: noon().Add(-time.Minute), want: next},
		"Changed":  {why: "The last run was of another version of the probe.", hash: "two", asked: noon().Add(-time.Minute), want: noon().Add(time.Second - time.Minute)},
		"Soon":     {why: "The schedule is sooner.", hash: "one", asked: noon().Add(time.Hour), want: next},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := probe.Due(ran, c.hash, next, c.asked); !got.Equal(c.want) {
				t.Errorf("%s got %s, want %s", c.why, got, c.want)
			}
		})
	}
}
