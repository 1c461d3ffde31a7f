package preview

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
)

// maxEstimates bounds the number of simulated rollouts: each takes up to half a second with 300
// clusters.
const maxEstimates = 20

// Estimate says when each cluster would get the changes if they began now. It assumes that nothing
// fails: every check passes as soon as it can, and every approval exists.
type Estimate struct {
	Begin time.Time `json:"begin"`
	// ClusterTakes is the assumed time of a change on one cluster.
	ClusterTakes string `json:"clusterTakes"`
	// Rollouts, in the order of their first components.
	Rollouts []Rollout `json:"rollouts"`
}

// Rollout is the course of the changes of components that get to the same clusters at the same
// times.
type Rollout struct {
	Components []string `json:"components"`
	// Pipeline is empty for components that go to all clusters at once.
	Pipeline string `json:"pipeline,omitempty"`
	// Stages in which something changes.
	Stages []RolloutStage `json:"stages"`
	// Ends is the earliest end; absent: Because says why there is no end.
	Ends    *time.Time `json:"ends,omitempty"`
	Because string     `json:"because,omitempty"`
	// Held counts the changes that wait for an approval, on all clusters together. Ends assumes that
	// they are approved when the rollout begins.
	Held int `json:"held,omitempty"`
}

// RolloutStage is one step of a rollout. A time is absent if the event does not happen.
type RolloutStage struct {
	Name string `json:"name,omitempty"`
	// Clusters that get the change, in order.
	Clusters []string   `json:"clusters"`
	Begins   *time.Time `json:"begins,omitempty"`
	Ends     *time.Time `json:"ends,omitempty"`
	// Windows in which it releases clusters, and names of its checks.
	Windows []string `json:"windows,omitempty"`
	Before  []string `json:"before,omitempty"`
	After   []string `json:"after,omitempty"`
}

// estimate returns nil if nothing changes, or if no pipeline or freeze can delay a change.
func (m *maker) estimate() *Estimate {
	if len(m.out.Groups) == 0 || len(m.Head.Pipelines)+len(m.Head.Freezes) == 0 {
		return nil
	}
	changed := map[string]map[string]bool{}
	held, denied := map[string]int{}, map[string]int{}
	for i := range m.out.Groups {
		g := &m.out.Groups[i]
		if g.Paused {
			continue
		}
		if changed[g.Component] == nil {
			changed[g.Component] = map[string]bool{}
		}
		for _, name := range g.Clusters {
			changed[g.Component][name] = true
		}
		held[g.Component] += g.Count(differ.StateHeld)
		denied[g.Component] += g.Count(differ.StateDenied)
	}
	e := &Estimate{Begin: m.Now.UTC(), ClusterTakes: m.ClusterTakes.String(), Rollouts: []Rollout{}}
	rollouts := map[string]int{} // index in Rollouts
	for _, component := range slices.Sorted(maps.Keys(changed)) {
		w, err := m.simulate(component, changed[component])
		if err != nil { // its deliveries are blocked, and reported as problems
			continue
		}
		key := fmt.Sprintf("%s%t", w.key(), denied[component] > 0)
		i, known := rollouts[key]
		if known {
			e.Rollouts[i].Components = append(e.Rollouts[i].Components, component)
		} else {
			i = len(e.Rollouts)
			rollouts[key] = i
			e.Rollouts = append(e.Rollouts, m.carryOut(w, len(rollouts) <= maxEstimates))
		}
		r := &e.Rollouts[i]
		r.Held += held[component]
		if denied[component] > 0 {
			r.Ends, r.Because = nil, "a danger rule denies a change, which no approval lifts"
		}
	}
	return e
}

// simulatedRollout is a course, with the clusters as they are at its begin.
type simulatedRollout struct {
	component string
	pipeline  *registry.Pipeline // nil: at once
	course    rollout.Course
	clusters  map[string]rollout.Fact
	gets      map[string]bool // clusters that get the change
	freezes   []string        // freezes that may apply to the component
}

// The hashes of a simulated course.
const (
	before = "before"
	after  = "after"
)

func (m *maker) simulate(component string, changed map[string]bool) (*simulatedRollout, error) {
	w := &simulatedRollout{
		component: component, pipeline: m.Head.PipelineOf(component), clusters: map[string]rollout.Fact{}, gets: map[string]bool{},
		course: rollout.Course{Change: component, Want: map[string]string{}, From: map[string]string{}},
	}
	stages, err := rollout.Stages(m.Head, component)
	if err != nil {
		return nil, err
	}
	if w.pipeline == nil {
		all := slices.Sorted(maps.Keys(changed))
		stages = []rollout.Stage{{Clusters: all, MaxConcurrent: len(all), MaxUnavailable: len(all)}}
	}
	for _, s := range stages {
		moves := false
		for _, name := range s.Clusters {
			w.course.Want[name], w.course.From[name] = after, before
			if w.place(m.Head.Cluster(name), changed[name]) {
				moves = true
			}
		}
		if !moves { // nothing to check
			s.Before, s.After = nil, nil
		}
		w.course.Stages = append(w.course.Stages, s)
	}
	for _, z := range m.Head.Freezes {
		if len(z.Spec.Components) == 0 || slices.Contains(z.Spec.Components, component) {
			w.freezes = append(w.freezes, z.Name)
		}
	}
	return w, nil
}

