package rollout

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// journey is a fleet over many commits, drawn at random: commits to some clusters or
// all, and what takes them back; clusters that work only by what is written, and tell
// of it late, each for itself; failures, pins, freezes; servers that answer checks;
// people's words; a controller that is killed before it has written what it decided.
type journey struct {
	t        *rapid.T
	now      time.Time
	revision int
	git      []map[string]string // what each commit wants, by cluster; the last one holds
	told     map[string]string   // what a cluster last said that git wants there
	real     map[string]Fact     // how a cluster is
	seen     map[string]Fact     // how it was when it told
	exempt   map[string]string
	servers  map[Check]bool // what they say now; Change is left out
	yes      map[Check]bool // what they said of an evidence
	// opened are stages, by name and evidence, that may be open.
	opened map[[2]string]bool
	// earned are stages that have passed, by name and evidence, and ought to have.
	earned map[[2]string]bool
	in     input
	status v1alpha1.RolloutStatus // as it is written
}

func newJourney(t *rapid.T) *journey {
	j := &journey{
		t: t, now: wayStart, told: map[string]string{}, real: map[string]Fact{}, seen: map[string]Fact{}, exempt: map[string]string{},
		servers: map[Check]bool{}, yes: map[Check]bool{}, earned: map[[2]string]bool{}, opened: map[[2]string]bool{},
		in: input{component: "web", pipeline: "standard", frozen: map[string]string{}, asks: map[string]*v1alpha1.Stage{}},
	}
	span := func(what string, most int) time.Duration {
		return time.Duration(rapid.IntRange(0, most).Draw(t, what)) * time.Minute
	}
	first := map[string]string{}
	for i := range rapid.IntRange(2, 4).Draw(t, "stages") {
		s := Stage{
			Name: fmt.Sprintf("stage-%d", i), MaxConcurrent: rapid.IntRange(1, 2).Draw(t, "concurrent"), MaxUnavailable: rapid.IntRange(1, 2).Draw(t, "unavailable"),
			Silence: span("silence", 2), Bake: span("bake", 4), Timeout: span("timeout", 30), Rollback: rapid.Bool().Draw(t, "rollback"),
		}
		spec := &v1alpha1.Stage{Name: s.Name}
		for n := range rapid.IntRange(1, 3).Draw(t, "clusters") {
			name := fmt.Sprintf("c%d%d", i, n)
			s.Clusters = append(s.Clusters, name)
			first[name], j.told[name], j.real[name] = "v0", "v0", Fact{Hash: "v0", Healthy: true}
		}
		if rapid.Bool().Draw(t, "before") {
			s.Before, spec.Before = []string{"b"}, []v1alpha1.Check{{Name: "b", HTTP: &v1alpha1.HTTPCheck{}}}
		}
		if rapid.Bool().Draw(t, "after") {
			s.After, spec.After = []string{"a"}, []v1alpha1.Check{{Name: "a", HTTP: &v1alpha1.HTTPCheck{}}}
		}
		j.in.stages, j.in.asks[s.Name] = append(j.in.stages, s), spec
	}
	j.git, j.seen = []map[string]string{first}, maps.Clone(j.real)
	j.commit(j.names())
	return j
}

func (j *journey) names() []string { return slices.Sorted(maps.Keys(j.real)) }

func (j *journey) wants(name string) string { return j.git[len(j.git)-1][name] }

func (j *journey) push(wants map[string]string) {
	j.revision++
	j.git = append(j.git, wants)
}

// commit has git want something new of clusters.
func (j *journey) commit(of []string) {
	wants := maps.Clone(j.git[len(j.git)-1])
	for _, name := range of {
		wants[name] = fmt.Sprintf("v%d", j.revision+1)
	}
	j.push(wants)
}

// works has a cluster do what is written for it: what git wants there when it was let
// go to that, what it had when it goes back, else nothing.
func (j *journey) works(name string) {
	i := slices.IndexFunc(j.status.Clusters, func(c v1alpha1.RolloutCluster) bool { return c.Name == name })
	if i < 0 || j.exempt[name] != "" {
		return
	}
	switch c := j.status.Clusters[i]; {
	case c.Back && c.From != "" && j.real[name].Hash != c.From:
		j.real[name] = Fact{Hash: c.From, Healthy: true}
	case !c.Back && c.Released != nil && c.Want == j.wants(name) && j.real[name].Hash != c.Want:
		j.real[name] = Fact{Hash: c.Want, Healthy: rapid.IntRange(0, 5).Draw(j.t, "works") > 0}
	}
}

func (j *journey) tells(name string) { j.told[name], j.seen[name] = j.wants(name), j.real[name] }

