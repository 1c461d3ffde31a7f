package rollout

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Assumptions are what an estimate takes for granted: nothing fails.
type Assumptions struct {
	// Begin is when the change is known.
	Begin time.Time
	// Takes is how long a cluster takes from when it is let go to when it is healthy.
	Takes time.Duration
	// Frozen says why a cluster is frozen at a time, if it is, and until when that is
	// the answer; zero: for ever.
	Frozen func(cluster string, now time.Time) (reason string, until time.Time)
	// Passes is how long a check takes from when it is asked.
	Passes func(stage, check string, after bool) time.Duration
}

// Forecast is how a rollout would go.
type Forecast struct {
	// Stages that let clusters go, in order.
	Stages []StageForecast
	// Ends is when the last stage has passed; zero: it does not come to that, and
	// Because says why.
	Ends    time.Time
	Because string
}

// StageForecast is one stage of it. A time is zero where it does not come to that.
type StageForecast struct {
	Name string
	// Clusters in the order in which they are let go.
	Clusters     []string
	Begins, Ends time.Time
}

const (
	// horizon is how far is looked ahead.
	horizon = 366 * 24 * time.Hour
	// A rollout takes a few steps for each cluster, and some for each time that
	// windows and freezes begin and end.
	stepsAtLeast, stepsPerCluster = 5_000, 20
)

// Estimate carries a rollout out in thought, from clusters as they are at its begin.
// Arguments are not modified.
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

// step decides what happens at one moment, and returns the next one. A zero time is
// the end; why is then what keeps it from being complete.
func (e *estimate) step() (next time.Time, why string) {
	e.wake = time.Time{}
	e.arrive()
	e.ask()
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

// soon notes when something happens.
func (e *estimate) soon(at time.Time) {
	if at.After(e.now) && (e.wake.IsZero() || at.Before(e.wake)) {
		e.wake = at
	}
}

// arrive has clusters be where they are after the time that they take.
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

// ask asks checks when their turn comes, and answers them after their time.
func (e *estimate) ask() {
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

// frozen asks for each cluster that was not let go.
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

// waits is what the first cluster waits for in the first stage that has not passed: one
// of which nothing is known, if there is, since the others wait for that.
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
