package rollout

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Assumptions are the premises of an estimate. Another premise is that nothing fails.
type Assumptions struct {
	// Begin is when the change is known.
	Begin time.Time
	// Takes is the time from the release of a cluster until it is healthy.
	Takes time.Duration
	// Frozen returns why a cluster is frozen at a time; empty: it is not frozen. The answer holds
	// until the second result; zero: for ever.
	Frozen func(cluster string, now time.Time) (reason string, until time.Time)
	// Passes is the time from asking a check until it passes.
	Passes func(stage, check string, after bool) time.Duration
}

// Forecast is the expected course of a rollout.
type Forecast struct {
	// Stages that release clusters, in order.
	Stages []StageForecast
	// Ends is when the last stage passes; zero: the rollout does not complete, and Because says
	// why.
	Ends    time.Time
	Because string
}

// StageForecast is one stage of a [Forecast]. A time is zero if the event does not happen.
type StageForecast struct {
	Name string
	// Clusters in the order of their release.
	Clusters     []string
	Begins, Ends time.Time
}

const (
	// horizon bounds the forecast.
	horizon = 366 * 24 * time.Hour
	// A rollout takes a few steps for each cluster, and some for each begin and end of a window or
	// a freeze.
	stepsAtLeast, stepsPerCluster = 5_000, 20
)

// Estimate simulates a rollout, with the clusters as they are at its begin. Arguments are not
// modified.
func Estimate(c Course, clusters map[string]Fact, a Assumptions) Forecast {
	e := &estimate{course: c, facts: maps.Clone(clusters), Assumptions: a, now: a.Begin, asked: map[Check]time.Time{}}
	because := "it takes more steps than are looked ahead"
	for range stepsAtLeast + stepsPerCluster*len(clusters) {
		next, why := e.step()
		if next.IsZero() {
			because = why
			break
		}
		if next.Sub(a.Begin) > horizon {
			because = "it takes more than a year"
			break
		}
		e.now = next
	}
	return e.forecast(because)
}

type estimate struct {
	Assumptions

	course  Course
	facts   map[string]Fact
	state   State
	now     time.Time
	asked   map[Check]time.Time
	answers map[Check]Result
	wake    time.Time
}

// step decides what happens at one moment, and returns the next moment. A zero time ends the
// simulation; why then says what keeps the rollout from completing.
func (e *estimate) step() (next time.Time, why string) {
	e.wake = time.Time{}
	e.arrive()
	e.simulateChecks()
	d := Decide(e.course, e.state, Facts{Now: e.now, Clusters: e.facts, Frozen: e.frozen(), Checks: e.answers})
	e.state = d.State
	e.soon(d.Wake)
	switch {
	case e.state.Phase == PhaseComplete:
		return time.Time{}, ""
	case e.state.Phase != PhaseProgressing:
		return time.Time{}, e.state.Because
	case len(d.Events) > 0:
		return e.now, ""
	}
	return e.wake, e.waits(d)
}

// soon wakes the simulation at a time in the future.
func (e *estimate) soon(at time.Time) {
	if at.After(e.now) && (e.wake.IsZero() || at.Before(e.wake)) {
		e.wake = at
	}
}

// arrive sets clusters to their target once Takes has passed since their release.
func (e *estimate) arrive() {
	for name, f := range e.facts {
		f.Seen = e.now
		if c, released := e.state.Clusters[name]; released && f.Hash != e.course.Want[name] {
			there := c.Released.Add(e.Takes)
			if e.soon(there); !there.After(e.now) {
				f.Hash, f.Healthy = e.course.Want[name], true
			}
		}
		e.facts[name] = f
	}
}

// simulateChecks asks checks when their stage is reached, and answers them after the time that they take.
func (e *estimate) simulateChecks() {
	e.answers = map[Check]Result{}
	for i := range e.course.Stages {
		stage := &e.course.Stages[i]
		e.answer(stage, false)
		if slices.ContainsFunc(stage.Clusters, func(name string) bool {
			f, known := e.facts[name]
			return !known || f.Exempt == "" && f.Hash != e.course.Want[name]
		}) {
			return
		}
		if e.answer(stage, true); e.state.Passed[stage.Name].IsZero() {
			return
		}
	}
}

func (e *estimate) answer(stage *Stage, after bool) {
	for _, name := range stage.checks(after) {
		check := Check{Change: e.course.Change, Stage: stage.Name, Name: name, After: after}
		if e.asked[check].IsZero() {
			e.asked[check] = e.now
		}
		at := e.asked[check].Add(e.Passes(stage.Name, name, after))
		if e.soon(at); !at.After(e.now) {
			e.answers[check] = Result{Passed: true}
		}
	}
}

// frozen asks about each cluster that was not released.
func (e *estimate) frozen() map[string]string {
	out := map[string]string{}
	for name := range e.facts {
		if _, released := e.state.Clusters[name]; released {
			continue
		}
		reason, until := e.Frozen(name, e.now)
		e.soon(until)
		if reason != "" {
			out[name] = reason
		}
	}
	return out
}

// waits returns what the first stage that has not passed waits for. A cluster of which nothing is
// known comes first, since the other clusters wait for it.
func (e *estimate) waits(d Decision) string {
	i := slices.IndexFunc(e.course.Stages, func(s Stage) bool { return e.state.Passed[s.Name].IsZero() })
	if i < 0 {
		return ""
	}
	first := ""
	for _, name := range e.course.Stages[i].Clusters {
		f, known := e.facts[name]
		why := d.Waiting[name]
		switch {
		case !known:
			return name + ": " + why
		case first == "" && why != "" && f.Exempt == "":
			first = name + ": " + why
		}
	}
	return first
}

func (e *estimate) forecast(because string) Forecast {
	var f Forecast
	for _, stage := range e.course.Stages {
		one := StageForecast{Name: stage.Name, Ends: e.state.Passed[stage.Name]}
		for _, name := range stage.Clusters {
			c, released := e.state.Clusters[name]
			if !released {
				continue
			}
			one.Clusters = append(one.Clusters, name)
			if one.Begins.IsZero() || c.Released.Before(one.Begins) {
				one.Begins = c.Released
			}
		}
		slices.SortStableFunc(one.Clusters, func(a, b string) int {
			return e.state.Clusters[a].Released.Compare(e.state.Clusters[b].Released)
		})
		if len(one.Clusters) > 0 {
			f.Stages = append(f.Stages, one)
		}
		if one.Ends.After(f.Ends) {
			f.Ends = one.Ends
		}
	}
	if e.state.Phase != PhaseComplete {
		f.Ends, f.Because = time.Time{}, cmp.Or(because, "nothing more happens")
	}
	return f
}
