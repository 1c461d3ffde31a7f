package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Decide returns the next step. Arguments are not modified; equal arguments give an equal decision.
// The caller stores the State, and calls again when a fact changes, or at Wake.
func Decide(c Course, s State, f Facts) Decision {
	d := &decider{course: c, facts: f, out: Decision{State: s.clone(), Waiting: map[string]string{}}, limits: map[string]stageLimits{}}
	d.run()
	return d.out
}

func (s State) clone() State {
	s.Phase = cmp.Or(s.Phase, PhaseProgressing)
	s.Clusters, s.Passed, s.Opened, s.Promoted = copied(s.Clusters), copied(s.Passed), copied(s.Opened), copied(s.Promoted)
	return s
}

func copied[V any](m map[string]V) map[string]V {
	out := make(map[string]V, len(m))
	maps.Copy(out, m)
	return out
}

// Messages of the events of a cluster; [Metrics] counts them.
const (
	eventReleased = "released"
	eventSettled  = "settled"
)

type decider struct {
	course Course
	facts  Facts
	out    Decision
	limits map[string]stageLimits // by stage, since the last release
}

// stageLimits is the part of a release decision that all clusters of a stage share.
type stageLimits struct {
	shut        string   // why window or silence forbid a release; empty: they allow it
	moving      int      // clusters that are released and not settled
	unavailable []string // clusters that are moving or unhealthy
}

func (d *decider) run() {
	for i := range d.course.Stages {
		d.settle(&d.course.Stages[i])
	}
	if s := &d.out.State; s.Phase == PhaseProgressing {
		d.progress()
	}
	if s := &d.out.State; s.Phase == PhaseRollingBack && d.isBack() {
		s.Phase = PhaseRolledBack
		d.event("", "", "rolled back: "+s.Because)
	}
	d.explain()
}

// settle records which released clusters have reached their target.
func (d *decider) settle(stage *Stage) {
	for _, name := range stage.Clusters {
		c, released := d.out.State.Clusters[name]
		if !released || c.Back || !c.Settled.IsZero() || !d.there(name) || d.facts.Clusters[name].Seen.Before(c.Released) {
			continue
		}
		c.Settled = d.facts.Now
		d.out.State.Clusters[name] = c
		d.event(stage.Name, name, eventSettled)
	}
}

// there reports whether a cluster is healthy at the hash that this change wants there. Health at
// another hash is not evidence.
func (d *decider) there(name string) bool {
	f := d.facts.Clusters[name]
	return f.Healthy && f.Hash == d.course.Want[name]
}

// done reports whether a cluster needs nothing more: it has settled, had the target already, or
// takes no part.
func (d *decider) done(name string) bool {
	c, released := d.out.State.Clusters[name]
	if released && c.Back {
		return false
	}
	return d.facts.Clusters[name].Exempt != "" || d.there(name) && (!released || !c.Settled.IsZero())
}

// progress advances the stages in order, up to the first stage that can't pass yet.
func (d *decider) progress() {
	for i := range d.course.Stages {
		stage := &d.course.Stages[i]
		if !d.out.State.Passed[stage.Name].IsZero() {
			continue
		}
		if why := d.failure(stage); why != "" {
			d.fail(stage, why)
			return
		}
		if !d.opened(stage) {
			return
		}
		d.release(stage)
		if !d.passes(stage) {
			return
		}
		d.out.State.Passed[stage.Name] = d.facts.Now
		d.event(stage.Name, "", "passed")
	}
	d.out.State.Phase = PhaseComplete
	d.event("", "", "complete")
}

// failure returns why a stage fails: a released cluster reports a failure at its target, or takes
// too long, or a check failed. Empty: the stage does not fail.
func (d *decider) failure(stage *Stage) string {
	for _, name := range stage.Clusters {
		c, released := d.out.State.Clusters[name]
		f, known := d.facts.Clusters[name]
		switch {
		case !released || f.Exempt != "":
		case known && f.Failed != "" && f.Hash == d.course.Want[name]:
			return name + ": " + f.Failed
		case c.Settled.IsZero() && stage.Timeout > 0 && d.facts.Now.Sub(c.Released) >= stage.Timeout:
			return fmt.Sprintf("%s did not get there in %s", name, stage.Timeout)
		case c.Settled.IsZero() && stage.Timeout > 0:
			d.requeueAt(c.Released.Add(stage.Timeout))
		}
	}
	for _, after := range []bool{false, true} {
		for _, name := range stage.checks(after) {
			r, answered := d.result(stage, name, after)
			if answered && !r.Passed && !d.hurried(stage) && (after || d.out.State.Opened[stage.Name].IsZero()) {
				return fmt.Sprintf("check %s failed: %s", name, r.Message)
			}
		}
	}
	return ""
}