// happens is what the controller does not decide.
func (j *journey) happens() {
	t := j.t
	j.now = j.now.Add(time.Duration(rapid.IntRange(0, 180).Draw(t, "seconds")) * time.Second)
	name := rapid.SampledFrom(j.names()).Draw(t, "cluster")
	stage := j.in.stages[rapid.IntRange(0, len(j.in.stages)-1).Draw(t, "stage")]
	person := Command{By: "ada", Because: "so", At: j.now}
	say := func(next v1alpha1.RolloutStatus, err error) {
		if err == nil {
			j.status = next
		}
	}
	real := j.real[name]
	switch rapid.SampledFrom([]string{
		"work", "work", "work", "work", "work", "work", "work", "one", "tells", "check", "check", "well", "well", "thaw", "unpinned", "resume", "resume",
		"unwell", "fails", "pinned", "freeze", "commit", "stage", "cluster", "revert", "pause", "promote", "abort",
	}).Draw(t, "event") {
	case "work":
		for _, name := range j.names() {
			j.works(name)
			j.tells(name)
		}
	case "one":
		j.works(name)
	case "tells":
		j.tells(name)
	case "check":
		j.servers[Check{Stage: stage.Name, Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "check")}] = rapid.IntRange(0, 3).Draw(t, "yes") > 0
	case "well":
		real.Healthy, real.Failed = true, ""
		j.real[name] = real
	case "unwell":
		real.Healthy = false
		j.real[name] = real
	case "fails":
		real.Healthy, real.Failed = false, "its pods crash"
		j.real[name] = real
	case "pinned":
		j.exempt[name] = "pinned"
	case "unpinned":
		clear(j.exempt)
	case "freeze":
		j.in.frozen[name] = "double 11"
	case "thaw":
		clear(j.in.frozen)
	case "commit":
		j.commit(j.names())
	case "stage":
		j.commit(stage.Clusters)
	case "cluster":
		j.commit([]string{name})
	case "revert":
		j.push(maps.Clone(j.git[len(j.git)-min(2, len(j.git))]))
	case "pause":
		say(Pause(j.status, person))
	case "resume":
		say(Resume(j.status, person))
	case "promote":
		say(Promote(j.status, "", person))
	case "abort":
		say(Abort(j.status, person))
	}
}

// gather is what the controller knows.
func (j *journey) gather() {
	j.in.revision, j.in.clusters, j.in.checks = fmt.Sprint(j.revision), map[string]known{}, nil
	for _, name := range j.names() {
		k := known{fact: j.seen[name], has: j.seen[name].Hash, gets: j.wants(name)}
		if k.want = j.wants(name); j.told[name] != k.want {
			k.want, k.why = "", "it has not told yet"
		}
		k.fact.Exempt = j.exempt[name]
		j.in.clusters[name] = k
	}
}

// look is one look of the loop, as [Loop] takes it, whose outcome is judged. What is
// killed has not written it.
func (j *journey) look(killed bool) step {
	j.gather()
	s := advance(j.status, j.in, j.now)
	if len(s.questions) > 0 {
		j.in.checks = map[Check]answer{}
		for _, q := range s.questions {
			is := answer{yes: j.servers[Check{Stage: q.Stage, Name: q.Name}], why: "no", since: j.now}
			j.in.checks[q.Check] = is
			j.yes[q.Check] = j.yes[q.Check] || is.yes
		}
		s = advance(j.status, j.in, j.now)
	}
	j.judge(s.status)
	if !killed {
		j.status = s.status
	}
	return s
}

// stopped are the phases in which nothing is released, unless git wants something else.
var stopped = []v1alpha1.RolloutPhase{v1alpha1.RolloutPaused, v1alpha1.RolloutRollingBack, v1alpha1.RolloutRolledBack}

