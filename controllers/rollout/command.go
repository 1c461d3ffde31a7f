package rollout

import (
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Command is the author, the reason and the time of a person's command about a rollout. The command is
// written into the status, like a decision of the [Loop]. It holds for the current change: git
// alone decides which targets run.
type Command struct {
	By, Because string
	At          time.Time
}

func (w Command) describe(did string) string {
	return fmt.Sprintf("%s by %s: %s", did, w.By, w.Because)
}

// ErrEnded reports that a rollout has ended, so that nothing is left to decide.
var ErrEnded = errors.New("the rollout has ended")

// Pause stops all releases until [Resume], even if git changes meanwhile. It fails if a person has
// paused the rollout already.
func Pause(s v1alpha1.RolloutStatus, w Command) (v1alpha1.RolloutStatus, error) {
	s = *s.DeepCopy()
	if s.Paused != "" {
		return s, errors.New("it is " + s.Paused)
	}
	s.Paused = w.describe("paused")
	if s.Phase == v1alpha1.RolloutProgressing {
		s.Phase, s.Because = v1alpha1.RolloutPaused, s.Paused
	}
	return w.note(s, "", s.Paused), nil
}

// Resume continues a paused rollout, or retries a rolled-back rollout. The timeouts of released
// clusters start again. It returns [ErrEnded] for a complete rollout. It fails for a rollout that
// is not paused, or is rolling back.
func Resume(s v1alpha1.RolloutStatus, w Command) (v1alpha1.RolloutStatus, error) {
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
	runs := s.Phase == v1alpha1.RolloutPaused // Jobs without a known outcome go on
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
	return w.note(s, "", w.describe("resumed")), nil
}

// Promote releases a stage from waiting for windows, silence, bake and checks; empty: the current
// stage. Health and freezes still count. It returns [ErrEnded] for an ended rollout, and fails for
// an unknown or passed stage.
func Promote(s v1alpha1.RolloutStatus, stage string, w Command) (v1alpha1.RolloutStatus, error) {
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
	return w.note(s, stage, w.describe("promoted")), nil
}

// Abort takes the clusters of the current stage back to their previous target, and ends the
// rollout. Earlier stages keep the change. It returns [ErrEnded] for an ended rollout, and fails
// for a rollout that is rolling back.
func Abort(s v1alpha1.RolloutStatus, w Command) (v1alpha1.RolloutStatus, error) {
	s = *s.DeepCopy()
	switch s.Phase {
	case v1alpha1.RolloutProgressing, v1alpha1.RolloutPaused:
	case v1alpha1.RolloutRollingBack:
		return s, errors.New("it is being rolled back")
	case v1alpha1.RolloutRolledBack, v1alpha1.RolloutComplete:
		return s, ErrEnded
	}
	s.Phase, s.Because = v1alpha1.RolloutRollingBack, w.describe("aborted")
	for i := range s.Clusters {
		if c := &s.Clusters[i]; c.Stage == s.Stage && c.Released != nil && c.From != "" {
			c.Back = true
		}
	}
	return w.note(s, s.Stage, s.Because), nil
}

// note adds a line to the timeline.
func (w Command) note(s v1alpha1.RolloutStatus, stage, message string) v1alpha1.RolloutStatus {
	s.Timeline = append(s.Timeline, v1alpha1.RolloutEvent{Time: metav1.NewTime(w.At.Truncate(time.Second)), Stage: stage, Message: message})
	s.Timeline = s.Timeline[max(0, len(s.Timeline)-timelineLength):]
	return s
}
