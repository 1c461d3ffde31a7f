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
	// heartbeat is how often a result is written that says nothing new.
	heartbeat = time.Hour
	// granularity is that of the time at which a check was asked: it stands in whole
	// seconds.
	granularity = time.Second
	// maxMessage bounds the message of a result, in bytes: it may tell of 20 subjects.
	maxMessage = 4096
)

// recorded is a result after one more run, of the probe with a hash.
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

// tells reports whether a result is to be written over the one that is shown: at once
// what says something new, and while a check asks for runs, all of them.
func tells(shown, is v1alpha1.ProbeResultStatus, asked bool, since time.Duration) bool {
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

// counts says whether a run that began at a time is evidence for who asked at another.
func counts(begun, asked time.Time) bool { return begun.Sub(asked) >= granularity }

// due is when the next run is: when its time comes, or at once where a check asks for
// one, and none has begun since.
func due(s v1alpha1.ProbeResultStatus, hash string, next, asked time.Time) time.Time {
	if asked.IsZero() || s.Hash == hash && counts(lastOf(s).Begun.Time, asked) {
		return next
	}
	if at := asked.Add(granularity); at.Before(next) {
		return at
	}
	return next
}
