package oracle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/cluster"
)

// Course holds the rules for the changes of one component from cluster to cluster, as the
// pipeline's author wrote them. It also holds the inputs from outside Keelson: the answers
// of checks and the approvals, with their times.
type Course struct {
	// Component is the name of the component and of its namespace.
	Component string        `json:"component"`
	Stages    []CourseStage `json:"stages"`
	// Answers are the answers of the server that serves the checks.
	Answers []Answer `json:"answers,omitempty"`
	// Approvals are the approvals in git, with the times of their commits.
	Approvals []Approval `json:"approvals,omitempty"`
}

// CourseStage is one stage, with its clusters in release order.
type CourseStage struct {
	Name          string        `json:"name"`
	Clusters      []string      `json:"clusters"`
	MaxConcurrent int           `json:"maxConcurrent"`
	Silence       time.Duration `json:"silence,omitempty"` // nanoseconds
	Bake          time.Duration `json:"bake,omitempty"`    // nanoseconds
	// Before and After are the names of the HTTP checks before and after the stage.
	Before []string `json:"before,omitempty"`
	After  []string `json:"after,omitempty"`
	// Approved, unless empty, is the name of the approval that the stage needs before
	// the release of its clusters.
	Approved string `json:"approved,omitempty"`
}

// Answer is the answer of a server to a check.
type Answer struct {
	Time  time.Time `json:"time"`
	Stage string    `json:"stage"`
	Check string    `json:"check"`
	Yes   bool      `json:"yes"`
}

// Approval is an approval in git.
type Approval struct {
	Time  time.Time `json:"time"`
	Stage string    `json:"stage"`
	Hash  string    `json:"hash"`
}

// VersionNote is the annotation with the version of a component's object. The component's
// chart sets it.
const VersionNote = "example.com/version"

// inFlight is how long after the end of a permit a write is still accepted, because it may
// have been in flight.
const inFlight = 5 * time.Second

// CourseVerdict is the result of [JudgeCourse].
type CourseVerdict struct {
	// Statuses is the number of judged statuses of the Rollout. Releases and Passes are
	// the numbers of cluster releases and of passed stages in the statuses.
	Statuses, Releases, Passes int
	// Arrivals is the number of writes that brought a new version to a cluster.
	Arrivals   int
	Violations []string
}

func (v CourseVerdict) String() string {
	return fmt.Sprintf("%d statuses: %d clusters released, %d stages passed; %d arrivals of a version on a cluster; %d violations",
		v.Statuses, v.Releases, v.Passes, v.Arrivals, len(v.Violations))
}

// Empty reports whether there was too little to judge.
func (v CourseVerdict) Empty() bool {
	return v.Statuses == 0 || v.Releases == 0 || v.Passes == 0 || v.Arrivals == 0
}

// JudgeCourse checks the audit logs of the hub and of the clusters, by name, against a course.
//
// For each status that the hub accepted, JudgeCourse checks:
//   - A cluster is released after all earlier stages have passed. The checks before its
//     stage were answered with yes since the stage got its current evidence.
//   - No more clusters are in progress than MaxConcurrent allows.
//   - A stage passes after its clusters have settled and baked, and after the checks after
//     the stage were answered with yes since then.
//
// Before a write brings another version to a cluster, the hub must have released the
// cluster to that version, and earlier clusters must have the version. If a stage fails,
// its clusters may return to their previous version.
func JudgeCourse(w Course, hub []audit.Event, clusters map[string][]audit.Event) CourseVerdict {
	j := &courseJudge{course: w, stage: map[string]int{}, versions: versionsIn(hub, w.Component), evidence: map[string]evidence{}, permits: map[string][]permit{}}
	for i, s := range w.Stages {
		for _, c := range s.Clusters {
			j.stage[c] = i
		}
	}
	j.statuses(hub)
	j.writes(clusters)
	return j.CourseVerdict
}

type courseJudge struct {
	CourseVerdict
	course   Course
	stage    map[string]int // index of the stage, by cluster
	versions map[string]string
	evidence map[string]evidence // by stage
	permits  map[string][]permit // by cluster, in order of time
	last     time.Time           // when the previous status was received
}