func (s *Stage) checks(after bool) []string {
	if after {
		return s.After
	}
	return s.Before
}

func (d *decider) result(stage *Stage, name string, after bool) (Result, bool) {
	r, ok := d.facts.Checks[Check{Change: d.course.Change, Stage: stage.Name, Name: name, After: after}]
	return r, ok
}

// hurried reports whether the stage waits only for health and freezes.
func (d *decider) hurried(stage *Stage) bool {
	_, promoted := d.out.State.Promoted[stage.Name]
	return promoted || d.course.Back
}

func (d *decider) fail(stage *Stage, why string) {
	s := &d.out.State
	s.Because = fmt.Sprintf("stage %s: %s", stage.Name, why)
	if !stage.Rollback {
		s.Phase = PhasePaused
		d.event(stage.Name, "", "paused: "+why)
		return
	}
	s.Phase = PhaseRollingBack
	d.event(stage.Name, "", "rolls back: "+why)
	for _, name := range stage.Clusters {
		if c, released := s.Clusters[name]; released && d.course.From[name] != "" {
			c.Back = true
			s.Clusters[name] = c
			d.event(stage.Name, name, "goes back")
		}
	}
}

func (d *decider) isBack() bool {
	for name, c := range d.out.State.Clusters {
		f := d.facts.Clusters[name]
		if c.Back && f.Exempt == "" && (f.Hash != d.course.From[name] || !f.Healthy) {
			return false
		}
	}
	return true
}

// opened reports whether the checks before a stage have passed, and records when.
func (d *decider) opened(stage *Stage) bool {
	if !d.out.State.Opened[stage.Name].IsZero() {
		return true
	}
	if !d.hurried(stage) && d.missing(stage, false) != "" {
		return false
	}
	d.out.State.Opened[stage.Name] = d.facts.Now
	d.event(stage.Name, "", "opened")
	return true
}

// missing returns the first check of a stage that has not passed; empty: there is none.
func (d *decider) missing(stage *Stage, after bool) string {
	for _, name := range stage.checks(after) {
		if r, answered := d.result(stage, name, after); !answered || !r.Passed {
			return name
		}
	}
	return ""
}

// isAsked reports whether the stage waits for the answer to a check after it.
func (d *decider) isAsked(stage *Stage) bool {
	_, asked := d.facts.Pending[Check{Change: d.course.Change, Stage: stage.Name, Name: d.missing(stage, true), After: true}]
	return asked
}

// unanswered names the first check of a stage that has not passed, and says why.
func (d *decider) unanswered(stage *Stage, after bool) string {
	name := d.missing(stage, after)
	text := fmt.Sprintf("check %s has not passed", name)
	if why := d.facts.Pending[Check{Change: d.course.Change, Stage: stage.Name, Name: name, After: after}]; why != "" {
		text += ": " + why
	}
	return text
}

// release releases clusters in their order, as many as the limits allow.
func (d *decider) release(stage *Stage) {
	for _, name := range stage.Clusters {
		if d.done(name) || d.released(name) {
			continue
		}
		if d.facts.Frozen[name] != "" {
			continue // a later cluster may be released
		}
		if d.blockedBy(stage, name) != "" {
			return
		}
		d.out.State.Clusters[name] = Cluster{Released: d.facts.Now}
		delete(d.limits, stage.Name)
		d.event(stage.Name, name, eventReleased)
		if stage.Timeout > 0 {
			d.requeueAt(d.facts.Now.Add(stage.Timeout))
		}
	}
}

func (d *decider) released(name string) bool {
	_, ok := d.out.State.Clusters[name]
	return ok
}

// blockedBy returns why a cluster that was not released can't be the next one yet; empty: it can.
func (d *decider) blockedBy(stage *Stage, next string) string {
	f, known := d.facts.Clusters[next]
	if !known {
		return cmp.Or(d.facts.Unknown[next], "its state is unknown")
	}
	g := d.limitsOf(stage)
	unavailable := g.unavailable
	if !f.Healthy { // the change may repair the cluster
		unavailable = slices.DeleteFunc(slices.Clone(unavailable), func(name string) bool { return name == next })
	}
	switch {
	case g.shut != "":
		return g.shut
	case g.moving >= stage.MaxConcurrent:
		return fmt.Sprintf("%d of at most %d clusters are updating", g.moving, stage.MaxConcurrent)
	case len(unavailable) >= stage.MaxUnavailable: // this release adds one
		return fmt.Sprintf("%d of at most %d clusters are updating or not healthy: %s", len(unavailable), stage.MaxUnavailable, few(unavailable))
	}
	return ""
}

