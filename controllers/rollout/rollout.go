// Package rollout carries a change from cluster to cluster, stage by stage.
//
// What happens next is decided by a function of values ([Decide]): the course, what
// is remembered, what is known, and the time. It has no client and no clock, so that
// a controller that is killed anywhere, and starts again, decides as the one before.
//
// A [Loop] gathers what is known from git and from the Deliveries of the hub, and writes
// what was decided into a Rollout for each component: one process of a fleet runs it.
// Those that work on clusters look at a [Board] of what is written, and let none of them
// have what stands there for nobody.
package rollout

import (
	"time"

	"github.com/keelson-io/keelson/registry/window"
)

// Course is the way of one change of one component through its pipeline.
type Course struct {
	// Change names what is brought: no two changes share it. Whatever was found out
	// about another one opens no gate of this.
	Change string
	// Stages in their order. A cluster is in one of them.
	Stages []Stage
	// Want is the hash of the target on each cluster; From the one before, where
	// there is one to go back to.
	Want, From map[string]string
	// Back says that the change takes back another one: Want ran there before. It
	// waits for no window, silence, bake or check.
	Back bool
}

// Stage is one step of the way.
type Stage struct {
	Name string
	// Clusters in the order in which they get the change.
	Clusters []string
	// MaxConcurrent clusters are on their way at once, and MaxUnavailable of the stage
	// are unhealthy or on their way. Both at least 1.
	MaxConcurrent, MaxUnavailable int
	// Silence is the least time between two clusters: from when one got there, or was
	// let go, to when the next one is.
	Silence time.Duration
	// Bake is how long all clusters of the stage are healthy before it has passed.
	Bake time.Duration
	// Timeout is how long one cluster may take.
	Timeout time.Duration
	// Windows in which clusters are let go; none: always.
	Windows window.Windows
	// Before and After name the checks that open the stage, and the way out of it.
	Before, After []string
	// Rollback takes the stage's clusters back when one of them fails. Else the rollout
	// pauses.
	Rollback bool
}

// Phase is where a rollout is.
type Phase string

// The values of [Phase].
const (
	PhaseProgressing Phase = "Progressing"
	PhasePaused      Phase = "Paused"      // a failure, or a person: nothing is let go
	PhaseRollingBack Phase = "RollingBack" // clusters of the failed stage go back
	PhaseRolledBack  Phase = "RolledBack"  // they are back, and that is its end
	PhaseComplete    Phase = "Complete"
)

// State is what is remembered of a rollout. Its zero value is that of one which
// begins. A cluster acts on what is remembered, and on nothing else: so what was
// decided and not written down has not happened.
type State struct {
	Phase   Phase  `json:"phase,omitempty"`
	Because string `json:"because,omitempty"` // of Paused, RollingBack and RolledBack
	// Clusters that were let go, by name.
	Clusters map[string]Cluster `json:"clusters,omitempty"`
	// Passed is when each stage had passed, by name.
	Passed map[string]time.Time `json:"passed,omitempty"`
	// Opened is when the checks before each stage had passed.
	Opened map[string]time.Time `json:"opened,omitempty"`
	// Promoted are stages that a person lets go without waiting: by whom, and why.
	Promoted map[string]string `json:"promoted,omitempty"`
}

// Cluster is a cluster that was let go.
type Cluster struct {
	Released time.Time `json:"released"`
	// Settled is when it was seen to have got there; zero: not yet.
	Settled time.Time `json:"settled,omitzero"`
	// Back: it goes back to what it had.
	Back bool `json:"back,omitempty"`
}

// Facts are what is known when it is decided.
type Facts struct {
	Now time.Time
	// Clusters by name; of one that is not in it nothing is known, and Unknown may say
	// why.
	Clusters map[string]Fact
	Unknown  map[string]string
	// Frozen clusters, with the reason.
	Frozen map[string]string
	// Checks that have an answer. One that has none is waited for.
	Checks map[Check]Result
	// Pending says why a check has no answer yet.
	Pending map[Check]string
}

// Fact is what is known of the component on one cluster.
type Fact struct {
	// Hash of the target that it was last brought to, and when that was seen.
	Hash string
	Seen time.Time
	// Healthy: in sync with that target, and its objects work.
	Healthy bool
	// Failed is why it can't get there without help; empty: it can.
	Failed string
	// Exempt is why it takes no part: pinned, paused. Empty: it does.
	Exempt string
}

// Check names one check of one change.
type Check struct {
	Change, Stage, Name string
	After               bool
}

// Result of a check.
type Result struct {
	Passed  bool
	Message string
}

// Decision is what follows from the facts.
type Decision struct {
	State State
	// Events are what changed, in order, for the timeline.
	Events []Event
	// Waiting says in one sentence why each cluster that has not got the change is
	// where it is.
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