// evidence is the evidence of a stage, and the time of the last status with other evidence.
type evidence struct {
	hash  string
	since time.Time
}

// permit permits a version on a cluster between two times.
type permit struct {
	version     string
	back        bool // the previous version, after the failure of the stage
	from, until time.Time
}

func (j *courseJudge) violate(format string, args ...any) {
	j.Violations = append(j.Violations, j.course.Component+": "+fmt.Sprintf(format, args...))
}

// Rollout holds the fields of a Rollout's status that the oracle reads.
type Rollout struct {
	Change, Revision, To, Phase, Because, Stage string

	Back     bool
	Stages   []RolloutStage
	Clusters []RolloutCluster
}

// RolloutStage is one stage in the status of a Rollout.
type RolloutStage struct {
	Name, Evidence, Promoted string
	Opened, Passed           *time.Time

	Checks []RolloutCheck
}

// RolloutCheck is one check in the status of a Rollout.
type RolloutCheck struct {
	Name   string
	After  bool
	Passed *time.Time
}

// RolloutCluster is one cluster in the status of a Rollout.
type RolloutCluster struct {
	Name, Stage, Want, From string
	Released, Settled       *time.Time
	Back                    bool
}

// StageNamed returns the stage with a name, or the zero value if there is none.
func (r Rollout) StageNamed(name string) RolloutStage {
	for _, s := range r.Stages {
		if s.Name == name {
			return s
		}
	}
	return RolloutStage{}
}

// ClusterNamed returns the cluster with a name, or the zero value if there is none.
func (r Rollout) ClusterNamed(name string) RolloutCluster {
	for _, c := range r.Clusters {
		if c.Name == name {
			return c
		}
	}
	return RolloutCluster{}
}

// passed reports whether a check has passed.
func (s RolloutStage) passed(name string, after bool) bool {
	for _, c := range s.Checks {
		if c.Name == name && c.After == after {
			return c.Passed != nil
		}
	}
	return false
}

// ReadRollout returns the status in the JSON of a Rollout.
func ReadRollout(data []byte) (Rollout, error) {
	var body struct{ Status Rollout }
	if err := json.Unmarshal(data, &body); err != nil {
		return Rollout{}, fmt.Errorf("read a Rollout: %w", err)
	}
	return body.Status, nil
}

// accepted reports whether an event is a write of Keelson that the API server carried out.
func accepted(e audit.Event) bool {
	return e.User == cluster.Keelson && e.Accepted() && e.Stage == audit.ResponseComplete
}

// versionsIn returns the versions by target hash, from the desired state in a component's
// Deliveries.
func versionsIn(hub []audit.Event, component string) map[string]string {
	out := map[string]string{}
	for _, e := range hub {
		if !accepted(e) || e.Resource.Resource != "deliveries" || !strings.HasSuffix(e.Resource.Name, "."+component) {
			continue
		}
		var body struct {
			Status struct {
				Version string
				Wanted  struct{ TargetHash string }
			}
		}
		if json.Unmarshal(e.Response, &body) == nil && body.Status.Wanted.TargetHash != "" {
			out[body.Status.Wanted.TargetHash] = body.Status.Version
		}
	}
	return out
}

// statuses judges each status that the hub accepted, compared with the previous status.
func (j *courseJudge) statuses(hub []audit.Event) {
	type written struct {
		audit.Event
		Rollout
		version uint64
	}
	var all []written
	for _, e := range hub {
		if !accepted(e) || e.Verb != "update" || e.Resource.Resource != "rollouts" || e.Resource.Subresource != "status" || e.Resource.Name != j.course.Component {
			continue
		}
		r, err := ReadRollout(e.Request)
		version := e.ResourceVersion()
		if err != nil || version == 0 {
			j.violate("a status that can't be read: %s, audit %s", e, e.ID)
			continue
		}
		all = append(all, written{e, r, version})
	}
	// The order in which etcd stored the statuses.
	slices.SortFunc(all, func(x, y written) int { return cmp.Compare(x.version, y.version) })
	var was Rollout
	for _, now := range all {
		j.Statuses++
		j.status(was, now.Rollout, now.Event)
		was = now.Rollout
	}
}

