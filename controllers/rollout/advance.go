package rollout

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// timelineLength bounds a timeline.
const timelineLength = 200

// step is the result of one reconcile of a component.
type step struct {
	// status is the next status. It has no effect before it is stored.
	status v1alpha1.RolloutStatus
	events []Event
	// wake is when time alone changes the result; zero: never.
	wake time.Time
	// questions are the checks to ask now.
	questions []question
}

// advance takes a stored rollout as far as the facts allow. The zero status means that there is no
// Rollout. Arguments are not modified. Without anything to roll out, the status is unchanged.
func advance(was v1alpha1.RolloutStatus, in input, now time.Time) step {
	now = now.Truncate(time.Microsecond) // the precision of the stored status
	j := newRolloutState(was, in)
	switch {
	case was.Change == "" && j.from == noStage:
		return step{status: was}
	case was.Phase == v1alpha1.RolloutComplete && j.from == noStage:
		return step{status: was}
	}
	j.supersede(now)
	asked := j.advanceChecks(now)
	decision := Decide(j.course(), j.state(), j.facts(now, asked))
	j.events = append(j.events, decision.Events...)
	return step{status: j.result(decision, now), events: j.events, wake: sooner(decision.Wake, asked.wake), questions: asked.questions}
}

// noStage is the stage index that means no stage.
const noStage = int(^uint(0) >> 1)

// rolloutState is a stored rollout, combined with the current facts.
type rolloutState struct {
	in       input
	was      v1alpha1.RolloutStatus
	status   v1alpha1.RolloutStatus    // the next status
	clusters []v1alpha1.RolloutCluster // of the next status
	place    map[string]int            // index in clusters, by name
	// from is the first stage with a new target in git. Earlier stages keep their targets.
	from int
	// changed are the clusters with a new target in git.
	changed []string
	events  []Event
}

// newRolloutState finds out which part of a stored rollout still agrees with git.
func newRolloutState(was v1alpha1.RolloutStatus, in input) *rolloutState {
	j := &rolloutState{in: in, was: was, status: *was.DeepCopy(), place: map[string]int{}, from: noStage}
	before := map[string]v1alpha1.RolloutCluster{}
	for _, c := range was.Clusters {
		before[c.Name] = c
	}
	unknown := noStage
	for i := range in.stages {
		for _, name := range in.stages[i].Clusters {
			had, there := before[name]
			k := in.clusters[name]
			c, news := entryFor(had, there, k, was.Phase)
			if k.want == "" && k.fact.Exempt == "" {
				unknown = min(unknown, i)
			}
			c.Name, c.Stage = name, in.stages[i].Name
			j.place[name] = len(j.clusters)
			j.clusters = append(j.clusters, c)
			if news {
				j.from = min(j.from, i)
				j.changed = append(j.changed, name)
			}
		}
	}
	if j.from != noStage { // these stages may have a new target, too, and they come first
		j.from = min(j.from, unknown)
	}
	return j
}

// entryFor returns a cluster's entry in the next status. news reports whether git has a new target
// there. While the target is unknown, the entry stays unchanged.
func entryFor(had v1alpha1.RolloutCluster, there bool, k known, phase v1alpha1.RolloutPhase) (_ v1alpha1.RolloutCluster, news bool) {
	missing := k.fact.Hash != k.want && k.fact.Exempt == ""
	switch {
	case k.want == "":
		return had, false
	case there && had.Want == k.want:
		// The rollout has ended, and this cluster was no part of it.
		return had, phase == v1alpha1.RolloutComplete && had.Released == nil && missing
	}
	c := v1alpha1.RolloutCluster{Want: k.want, From: had.From}
	if had.Settled != nil && !had.Back { // had.Want ran there
		c.From = had.Want
	}
	return c, missing || there && had.Want != ""
}

