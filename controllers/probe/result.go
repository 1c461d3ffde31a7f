package probe

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

const (
	// heartbeat is the interval of writing results without news.
	heartbeat = time.Hour
	// granularity is the precision of the time at which a check was asked: whole seconds.
	granularity = time.Second
	// maxMessage bounds the message of a result, in bytes: it may describe 20 subjects.
	maxMessage = 4096
)

// recorded returns a result after one more run of the probe with a hash.
func recorded(s v1alpha1.ProbeResultStatus, hash string, begun, ended time.Time, failed []failure) v1alpha1.ProbeResultStatus {
	run := v1alpha1.ProbeRun{Begun: metav1.NewMicroTime(begun), Ended: metav1.NewMicroTime(ended), Outcome: v1alpha1.ProbePassed}
	var messages []string
	for _, f := range failed {
		run.Outcome = v1alpha1.ProbeFailed
		run.Failed = append(run.Failed, f.subject+"/"+f.step)
		messages = append(messages, f.subject+"/"+f.step+": "+f.message)
	}
	if s.Hash != hash {
		s.Hash, s.Runs = hash, nil
	}
	s.Runs = append(slices.Clone(s.Runs), run)
	s.Runs = s.Runs[max(0, len(s.Runs)-registry.MaxProbeRuns):]
	s.Message = strings.Join(messages, "; ")
	if len(s.Message) > maxMessage {
		s.Message = strings.ToValidUTF8(s.Message[:maxMessage], "") + "…"
	}
	if run.Outcome == v1alpha1.ProbePassed {
		s.Passed = &metav1.Time{Time: ended.Truncate(time.Second)}
	}
	if s.Outcome != run.Outcome {
		s.Outcome, s.Since = run.Outcome, &metav1.Time{Time: begun.Truncate(time.Second)}
	}
	return s
}

// needsWrite reports whether a result must be written over the shown result: at once if it has news, and
// after every run while a check waits for runs.
func needsWrite(shown, is v1alpha1.ProbeResultStatus, asked bool, since time.Duration) bool {
	if equality.Semantic.DeepEqual(shown, is) {
		return false
	}
	return asked || since >= heartbeat || shown.Outcome != is.Outcome || shown.Hash != is.Hash ||
		!slices.Equal(shown.Objects, is.Objects) || !slices.Equal(lastOf(shown).Failed, lastOf(is).Failed)
}

func lastOf(s v1alpha1.ProbeResultStatus) v1alpha1.ProbeRun {
	if len(s.Runs) == 0 {
		return v1alpha1.ProbeRun{}
	}
	return s.Runs[len(s.Runs)-1]
}

// counts reports whether a run is evidence for a check, by when they began and were asked.
func counts(begun, asked time.Time) bool { return begun.Sub(asked) >= granularity }

// due returns when the next run is: at next, or at once if a check waits for a run, and none has
// begun since it was asked.
func due(s v1alpha1.ProbeResultStatus, hash string, next, asked time.Time) time.Time {
	if asked.IsZero() || s.Hash == hash && counts(lastOf(s).Begun.Time, asked) {
		return next
	}
	if at := asked.Add(granularity); at.Before(next) {
		return at
	}
	return next
}