func (j *courseJudge) status(was, now Rollout, e audit.Event) {
	violate := func(format string, args ...any) {
		j.violate("%s: %s, audit %s", fmt.Sprintf(format, args...), e, e.ID)
	}
	for i, stage := range j.course.Stages {
		is, before := now.StageNamed(stage.Name), was.StageNamed(stage.Name)
		if j.evidence[stage.Name].hash != is.Evidence {
			j.evidence[stage.Name] = evidence{is.Evidence, j.last}
		}
		for _, name := range stage.Clusters {
			c := now.ClusterNamed(name)
			for _, why := range j.released(was, now, i, c) {
				violate("%s released to %s, and %s", name, j.named(c.Want), why)
			}
			j.permit(c, e)
		}
		if moving := onTheirWay(now, stage); len(moving) > stage.MaxConcurrent {
			violate("%v on their way in stage %s, of at most %d", moving, stage.Name, stage.MaxConcurrent)
		}
		if is.Passed != nil && (before.Passed == nil || before.Evidence != is.Evidence) {
			j.Passes++
			for _, why := range j.pass(now, i) {
				violate("stage %s passed, and %s", stage.Name, why)
			}
		}
	}
	j.last = e.Received
}

// released returns the reasons why the release of a cluster in a status was wrong. It
// returns nil if the status doesn't release the cluster.
func (j *courseJudge) released(was, now Rollout, stage int, c RolloutCluster) []string {
	had := was.ClusterNamed(c.Name)
	if c.Released == nil || had.Released != nil && had.Want == c.Want && had.Released.Equal(*c.Released) {
		return nil
	}
	j.Releases++
	return j.release(was, now, stage, c)
}

// release returns the reasons why a cluster of a stage may not be released yet.
func (j *courseJudge) release(was, now Rollout, stage int, c RolloutCluster) (why []string) {
	for _, before := range j.course.Stages[:stage] {
		if now.StageNamed(before.Name).Passed == nil {
			why = append(why, fmt.Sprintf("stage %s before it has not passed", before.Name))
		}
	}
	if was.Phase != "" && was.Phase == now.Phase && now.Phase != "Progressing" {
		why = append(why, "the rollout is "+now.Phase)
	}
	s := j.course.Stages[stage]
	is := now.StageNamed(s.Name)
	if now.Back || is.Promoted != "" {
		return why // a rollback or a promoted stage waits for nothing else
	}
	why = append(why, j.unasked(is, s.Before, false, j.evidence[s.Name].since)...)
	if s.Approved != "" && !j.approved(is, *c.Released) {
		why = append(why, fmt.Sprintf("git does not approve %s of stage %s", is.Evidence, s.Name))
	}
	for _, name := range s.Clusters {
		other := now.ClusterNamed(name)
		for _, t := range []*time.Time{other.Released, other.Settled} {
			if name != c.Name && t != nil && !t.After(*c.Released) && c.Released.Sub(*t) < s.Silence {
				why = append(why, fmt.Sprintf("%s was released, or settled, %s before, in a silence of %s", name, c.Released.Sub(*t), s.Silence))
			}
		}
	}
	return why
}

// pass returns the reasons why a stage may not have passed yet.
func (j *courseJudge) pass(now Rollout, stage int) (why []string) {
	s := j.course.Stages[stage]
	is := now.StageNamed(s.Name)
	var last time.Time
	moved := false
	for _, name := range s.Clusters {
		c := now.ClusterNamed(name)
		switch {
		case c.Released == nil || c.Back:
		case c.Settled == nil:
			why = append(why, name+" has not settled")
		default:
			moved = true
			if c.Settled.After(last) {
				last = *c.Settled
			}
		}
	}
	if now.Back || is.Promoted != "" || !moved {
		return why
	}
	// Passed has whole seconds, rounded down.
	if baked := is.Passed.Add(time.Second).Sub(last); baked < s.Bake {
		why = append(why, fmt.Sprintf("its last cluster settled %s before, and it bakes for %s", baked, s.Bake))
	}
	since := j.evidence[s.Name].since
	if last.After(since) {
		since = last
	}
	return append(why, j.unasked(is, s.After, true, since)...)
}