// supersede makes the rollout one of the new targets in git, if there are any.
func (j *rolloutState) supersede(now time.Time) {
	s := &j.status
	if j.from == noStage {
		return
	}
	s.Component, s.Pipeline, s.Ended = j.in.component, j.in.pipeline, nil
	s.Back = j.takesBack()
	fresh := j.was.Change == "" || j.was.Phase == v1alpha1.RolloutComplete || j.was.Revision != j.in.revision
	j.reopen(fresh)
	if s.Back {
		j.unwant()
	}
	s.From, s.To = j.versions()
	if s.Back && s.To == "" { // no cluster with the change has reported its new target yet
		s.From, s.To = j.was.To, j.was.From
	}
	if !fresh {
		return
	}
	s.Begun, s.Revision = &metav1.Time{Time: now.Truncate(time.Second)}, j.in.revision
	message := fmt.Sprintf("begins: %s → %s, revision %.12s", cmp.Or(s.From, "nothing"), s.To, j.in.revision)
	switch {
	case s.Back:
		message = fmt.Sprintf("takes back: %s → %s, revision %.12s", s.From, s.To, j.in.revision)
	case j.was.Change != "" && j.was.Phase != v1alpha1.RolloutComplete:
		message = fmt.Sprintf("superseded: git wants %s of revision %.12s", s.To, j.in.revision)
	}
	j.events = append(j.events, Event{Time: now, Message: message})
}

// reopen resets the stages with a new target in git, and all later stages. fresh means that this is
// another change, and not an extension of the current change.
func (j *rolloutState) reopen(fresh bool) {
	s := &j.status
	passed := map[string]bool{}
	for _, stage := range j.was.Stages {
		passed[stage.Name] = stage.Passed != nil
	}
	first := slices.IndexFunc(j.in.stages, func(stage Stage) bool { return !passed[stage.Name] })
	if again := first < 0 || j.from <= first; again && s.Phase != v1alpha1.RolloutProgressing {
		s.Phase, s.Because = v1alpha1.RolloutProgressing, ""
		j.forget(func(c v1alpha1.RolloutCluster) bool { return c.Back }) // they are tried again
	}
	// A stage that had passed and is reopened brings nothing to its clusters at their target. These
	// clusters are no part of it, so their releases are forgotten.
	checked := map[string]bool{}
	for _, stage := range j.in.stages[j.from:] {
		checked[stage.Name] = len(stage.Before) > 0
	}
	j.forget(func(c v1alpha1.RolloutCluster) bool {
		_, reopened := checked[c.Stage]
		return reopened && passed[c.Stage]
	})
	for i := range s.Stages {
		stage := &s.Stages[i]
		before, reopened := checked[stage.Name]
		if !reopened {
			continue
		}
		stage.Passed = nil
		if fresh {
			stage.Promoted = ""
		}
		if fresh || before { // a stage without checks before it stays open
			stage.Opened = nil
		}
	}
}

// unwant forgets the old target of clusters that did not get it, and have not reported their new
// target. If such a cluster still has the old target in git, that target is rolled out, not taken
// back.
func (j *rolloutState) unwant() {
	for i := range j.clusters {
		c := &j.clusters[i]
		if k := j.in.clusters[c.Name]; k.want == "" && c.Released == nil && k.fact.Hash != c.Want {
			c.Want = ""
		}
	}
}

// forget marks the selected clusters as not released.
func (j *rolloutState) forget(which func(v1alpha1.RolloutCluster) bool) {
	for i := range j.clusters {
		if c := &j.clusters[i]; which(*c) {
			c.Released, c.Settled, c.Back = nil, nil, false
		}
	}
}

// takesBack reports whether git takes back an unfinished change: clusters that got the change
// return to their previous target, and all other clusters keep theirs.
func (j *rolloutState) takesBack() bool {
	if j.was.Change == "" || j.was.Phase == v1alpha1.RolloutComplete {
		return false
	}
	had := map[string]v1alpha1.RolloutCluster{}
	for _, c := range j.was.Clusters {
		had[c.Name] = c
	}
	changed := map[string]bool{}
	for _, name := range j.changed {
		k, c := j.in.clusters[name], had[name]
		got := c.Released != nil || k.fact.Hash == c.Want // or is about to get it
		if !k.at() && (!got || c.From != k.want) {
			return false
		}
		changed[name] = true
	}
	for name, k := range j.in.clusters {
		if !changed[name] && !j.was.Back && k.want != "" && k.fact.Exempt == "" && !k.at() {
			return false // this cluster gets something else
		}
	}
	return true
}