// judge compares what is about to be written with what was, by the rules of docs/concepts/rollouts.md.
func (j *journey) judge(next v1alpha1.RolloutStatus) {
	was := map[string]v1alpha1.RolloutCluster{}
	for _, c := range j.status.Clusters {
		was[c.Name] = c
	}
	is := map[string]v1alpha1.RolloutCluster{}
	for _, c := range next.Clusters {
		is[c.Name] = c
	}
	passed := map[string]v1alpha1.RolloutStage{}
	for _, s := range j.status.Stages {
		passed[s.Name] = s
	}
	gate := true
	for i, stage := range j.in.stages {
		if i >= len(next.Stages) {
			return // there is nothing to bring
		}
		s := next.Stages[i]
		hurried := s.Promoted != "" || next.Back
		moving, unavailable, brings, there, news := 0, 0, false, true, false
		var fresh []string
		for _, name := range stage.Clusters {
			c, k := is[name], j.in.clusters[name]
			onItsWay := c.Released != nil && c.Settled == nil && k.fact.Exempt == ""
			if onItsWay {
				moving++
			}
			if onItsWay || !k.fact.Healthy {
				unavailable++
			}
			brings = brings || c.Released != nil
			there = there && (k.fact.Exempt != "" || k.at() && k.fact.Healthy)
			if old := was[name]; c.Released != nil && (old.Released == nil || old.Want != c.Want) {
				// Who has it already, or goes back to where it came from, needs no check.
				fresh, news = append(fresh, name), news || k.fact.Hash != c.Want && old.From != c.Want
				switch {
				case k.want == "" || k.want != c.Want:
					j.t.Fatalf("%s was released to %q, and is known to want %q", name, c.Want, k.want)
				case j.in.frozen[name] != "":
					j.t.Fatalf("%s was released in a freeze", name)
				case k.fact.Healthy && k.fact.Hash != c.Want && k.fact.Hash != c.From:
					j.t.Fatalf("%s runs %s well, and would go back to %q", name, k.fact.Hash, c.From)
				}
			}
			if old := was[name]; c.Settled != nil && (old.Settled == nil || old.Want != c.Want) && (k.fact.Hash != c.Want || !k.fact.Healthy) {
				j.t.Fatalf("%s settled, and is %+v", name, k)
			}
		}
		// What is opened to bring a change back stays open for what comes on top of that.
		if hurried || len(stage.Before) == 0 || j.yes[Check{Change: s.Evidence, Stage: stage.Name, Name: "b"}] {
			j.opened[[2]string{stage.Name, s.Evidence}] = true
		}
		if len(fresh) > 0 {
			switch {
			case !gate:
				j.t.Fatalf("%v of %s released before the stages before have passed", fresh, stage.Name)
			case next.Paused != "":
				j.t.Fatalf("%v released while a person has paused it", fresh)
			case next.Change == j.status.Change && slices.Contains(stopped, j.status.Phase):
				j.t.Fatalf("%v released while it was %s", fresh, j.status.Phase)
			case news && !j.opened[[2]string{stage.Name, s.Evidence}]:
				j.t.Fatalf("%v released, and the check before %s never said yes to %s", fresh, stage.Name, s.Evidence)
			case moving > stage.MaxConcurrent:
				j.t.Fatalf("%d on their way of at most %d", moving, stage.MaxConcurrent)
			case unavailable > stage.MaxUnavailable:
				j.t.Fatalf("%d unavailable of at most %d", unavailable, stage.MaxUnavailable)
			}
		}
		key, old := [2]string{stage.Name, s.Evidence}, passed[stage.Name]
		switch {
		case s.Passed == nil:
		case old.Passed == nil || !old.Passed.Equal(s.Passed):
			if !there || brings && !hurried && len(stage.After) > 0 && !j.yes[Check{Change: s.Evidence, Stage: stage.Name, Name: "a", After: true}] {
				j.t.Fatalf("%s passed before its time: all there: %t", stage.Name, there)
			}
			j.earned[key] = true
		case old.Evidence != s.Evidence && there: // it brings nothing that they have not
			j.earned[key] = true
		}
		gate = gate && s.Passed != nil && j.earned[key]
	}
	if next.Phase == v1alpha1.RolloutComplete && j.status.Phase != v1alpha1.RolloutComplete && !gate {
		j.t.Fatal("complete, and not all stages have passed")
	}
}

// TestJourneys: whatever comes while a change is on its way, and wherever the controller
// is killed, nothing is released that may not.
func TestJourneys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		j := newJourney(t)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			j.happens()
			j.look(rapid.IntRange(0, 5).Draw(t, "killed") == 0)
		}
	})
}

// TestJourneysEnd: when all works, tells and says yes, and people let it, all clusters
// get what git wants, by the times at which it asks to look again.
func TestJourneysEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		j := newJourney(t)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			j.happens()
			j.look(false)
		}
		clear(j.in.frozen)
		clear(j.exempt)
		for _, s := range j.in.stages {
			j.servers[Check{Stage: s.Name, Name: "a"}], j.servers[Check{Stage: s.Name, Name: "b"}] = true, true
		}
		for range 400 {
			for _, name := range j.names() {
				j.works(name)
				j.real[name] = Fact{Hash: j.real[name].Hash, Healthy: true}
				j.tells(name)
			}
			if next, err := Resume(j.status, Command{By: "ada", Because: "so", At: j.now}); err == nil {
				j.status = next
			}
			s := j.look(false)
			// One that was pinned when its stage had passed gets it after the others.
			ended := j.status.Phase == v1alpha1.RolloutComplete || j.status.Change == ""
			if ended && !slices.ContainsFunc(j.names(), func(name string) bool { return j.real[name].Hash != j.wants(name) }) {
				return
			}
			switch {
			case len(s.events) > 0:
				j.now = j.now.Add(time.Second)
			case s.wake.After(j.now):
				j.now = s.wake
			default:
				j.now = j.now.Add(time.Second)
			}
		}
		t.Fatalf("it does not end: %+v", j.status)
	})
}