// unasked returns a reason for each check that has not passed, or that the server has not
// answered with yes since a time.
func (j *courseJudge) unasked(is RolloutStage, checks []string, after bool, since time.Time) (why []string) {
	for _, name := range checks {
		yes := slices.ContainsFunc(j.course.Answers, func(a Answer) bool {
			return a.Yes && a.Stage == is.Name && a.Check == name && a.Time.After(since)
		})
		switch {
		case !is.passed(name, after):
			why = append(why, fmt.Sprintf("check %s has not passed", name))
		case !yes:
			why = append(why, fmt.Sprintf("check %s was last answered with yes before %s, when it was about something else", name, since.Format(time.RFC3339Nano)))
		}
	}
	return why
}

func (j *courseJudge) approved(is RolloutStage, at time.Time) bool {
	return slices.ContainsFunc(j.course.Approvals, func(a Approval) bool {
		return a.Stage == is.Name && a.Hash == is.Evidence && !a.Time.After(at)
	})
}

// onTheirWay returns the clusters of a stage that were released and have not settled.
func onTheirWay(r Rollout, stage CourseStage) (out []string) {
	for _, name := range stage.Clusters {
		if c := r.ClusterNamed(name); c.Released != nil && c.Settled == nil && !c.Back {
			out = append(out, name)
		}
	}
	return out
}

// permit records the version that a cluster may have from a status on.
func (j *courseJudge) permit(c RolloutCluster, e audit.Event) {
	next := permit{from: e.Received}
	switch {
	case c.Back:
		next.version, next.back = j.named(c.From), true
	case c.Released != nil:
		next.version = j.named(c.Want)
	}
	all := j.permits[c.Name]
	if n := len(all); n > 0 {
		if last := &all[n-1]; last.version == next.version && last.back == next.back {
			return
		}
		all[n-1].until = e.Time
	}
	j.permits[c.Name] = append(all, next)
}

// named returns the version of a target hash.
func (j *courseJudge) named(hash string) string {
	if v := j.versions[hash]; v != "" {
		return v
	}
	return "the unknown " + hash
}

// arrival is a write of a version to a cluster.
type arrival struct {
	audit.Event
	on, version string
}

// writes judges the writes to the clusters.
func (j *courseJudge) writes(clusters map[string][]audit.Event) {
	var all []arrival
	for name, events := range clusters {
		for _, e := range events {
			if v := versionOf(e); accepted(e) && e.Resource.Namespace == j.course.Component && v != "" {
				all = append(all, arrival{e, name, v})
			}
		}
	}
	slices.SortFunc(all, func(x, y arrival) int { return x.Time.Compare(y.Time) })
	has := map[string]string{}
	for _, a := range all {
		if has[a.on] == a.version {
			continue
		}
		j.Arrivals++
		for _, why := range j.arrive(a, has) {
			j.violate("%s got %s, and %s: %s, audit %s", a.on, a.version, why, a.Event, a.ID)
		}
		has[a.on] = a.version
	}
}

// versionOf returns the version in the annotation of a written object, or "" without the
// annotation.
func versionOf(e audit.Event) string {
	var body struct {
		Metadata struct{ Annotations map[string]string }
	}
	if json.Unmarshal(e.Request, &body) != nil { // a patch without the form of an object
		return ""
	}
	return body.Metadata.Annotations[VersionNote]
}

// arrive returns the reasons why a version may not be on a cluster yet; has are the
// versions on the clusters.
func (j *courseJudge) arrive(a arrival, has map[string]string) (why []string) {
	var by *permit
	for i, p := range j.permits[a.on] {
		if p.version == a.version && !a.Received.Before(p.from) && (p.until.IsZero() || a.Received.Before(p.until.Add(inFlight))) {
			by = &j.permits[a.on][i]
		}
	}
	if by == nil {
		return []string{"no status in the hub let it go to that"}
	}
	if by.back {
		return nil
	}
	at := j.stage[a.on]
	for i, stage := range j.course.Stages[:at+1] {
		for _, name := range stage.Clusters {
			if i == at && (stage.MaxConcurrent > 1 || name == a.on) {
				break
			}
			if has[name] != a.version {
				why = append(why, fmt.Sprintf("%s before it has %q", name, has[name]))
			}
		}
	}
	return why
}