// few lists the first names of many.
func few(names []string) string {
	const shown = 3
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// limitsOf returns the limits of a stage. It counts the clusters once for each release, and not once for
// each waiting cluster.
func (d *decider) limitsOf(stage *Stage) stageLimits {
	g, known := d.limits[stage.Name]
	if known {
		return g
	}
	g.shut = d.shut(stage)
	for _, name := range stage.Clusters {
		c, released := d.out.State.Clusters[name]
		onItsWay := released && c.Settled.IsZero() && d.facts.Clusters[name].Exempt == ""
		if onItsWay {
			g.moving++
		}
		if onItsWay || !d.facts.Clusters[name].Healthy {
			g.unavailable = append(g.unavailable, name)
		}
	}
	d.limits[stage.Name] = g
	return g
}

// shut returns why the clock forbids a release in a stage now; empty: it allows one.
func (d *decider) shut(stage *Stage) string {
	if d.hurried(stage) {
		return ""
	}
	if opens, open := stage.Windows.At(d.facts.Now); !open {
		d.requeueAt(opens)
		if opens.IsZero() {
			return "its window never opens"
		}
		return "the window opens at " + opens.UTC().Format(time.RFC3339)
	}
	if last := d.last(stage); !last.IsZero() && d.facts.Now.Sub(last) < stage.Silence {
		d.requeueAt(last.Add(stage.Silence))
		return "silence until " + last.Add(stage.Silence).UTC().Format(time.RFC3339)
	}
	return ""
}

// last returns when a cluster of the stage was last released, or settled.
func (d *decider) last(stage *Stage) time.Time {
	var last time.Time
	for _, name := range stage.Clusters {
		c := d.out.State.Clusters[name]
		for _, t := range []time.Time{c.Released, c.Settled} {
			if t.After(last) {
				last = t
			}
		}
	}
	return last
}

// passes reports whether a stage has nothing more to wait for.
func (d *decider) passes(stage *Stage) bool {
	if slices.ContainsFunc(stage.Clusters, func(name string) bool { return !d.done(name) }) {
		return false
	}
	if d.hurried(stage) {
		return true
	}
	if last := d.last(stage); !last.IsZero() && d.facts.Now.Sub(last) < stage.Bake {
		d.requeueAt(last.Add(stage.Bake))
		return false
	}
	return d.missing(stage, true) == ""
}

// explain fills Waiting.
func (d *decider) explain() {
	s, before := &d.out.State, ""
	for i := range d.course.Stages {
		stage := &d.course.Stages[i]
		for _, name := range stage.Clusters {
			if why := d.why(stage, name, before); why != "" {
				d.out.Waiting[name] = why
			}
		}
		if before == "" && s.Passed[stage.Name].IsZero() {
			before = fmt.Sprintf("stage %s comes first", stage.Name)
			if d.isAsked(stage) {
				before += ": " + d.unanswered(stage, true)
			}
		}
	}
}

func (d *decider) why(stage *Stage, name, before string) string {
	s, f := &d.out.State, d.facts.Clusters[name]
	c, released := s.Clusters[name]
	switch {
	case f.Exempt != "":
		return f.Exempt
	case released && c.Back:
		return "it goes back: " + s.Because
	case d.done(name):
		return ""
	case released:
		return cmp.Or(f.Failed, d.facts.Unknown[name], "it is on its way")
	case s.Phase != PhaseProgressing && s.Phase != PhaseComplete:
		return fmt.Sprintf("the rollout is %s: %s", s.Phase, s.Because)
	case before != "":
		return before
	case s.Opened[stage.Name].IsZero():
		return d.unanswered(stage, false)
	case d.facts.Frozen[name] != "":
		return "frozen: " + d.facts.Frozen[name]
	}
	return cmp.Or(d.blockedBy(stage, name), "its turn comes next")
}

func (d *decider) event(stage, cluster, message string) {
	d.out.Events = append(d.out.Events, Event{Time: d.facts.Now, Stage: stage, Cluster: cluster, Message: message})
}

func (d *decider) requeueAt(at time.Time) {
	if at.After(d.facts.Now) && (d.out.Wake.IsZero() || at.Before(d.out.Wake)) {
		d.out.Wake = at
	}
}
