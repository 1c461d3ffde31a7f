package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const (
	// askEvery is the interval at which a check is asked until it passes.
	askEvery = 15 * time.Second
	// checkTimeout plus For is the timeout of a check that names none.
	checkTimeout = 30 * time.Minute
)

// question is a check to ask. Its Change is the evidence of its stage.
type question struct {
	Check
	spec     v1alpha1.Check
	clusters []string  // of the stage
	asked    time.Time // for the first time
	// run is the run of the check's Job, if it has one; on are the clusters that run it.
	run string
	on  []string
}

// asked is the outcome of the checks so far.
type asked struct {
	results   map[Check]Result
	pending   map[Check]string
	questions []question
	wake      time.Time
}

// advanceChecks advances the checks of the first stage that has not passed, as far as the answers allow.
// Results are stored with the stage's evidence. Results for other evidence don't count.
func (j *rolloutState) advanceChecks(now time.Time) asked {
	out := asked{results: map[Check]Result{}, pending: map[Check]string{}}
	now = now.Truncate(time.Second)
	evidence := j.evidence()
	i := slices.IndexFunc(j.in.stages, func(stage Stage) bool { return j.record(stage.Name).Passed == nil })
	if i < 0 || j.status.Back {
		return out
	}
	stage := j.in.stages[i]
	spec, record := j.in.asks[stage.Name], j.record(stage.Name)
	if spec == nil || record.Promoted != "" || j.idle(stage) {
		return out
	}
	j.renew(record, stage, evidence[stage.Name])
	after := record.Opened != nil
	checks := spec.Before
	if after {
		checks = spec.After
	}
	if after && !j.arrived(stage) {
		return out
	}
	record.Checks = slices.DeleteFunc(record.Checks, func(is v1alpha1.RolloutCheck) bool {
		return is.After == after && !slices.ContainsFunc(checks, func(c v1alpha1.Check) bool { return c.Name == is.Name })
	})
	for _, c := range checks {
		key := Check{Change: record.Evidence, Stage: stage.Name, Name: c.Name, After: after}
		is, why := j.begun(record, stage, c, metav1.NewTime(now))
		if is == nil {
			out.pending[key] = why
			continue
		}
		a, answered := j.in.checks[key]
		j.asksFor(is, c, key, now)
		out.wake = sooner(out.wake, judge(is, c, a, answered, now))
		switch {
		case is.Passed != nil:
			out.results[key] = Result{Passed: true}
			continue
		case is.Failed != nil:
			out.results[key] = Result{Message: is.Message}
			continue
		}
		out.pending[key] = is.Message
		q := question{Check: key, spec: c, clusters: stage.Clusters, asked: is.Asked.Time}
		if is.Job != nil {
			q.run, q.on = is.Job.Run, j.runs(stage)
		}
		out.questions = append(out.questions, q)
		if c.Approval == nil && c.Job == nil { // answers of approvals and Jobs trigger a reconcile
			out.wake = sooner(out.wake, now.Add(askEvery))
		}
	}
	return out
}

// renew forgets check results for other evidence. It closes a stage that gets something new, so
// that its checks open it again.
func (j *rolloutState) renew(record *v1alpha1.RolloutStage, stage Stage, evidence string) {
	if record.Evidence == evidence {
		return
	}
	record.Evidence, record.Checks = evidence, nil
	if len(stage.Before) > 0 && j.bringsNew(stage) {
		record.Opened = nil
	}
}

// bringsNew reports whether a stage has a target for an unreleased cluster that neither has nor had
// it. A pinned cluster counts: its pin may end while the stage is open.
func (j *rolloutState) bringsNew(stage Stage) bool {
	return slices.ContainsFunc(stage.Clusters, func(name string) bool {
		c := j.clusters[j.place[name]]
		return c.Released == nil && c.Want != "" && c.Want != c.From && c.Want != j.in.clusters[name].fact.Hash
	})
}

// begun returns the record of a check of the current stage, and creates it if necessary. nil means
// that the check is not asked yet; why is the reason.
func (j *rolloutState) begun(record *v1alpha1.RolloutStage, stage Stage, spec v1alpha1.Check, now metav1.Time) (is *v1alpha1.RolloutCheck, why string) {
	after := record.Opened != nil
	at := slices.IndexFunc(record.Checks, func(is v1alpha1.RolloutCheck) bool { return is.Name == spec.Name && is.After == after })
	if at >= 0 {
		return &record.Checks[at], ""
	}
	if why := j.jobBlockedBy(stage, spec); why != "" {
		return nil, why
	}
	record.Checks = append(record.Checks, v1alpha1.RolloutCheck{Name: spec.Name, After: after, Asked: now})
	return &record.Checks[len(record.Checks)-1], ""
}

// judge applies one answer to a check, and returns when time alone changes the result. Of answers
// that say no, the first message is kept, since most messages contain a changing number. The
// message of a Job is always updated: it shows the progress.
func judge(is *v1alpha1.RolloutCheck, spec v1alpha1.Check, a answer, answered bool, now time.Time) (wake time.Time) {
	if is.Passed != nil || is.Failed != nil {
		return time.Time{}
	}
	var lasts, timeout time.Duration
	if spec.For != nil {
		lasts = spec.For.Duration
	}
	if spec.Approval == nil {
		timeout = checkTimeout + lasts
	}
	if spec.Timeout != nil {
		timeout = spec.Timeout.Duration
	}
	at := metav1.NewTime(now)
	switch {
	case answered && a.yes:
		if seen := metav1.NewTime(a.since.Truncate(time.Second)); is.Since == nil {
			is.Since, is.Message = &at, fmt.Sprintf("it has to hold for %s", lasts)
		} else if is.Since.Before(&seen) { // the yes was not seen without a break
			is.Since = &seen
		}
		if now.Sub(is.Since.Time) >= lasts {
			is.Passed, is.Message = &at, ""
			return time.Time{}
		}
		wake = is.Since.Add(lasts)
	case answered && a.final:
		is.Failed, is.Message = &at, a.why
		return time.Time{}
	case answered:
		if is.Since != nil || is.Message == "" || spec.Job != nil {
			is.Message = a.why
		}
		is.Since = nil
	}
	if timeout <= 0 {
		return wake
	}
	end := is.Asked.Add(timeout)
	if !now.Before(end) {
		is.Failed, is.Message = &at, fmt.Sprintf("not in %s: %s", timeout, cmp.Or(a.why, is.Message, "it gave no answer"))
		return time.Time{}
	}
	return sooner(wake, end)
}

// record returns the entry of a stage in the next status, and creates it if necessary.
func (j *rolloutState) record(name string) *v1alpha1.RolloutStage {
	s := &j.status
	i := slices.IndexFunc(s.Stages, func(stage v1alpha1.RolloutStage) bool { return stage.Name == name })
	if i < 0 {
		i = len(s.Stages)
		s.Stages = append(s.Stages, v1alpha1.RolloutStage{Name: name})
	}
	return &s.Stages[i]
}

// arrived reports whether all clusters of a stage are healthy at their targets, and settled. Exempt
// clusters don't count.
func (j *rolloutState) arrived(stage Stage) bool {
	return !slices.ContainsFunc(stage.Clusters, func(name string) bool {
		k, c := j.in.clusters[name], j.clusters[j.place[name]]
		return k.fact.Exempt == "" && (!k.at() || !k.fact.Healthy || c.Released != nil && c.Settled == nil)
	})
}

// sooner returns the earlier of two times; zero means never.
func sooner(x, y time.Time) time.Time {
	if x.IsZero() || !y.IsZero() && y.Before(x) {
		return y
	}
	return x
}