// versions returns the old and the new versions of clusters that are not at their target, sorted
// and joined by commas.
func (j *rolloutState) versions() (from, to string) {
	has, gets := map[string]bool{}, map[string]bool{}
	for _, k := range j.in.clusters {
		if k.fact.Exempt == "" && k.want != "" && !k.at() {
			has[k.has], gets[k.gets] = true, true
		}
	}
	delete(has, "")
	return strings.Join(slices.Sorted(maps.Keys(has)), ","), strings.Join(slices.Sorted(maps.Keys(gets)), ",")
}

// course returns the Course for [Decide].
func (j *rolloutState) course() Course {
	c := Course{Change: j.change(len(j.in.stages)), Back: j.status.Back, Want: map[string]string{}, From: map[string]string{}}
	for i := range j.clusters {
		is := &j.clusters[i]
		c.Want[is.Name], c.From[is.Name] = is.Want, is.From
	}
	for _, stage := range j.in.stages {
		if c.Back {
			stage.Rollback = false // a rollback would restore the change that is taken back
		}
		if j.idle(stage) {
			stage.Before, stage.After = nil, nil
		}
		c.Stages = append(c.Stages, stage)
	}
	return c
}

// idle reports whether a stage has nothing to do now, and had nothing to do in this rollout. Such a
// stage needs no checks.
func (j *rolloutState) idle(stage Stage) bool {
	return !slices.ContainsFunc(stage.Clusters, func(name string) bool {
		k := j.in.clusters[name]
		return j.clusters[j.place[name]].Released != nil || k.fact.Exempt == "" && (!k.at() || !k.fact.Healthy)
	})
}

