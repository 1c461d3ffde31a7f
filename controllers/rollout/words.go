package rollout

import (
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Word is what a person says about a rollout. It is written into its status, as what the
// [Loop] decides is, and holds for the change that is on its way: of what runs, git alone
// decides.
type Word struct {
	By, Because string
	At          time.Time
}

func (w Word) say(did string) string { return fmt.Sprintf("%s by %s: %s", did, w.By, w.Because) }

// ErrEnded says that a rollout has ended, so that nothing is left to decide about.
var ErrEnded = errors.New("the rollout has ended")

// Pause lets no cluster go until [Resume], whatever git wants meanwhile.
func Pause(s v1alpha1.RolloutStatus, w Word) (v1alpha1.RolloutStatus, error) {
	s = *s.DeepCopy()
	if s.Paused != "" {
		return s, errors.New("it is " + s.Paused)
	}
	s.Paused = w.say("paused")
	if s.Phase == v1alpha1.RolloutProgressing {
		s.Phase, s.Because = v1alpha1.RolloutPaused, s.Paused
	}
	return w.note(s, "", s.Paused), nil
}

// Resume lets a rollout go on that is paused, or tries again what was rolled back. Who
// is on its way has its time anew.
func Resume(s v1alpha1.RolloutStatus, w Word) (v1alpha1.RolloutStatus, error) {
	s = *s.DeepCopy()
	switch {
	case s.Paused != "":
	case s.Phase == v1alpha1.RolloutRollingBack:
		return s, errors.New("it is being rolled back: resume when it is")
	case s.Phase == v1alpha1.RolloutComplete:
		return s, ErrEnded
	case s.Phase == v1alpha1.RolloutProgressing:
		return s, errors.New("it is not paused")
	}
	s.Paused = ""
	runs := s.Phase == v1alpha1.RolloutPaused // Jobs that nobody knows the outcome of go on
	if s.Phase == v1alpha1.RolloutPaused || s.Phase == v1alpha1.RolloutRolledBack {
		s.Phase, s.Because, s.Ended = v1alpha1.RolloutProgressing, "", nil
	}
	for i := range s.Clusters {
		switch c := &s.Clusters[i]; {
		case c.Back && s.Phase == v1alpha1.RolloutProgressing:
			c.Released, c.Settled, c.Back = nil, nil, false
		case c.Released != nil && c.Settled == nil:
			c.Released = microTime(w.At.Truncate(time.Microsecond))
		}
	}
	for i := range s.Stages {
		stage := &s.Stages[i]
		stage.Checks = slices.DeleteFunc(stage.Checks, func(c v1alpha1.RolloutCheck) bool {
			return c.Passed == nil && (c.Job == nil || c.Failed != nil || !runs)
		})
		for k := range stage.Checks {
			if c := &stage.Checks[k]; c.Passed == nil {
				c.Asked = metav1.NewTime(w.At.Truncate(time.Second))
			}
		}
	}
	return w.note(s, "", w.say("resumed")), nil
}

// Promote has a stage (empty: the one that it is in) wait for no window, silence, bake
// or check. Health and freezes hold as before.
func Promote(s v1alpha1.RolloutStatus, stage string, w Word) (v1alpha1.RolloutStatus, error) {
	s = *s.DeepCopy()
	if s.Phase == v1alpha1.RolloutComplete || s.Phase == v1alpha1.RolloutRolledBack {
		return s, ErrEnded
	}
	if stage == "" {
		stage = s.Stage
	}
	i := slices.IndexFunc(s.Stages, func(is v1alpha1.RolloutStage) bool { return is.Name == stage })
	switch {
	case i < 0:
		return s, fmt.Errorf("it has no stage %q", stage)
	case s.Stages[i].Passed != nil:
		return s, fmt.Errorf("stage %s has passed already", stage)
	}
	s.Stages[i].Promoted = w.By + ": " + w.Because
	return w.note(s, stage, w.say("promoted")), nil
}

// Abort takes the clusters of the stage that it is in back to what they had, and ends
// the rollout. What stages before have stays.
func Abort(s v1alpha1.RolloutStatus, w Word) (v1alpha1.RolloutStatus, error) {
	s = *s.DeepCopy()
	switch s.Phase {
	case v1alpha1.RolloutProgressing, v1alpha1.RolloutPaused:
	case v1alpha1.RolloutRollingBack:
		return s, errors.New("it is being rolled back")
	case v1alpha1.RolloutRolledBack, v1alpha1.RolloutComplete:
		return s, ErrEnded
	}
	s.Phase, s.Because = v1alpha1.RolloutRollingBack, w.say("aborted")
	for i := range s.Clusters {
		if c := &s.Clusters[i]; c.Stage == s.Stage && c.Released != nil && c.From != "" {
			c.Back = true
		}
	}
	return w.note(s, s.Stage, s.Because), nil
}

// note adds a line to the timeline.
func (w Word) note(s v1alpha1.RolloutStatus, stage, message string) v1alpha1.RolloutStatus {
	s.Timeline = append(s.Timeline, v1alpha1.RolloutEvent{Time: metav1.NewTime(w.At.Truncate(time.Second)), Stage: stage, Message: message})
	s.Timeline = s.Timeline[max(0, len(s.Timeline)-timelineLength):]
	return s
}
