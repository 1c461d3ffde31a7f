// Package rollout carries a change from cluster to cluster, stage by stage.
//
// [Decide] chooses the next step. It is a function of values: the course, the stored state, the
// facts and the time. It has no client and no clock. A controller that is killed anywhere and
// restarted makes the same decision.
//
// A [Loop] collects the facts from git and from the Deliveries of the hub. It writes its decisions
// into one Rollout for each component. One process of a fleet runs it. The controllers that work on
// clusters read the stored Rollouts from a [Cache]. They apply a change only to clusters that the
// stored Rollout releases.
package rollout

import (
	"time"

	"github.com/keelson-io/keelson/registry/window"
)

// Course is the path of one change of one component through its pipeline.
type Course struct {
	// Change identifies the change; no two changes share it. Results for another change open no
	// gate of this change.
	Change string
	// Stages in their order. A cluster is in exactly one stage.
	Stages []Stage
	// Want is the hash of the target on each cluster. From is the hash of the previous target; it
	// is missing if there is no target to go back to.
	Want, From map[string]string
	// Back means that the change takes another change back: Want ran there before. It waits for no
	// window, silence, bake or check.
	Back bool
}

// Stage is one step of a course.
type Stage struct {
	Name string
	// Clusters in the order in which they get the change.
	Clusters []string
	// At most MaxConcurrent clusters are released and not settled. At most MaxUnavailable clusters
	// of the stage are unhealthy or not settled. Both are at least 1.
	MaxConcurrent, MaxUnavailable int
	// Silence is the shortest time between two clusters: from the last release or settling in the
	// stage to the next release.
	Silence time.Duration
	// Bake is the time from the last release or settling in the stage until the stage passes.
	Bake time.Duration
	// Timeout is how long one cluster may take from its release; 0: no limit.
	Timeout time.Duration
	// Windows in which clusters are released; none: always.
	Windows window.Windows
	// Before and After name the checks that open the stage, and the checks that end it.
	Before, After []string
	// Rollback takes the stage's clusters back when the stage fails. Otherwise the rollout pauses.
	Rollback bool
}

// Phase is the state of a rollout as a whole.
type Phase string

// The values of [Phase].
const (
	PhaseProgressing Phase = "Progressing"
	PhasePaused      Phase = "Paused"      // after a failure, or by a person: no cluster is released
	PhaseRollingBack Phase = "RollingBack" // clusters of the failed stage go back
	PhaseRolledBack  Phase = "RolledBack"  // they are back; the rollout has ended
	PhaseComplete    Phase = "Complete"
)

// State is the stored part of a rollout. Its zero value is a rollout that begins. Clusters act only
// on the stored State, so a decision that was not stored has no effect.
type State struct {
	Phase   Phase  `json:"phase,omitempty"`
	Because string `json:"because,omitempty"` // of Paused, RollingBack and RolledBack
	// Clusters that were released, by name.
	Clusters map[string]Cluster `json:"clusters,omitempty"`
	// Passed is when each stage passed, by name.
	Passed map[string]time.Time `json:"passed,omitempty"`
	// Opened is when the checks before each stage passed, by name.
	Opened map[string]time.Time `json:"opened,omitempty"`
	// Promoted are stages that a person releases from waiting: the person, and the reason.
	Promoted map[string]string `json:"promoted,omitempty"`
}

// Cluster is a cluster that was released.
type Cluster struct {
	Released time.Time `json:"released"`
	// Settled is when the cluster was seen healthy at its target; zero: not yet.
	Settled time.Time `json:"settled,omitzero"`
	// Back means that the cluster goes back to its previous target.
	Back bool `json:"back,omitempty"`
}

// Facts are the observations on which a decision depends.
type Facts struct {
	Now time.Time
	// Clusters by name. Nothing is known of a cluster that is missing here; Unknown may say why.
	Clusters map[string]Fact
	Unknown  map[string]string
	// Frozen clusters, with the reason.
	Frozen map[string]string
	// Checks that have a result. The decision waits for a check without one.
	Checks map[Check]Result
	// Pending says why a check has no result yet.
	Pending map[Check]string
}

// Fact is what is known of the component on one cluster.
type Fact struct {
	// Hash of the last applied target, and when it was seen.
	Hash string
	Seen time.Time
	// Healthy means in sync with that target, with working objects.
	Healthy bool
	// Failed is why the cluster can't reach the target without help; empty: it can.
	Failed string
	// Exempt is why the cluster takes no part: pinned or paused. Empty: it takes part.
	Exempt string
}

// Check names one check of one change.
type Check struct {
	Change, Stage, Name string
	After               bool
}

// Result is the outcome of a check.
type Result struct {
	Passed  bool
	Message string
}

// Decision is the result of [Decide].
type Decision struct {
	State State
	// Events are the changes, in order, for the timeline.
	Events []Event
	// Waiting explains in one sentence the position of each cluster that has not got the change.
	Waiting map[string]string
	// Wake is when time alone changes the decision; zero: never.
	Wake time.Time
}

// Event is one line of the timeline.
type Event struct {
	Time    time.Time `json:"time"`
	Stage   string    `json:"stage,omitempty"`
	Cluster string    `json:"cluster,omitempty"`
	Message string    `json:"message"`
}
