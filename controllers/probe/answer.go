package probe

import (
	"fmt"
	"strings"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// Question is what a check of a pipeline asks about a probe.
type Question struct {
	Probe    *registry.Probe
	Clusters []*registry.Cluster // of the stage
	Runs     int                 // in a row; 0: one
	// Asked is when the check was first asked: runs that began before are no evidence.
	Asked time.Time
	// After means a check after the stage, and not before it.
	After bool
}

// Answer is the answer to a [Question].
type Answer struct {
	Yes bool
	// Final means that the answer stays no: a run failed with the change.
	Final bool
	// Why the answer is no.
	Why string
}

// Answer evaluates the results of the clusters, by name. An unknown or old result does not pass,
// nor does the result of another version of the probe.
func (q Question) Answer(results map[string]v1alpha1.ProbeResultStatus, now time.Time) Answer {
	waits, looked := "", false
	for _, c := range q.Clusters {
		if c.Spec.Paused { // a paused cluster takes no part
			continue
		}
		looked = true
		why, final := q.on(c, results[c.Name], now)
		switch {
		case final: // a final no comes before other reasons
			return Answer{Final: true, Why: why}
		case waits == "":
			waits = why
		}
	}
	if !looked {
		waits = "all clusters of the stage are paused"
	}
	return Answer{Yes: waits == "", Why: waits}
}

// on returns why the answer of one cluster is no; empty: it is yes.
func (q Question) on(c *registry.Cluster, s v1alpha1.ProbeResultStatus, now time.Time) (why string, final bool) {
	want := max(1, q.Runs)
	switch {
	case len(q.Probe.Problems) > 0:
		return fmt.Sprintf("probe %s is broken: keelson validate", q.Probe.Name), false
	case !q.Probe.Selects(c):
		return fmt.Sprintf("%s: probe %s does not run there", c.Name, q.Probe.Name), false
	}
	row := 0
	var last, failed v1alpha1.ProbeRun
	if s.Hash == q.Probe.Hash {
		for _, run := range s.Runs {
			if !counts(run.Begun.Time, q.Asked) {
				continue
			}
			last = run
			if row++; run.Outcome != v1alpha1.ProbePassed {
				row, failed = 0, run
			}
		}
	}
	stamp := q.Asked.UTC().Format(time.RFC3339)
	switch {
	case q.After && failed.Outcome != "":
		return fmt.Sprintf("%s: probe %s failed at %s: %s", c.Name, q.Probe.Name, failed.Ended.UTC().Format(time.RFC3339), what(s, failed)), true
	case row == 0 && failed.Outcome != "":
		return fmt.Sprintf("%s: probe %s fails: %s", c.Name, q.Probe.Name, what(s, failed)), false
	case row < want:
		// The text has no growing number: of answers that say no, a check keeps the first.
		return fmt.Sprintf("%s: it waits for %d runs of probe %s in a row that begin after %s and pass", c.Name, want, q.Probe.Name, stamp), false
	case now.Sub(last.Ended.Time) > q.Probe.Stale():
		return fmt.Sprintf("%s: nothing was heard of probe %s since %s", c.Name, q.Probe.Name, last.Ended.UTC().Format(time.RFC3339)), false
	}
	return "", false
}

// what returns what failed in a run. Only the last run has a message.
func what(s v1alpha1.ProbeResultStatus, run v1alpha1.ProbeRun) string {
	if run.Begun == lastOf(s).Begun && s.Message != "" {
		return s.Message
	}
	return strings.Join(run.Failed, ", ")
}