// change returns a hash of the targets in the first stages.
func (j *rolloutState) change(stages int) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q\n", j.in.component, j.in.pipeline)
	for _, stage := range j.in.stages[:stages] {
		names := slices.Sorted(slices.Values(stage.Clusters))
		for _, name := range names {
			fmt.Fprintf(h, "%q %q %q\n", stage.Name, name, j.clusters[j.place[name]].Want)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// state converts the stored status into the State for [Decide].
func (j *rolloutState) state() State {
	s := State{
		Phase: Phase(j.status.Phase), Because: j.status.Because, Clusters: map[string]Cluster{},
		Passed: map[string]time.Time{}, Opened: map[string]time.Time{}, Promoted: map[string]string{},
	}
	for i := range j.clusters {
		if is := &j.clusters[i]; is.Released != nil {
			c := Cluster{Released: is.Released.Time, Back: is.Back}
			if is.Settled != nil {
				c.Settled = is.Settled.Time
			}
			s.Clusters[is.Name] = c
		}
	}
	for _, stage := range j.status.Stages {
		if stage.Passed != nil {
			s.Passed[stage.Name] = stage.Passed.Time
		}
		if stage.Opened != nil {
			s.Opened[stage.Name] = stage.Opened.Time
		}
		if stage.Promoted != "" {
			s.Promoted[stage.Name] = stage.Promoted
		}
	}
	if j.status.Paused != "" && (s.Phase == PhaseProgressing || s.Phase == "") {
		s.Phase, s.Because = PhasePaused, j.status.Paused
	}
	return s
}

// facts returns the Facts for [Decide].
func (j *rolloutState) facts(now time.Time, asked asked) Facts {
	f := Facts{
		Now: now, Clusters: map[string]Fact{}, Unknown: map[string]string{}, Frozen: j.in.frozen,
		Checks: map[Check]Result{}, Pending: map[Check]string{},
	}
	for name, k := range j.in.clusters {
		k.fact.Seen = now // the watch began with a full list, so the fact is current
		if k.want == "" && k.fact.Exempt == "" {
			f.Unknown[name] = k.why
			continue
		}
		f.Clusters[name] = k.fact
	}
	change := j.change(len(j.in.stages))
	for check, result := range asked.results {
		check.Change = change
		f.Checks[check] = result
	}
	for check, why := range asked.pending {
		check.Change = change
		f.Pending[check] = why
	}
	return f
}

// evidence returns, by stage, a hash of the targets of the stage and of all stages before it.
func (j *rolloutState) evidence() map[string]string {
	out := map[string]string{}
	for i, stage := range j.in.stages {
		out[stage.Name] = j.change(i + 1)
	}
	return out
}

// result returns the next status.
func (j *rolloutState) result(d Decision, now time.Time) v1alpha1.RolloutStatus {
	s := &j.status
	s.Change, s.Phase, s.Because = j.change(len(j.in.stages)), v1alpha1.RolloutPhase(d.State.Phase), d.State.Because
	s.Stages = j.stages(d.State)
	s.Stage = ""
	if i := slices.IndexFunc(s.Stages, func(stage v1alpha1.RolloutStage) bool { return stage.Passed == nil }); i >= 0 {
		s.Stage = s.Stages[i].Name
	}
	got := 0
	for i := range j.clusters {
		c := &j.clusters[i]
		k := j.in.clusters[c.Name]
		is, released := d.State.Clusters[c.Name]
		if released && c.Released == nil {
			c.From = leaves(c, k.fact)
		}
		if released {
			c.Released, c.Back = microTime(is.Released), is.Back
			c.Settled = microTime(is.Settled)
		}
		c.Because = d.Waiting[c.Name]
		if k.at() && !c.Back {
			got++
		}
	}
	s.Clusters, s.Progress = j.clusters, fmt.Sprintf("%d/%d", got, len(j.clusters))
	if ended := s.Phase == v1alpha1.RolloutComplete || s.Phase == v1alpha1.RolloutRolledBack; ended && s.Ended == nil {
		s.Ended = &metav1.Time{Time: now.Truncate(time.Second)}
	}
	for _, e := range j.events {
		s.Timeline = append(s.Timeline, v1alpha1.RolloutEvent{
			Time: metav1.NewTime(e.Time.Truncate(time.Second)), Stage: e.Stage, Cluster: e.Cluster, Message: e.Message,
		})
	}
	s.Timeline = s.Timeline[max(0, len(s.Timeline)-timelineLength):]
	setConditions(s, now)
	return *s
}

// leaves returns the target to which a newly released cluster can go back; empty: none. This is the
// current target, or the remembered target if the cluster has the new target already. For an
// unhealthy cluster it is the remembered target, if there is one.
func leaves(c *v1alpha1.RolloutCluster, has Fact) string {
	if has.Hash == c.Want || c.From != "" && !has.Healthy {
		return c.From
	}
	if has.Hash == v1alpha1.HashAbsent {
		return ""
	}
	return has.Hash
}

func (j *rolloutState) stages(state State) []v1alpha1.RolloutStage {
	evidence := j.evidence()
	checks := map[string][]v1alpha1.RolloutCheck{}
	for _, stage := range j.status.Stages {
		if stage.Evidence == evidence[stage.Name] {
			checks[stage.Name] = stage.Checks
		}
	}
	out := make([]v1alpha1.RolloutStage, 0, len(j.in.stages))
	for _, stage := range j.in.stages {
		out = append(out, v1alpha1.RolloutStage{
			Name: stage.Name, Evidence: evidence[stage.Name], Promoted: state.Promoted[stage.Name], Checks: checks[stage.Name],
			Opened: secondTime(state.Opened[stage.Name]), Passed: secondTime(state.Passed[stage.Name]),
		})
	}
	return out
}

func microTime(t time.Time) *metav1.MicroTime {
	if t.IsZero() {
		return nil
	}
	return &metav1.MicroTime{Time: t}
}

func secondTime(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t.Truncate(time.Second)}
}

// setConditions follows kstatus: Ready is always present. Reconciling and Stalled are present only
// while they are True.
func setConditions(s *v1alpha1.RolloutStatus, now time.Time) {
	message := cmp.Or(s.Because, fmt.Sprintf("%s clusters have %s", s.Progress, s.To))
	on := map[string]bool{
		v1alpha1.ConditionReady:       s.Phase == v1alpha1.RolloutComplete,
		v1alpha1.ConditionReconciling: s.Phase == v1alpha1.RolloutProgressing || s.Phase == v1alpha1.RolloutRollingBack,
		v1alpha1.ConditionStalled:     s.Phase == v1alpha1.RolloutPaused || s.Phase == v1alpha1.RolloutRolledBack,
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		status := metav1.ConditionFalse
		if on[kind] {
			status = metav1.ConditionTrue
		} else if kind != v1alpha1.ConditionReady {
			meta.RemoveStatusCondition(&s.Conditions, kind)
			continue
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: string(s.Phase), Message: message, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		})
	}
}

// same reports whether two statuses are semantically equal.
func same(x, y v1alpha1.RolloutStatus) bool { return equality.Semantic.DeepEqual(x, y) }
