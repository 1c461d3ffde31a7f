package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// AskedJob is a Job that a check asks the clusters of its stage to run.
type AskedJob struct {
	v1alpha1.RolloutJob

	Stage, Check string
	After        bool
}

// JobsAsked returns the Jobs that a stored rollout asks for. The clusters of their stage run only
// these Jobs. A Job that is no longer asked for is deleted: its outcome was stored, or is of no
// use.
func JobsAsked(s *v1alpha1.RolloutStatus) []AskedJob {
	i := slices.IndexFunc(s.Stages, func(stage v1alpha1.RolloutStage) bool { return stage.Passed == nil })
	asks := s.Phase == v1alpha1.RolloutProgressing || s.Phase == v1alpha1.RolloutPaused
	if i < 0 || !asks || s.Back || s.Stages[i].Promoted != "" {
		return nil
	}
	stage, out := &s.Stages[i], []AskedJob(nil)
	for _, c := range stage.Checks {
		if c.Job != nil && c.After == (stage.Opened != nil) && c.Passed == nil && c.Failed == nil {
			out = append(out, AskedJob{RolloutJob: *c.Job, Stage: stage.Name, Check: c.Name, After: c.After})
		}
	}
	return out
}

// runLength is the length of [v1alpha1.RolloutJob.Run], and nameLength the maximum length of a
// Job's name. The pods of a Job carry its name as a label.
const runLength, nameLength = 20, 63

// Name returns the name of the Job on every cluster. It contains the run: the same question finds
// the same Job, and another question gets another Job.
func (a AskedJob) Name(component string) string {
	name := component + "-" + a.Check
	return strings.TrimRight(name[:min(len(name), nameLength-1-runLength)], "-") + "-" + a.Run
}

// TemplateHash returns a hash that tells whether the template of a Job is the requested one.
func TemplateHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// asksFor records the Job of an undecided check. A changed template is another question, and its
// time starts again.
func (j *rolloutState) asksFor(is *v1alpha1.RolloutCheck, spec v1alpha1.Check, key Check, now time.Time) {
	switch {
	case is.Passed != nil || is.Failed != nil:
		return
	case spec.Job == nil:
		is.Job = nil
		return
	}
	hash := TemplateHash(j.in.jobs[spec.Job.Template])
	if is.Job != nil && is.Job.Template == spec.Job.Template && is.Job.Hash == hash {
		return
	}
	if is.Job != nil {
		is.Asked, is.Message = metav1.NewTime(now), ""
	}
	run := sha256.Sum256(fmt.Appendf(nil, "%q %d", []string{
		j.in.component, j.in.pipeline, key.Change, key.Stage, key.Name, strconv.FormatBool(key.After), spec.Job.Template, hash,
	}, is.Asked.Unix()))
	is.Job = &v1alpha1.RolloutJob{Template: spec.Job.Template, Hash: hash, Revision: j.in.revision, Run: hex.EncodeToString(run[:])[:runLength]}
}

// jobBlockedBy returns why the Job of a check must not begin yet: nothing from git begins on a frozen
// cluster.
func (j *rolloutState) jobBlockedBy(stage Stage, spec v1alpha1.Check) string {
	if spec.Job == nil {
		return ""
	}
	for _, name := range j.runs(stage) {
		if why := j.in.frozen[name]; why != "" {
			return fmt.Sprintf("its Job is not begun while %s is frozen: %s", name, why)
		}
	}
	return ""
}

// runs returns the clusters of a stage on which a Job is to run: those that take part, and from
// which git does not remove the component.
func (j *rolloutState) runs(stage Stage) []string {
	return slices.DeleteFunc(slices.Clone(stage.Clusters), func(name string) bool {
		k := j.in.clusters[name]
		return k.fact.Exempt != "" || k.want == v1alpha1.HashAbsent
	})
}

// jobs returns what the clusters report of the Job of a check. The answer is no until all of them
// report that it passed. An unknown result does not pass.
func jobs(q question, seen map[string]*observation) answer {
	var running, unknown, waiting []string
	for _, name := range q.on {
		switch is := seen[name].check(q.run); is.State {
		case v1alpha1.CheckPassed:
		case v1alpha1.CheckFailed:
			return answer{why: fmt.Sprintf("%s: Job %s: %s", name, is.Job, is.Message), final: true}
		case v1alpha1.CheckRunning:
			running = append(running, name)
		case v1alpha1.CheckWaiting:
			waiting = append(waiting, fmt.Sprintf("%s (%s)", name, is.Message))
		default:
			unknown = append(unknown, name)
		}
	}
	var why []string
	for _, of := range []struct {
		does  string
		names []string
	}{{"runs on", running}, {"can't begin on", waiting}, {"is yet to begin on", unknown}} {
		if len(of.names) > 0 {
			why = append(why, of.does+" "+some(of.names))
		}
	}
	if len(why) == 0 {
		return answer{yes: true}
	}
	return answer{why: "its Job " + strings.Join(why, ", and ")}
}

// check returns what a cluster reports of a run; the zero value: nothing.
func (s *observation) check(run string) v1alpha1.DeliveryCheck {
	if s == nil {
		return v1alpha1.DeliveryCheck{}
	}
	for _, c := range s.checks {
		if c.Run == run {
			return c
		}
	}
	return v1alpha1.DeliveryCheck{}
}

// some lists the first three names, and counts the rest.
func some(names []string) string {
	const shown = 3
	if more := len(names) - shown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), more)
	}
	return strings.Join(names, ", ")
}