// place records the state of a cluster at the begin, and reports whether it gets the change. A
// blocked delivery has no known state.
func (w *simulatedRollout) place(c *registry.Cluster, changes bool) bool {
	d := c.Delivery(w.component)
	switch {
	case len(c.Problems) > 0 || d == nil || d.Blocked() != nil:
	case d.Paused:
		w.clusters[c.Name] = rollout.Fact{Hash: before, Healthy: true, Exempt: "paused"}
	case changes:
		w.gets[c.Name] = true
		w.clusters[c.Name] = rollout.Fact{Hash: before, Healthy: true}
	default:
		w.clusters[c.Name] = rollout.Fact{Hash: after, Healthy: true}
	}
	return w.gets[c.Name]
}

// key differs for rollouts that may end at different times.
func (w *simulatedRollout) key() string {
	var b strings.Builder
	if w.pipeline != nil {
		b.WriteString(w.pipeline.Name)
	}
	fmt.Fprintf(&b, "\n%q\n", w.freezes)
	for _, s := range w.course.Stages {
		for _, name := range s.Clusters {
			f, known := w.clusters[name]
			fmt.Fprintf(&b, "%q %t %s %s\n", name, known, f.Hash, f.Exempt)
		}
	}
	return b.String()
}

func (m *maker) carryOut(w *simulatedRollout, estimated bool) Rollout {
	out := Rollout{Components: []string{w.component}, Stages: []RolloutStage{}, Because: "not estimated: there are many different ones"}
	f := rollout.Forecast{}
	if w.pipeline != nil {
		out.Pipeline = w.pipeline.Name
	}
	if estimated {
		f = rollout.Estimate(w.course, w.clusters, rollout.Assumptions{
			Begin: m.Now, Takes: m.ClusterTakes, Passes: w.passes,
			Frozen: func(cluster string, now time.Time) (string, time.Time) {
				return m.Head.Frozen(m.Head.Cluster(cluster), w.component, now)
			},
		})
		out.Ends, out.Because = at(f.Ends), f.Because
	}
	for _, s := range w.course.Stages {
		one := RolloutStage{Name: s.Name, Before: s.Before, After: s.After, Windows: w.windows(s.Name)}
		for _, name := range s.Clusters {
			if w.gets[name] {
				one.Clusters = append(one.Clusters, name)
			}
		}
		if len(one.Clusters) == 0 {
			continue
		}
		if i := slices.IndexFunc(f.Stages, func(t rollout.StageForecast) bool { return t.Name == s.Name }); i >= 0 {
			one.Begins, one.Ends = at(f.Stages[i].Begins), at(f.Stages[i].Ends)
		}
		out.Stages = append(out.Stages, one)
	}
	return out
}

func at(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// spec returns the spec of a stage; nil: there is none.
func (w *simulatedRollout) spec(stage string) *v1alpha1.Stage {
	if w.pipeline == nil {
		return nil
	}
	for _, s := range w.pipeline.Stages {
		if s.Spec.Name == stage {
			return &s.Spec
		}
	}
	return nil
}

func (w *simulatedRollout) windows(stage string) []string {
	var out []string
	if spec := w.spec(stage); spec != nil {
		for _, one := range spec.Windows {
			text := fmt.Sprintf("%s for %s", one.Cron, one.Duration.Duration)
			if one.TimeZone != "" {
				text += " " + one.TimeZone
			}
			out = append(out, text)
		}
	}
	return out
}

// passes returns the shortest time of a check.
func (w *simulatedRollout) passes(stage, check string, later bool) time.Duration {
	spec := w.spec(stage)
	if spec == nil {
		return 0
	}
	checks := spec.Before
	if later {
		checks = spec.After
	}
	for _, c := range checks {
		if c.Name == check && c.For != nil {
			return c.For.Duration
		}
	}
	return 0
}

// Assumed describes the assumptions of an estimate.
func (e *Estimate) Assumed() string {
	return fmt.Sprintf("if it begins at %s, a cluster takes %s, and nothing fails", clock(&e.Begin), e.ClusterTakes)
}

// Title names a rollout: "coredns and 3 more by pipeline standard".
func (r *Rollout) Title() string {
	title := r.Components[0]
	if more := len(r.Components) - 1; more > 0 {
		title += fmt.Sprintf(" and %d more", more)
	}
	if r.Pipeline == "" {
		return title + ", at once"
	}
	return title + " by pipeline " + r.Pipeline
}

// Ending says when the rollout is complete.
func (r *Rollout) Ending() string {
	held := ""
	if r.Held > 0 {
		held = plural(r.Held, "change is", "changes are") + " held until git approves; "
	}
	if r.Ends == nil {
		return held + "no end to tell: " + r.Because
	}
	if r.Held > 0 {
		held += "with the approval "
	}
	return held + "complete at " + clock(r.Ends) + " at the earliest"
}

// String says in one line which clusters get the change in a stage, and when.
func (s *RolloutStage) String() string {
	const room = 60 // bytes of the clusters' names
	parts := []string{plural(len(s.Clusters), "cluster", "clusters") + " (" + names(s.Clusters, room, strings.Clone) + ")"}
	switch {
	case s.Begins == nil:
	case s.Ends == nil:
		parts = append(parts, "from "+clock(s.Begins))
	default:
		parts = append(parts, clock(s.Begins)+" to "+clock(s.Ends))
	}
	for _, w := range s.Windows {
		parts = append(parts, "window "+w)
	}
	if len(s.Before) > 0 {
		parts = append(parts, "checks before it: "+strings.Join(s.Before, ", "))
	}
	if len(s.After) > 0 {
		parts = append(parts, "checks after it: "+strings.Join(s.After, ", "))
	}
	text := strings.Join(parts, "; ")
	if s.Name == "" {
		return text
	}
	return s.Name + ": " + text
}

func clock(t *time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
