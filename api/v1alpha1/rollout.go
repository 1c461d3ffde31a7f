package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rollout shows how a change of one component goes from cluster to cluster. It lives
// in the hub, is named as the component, and holds status only: what is to run, and
// in which order clusters get it, is read from git. What stands in it is what clusters
// act on, and what the next step is decided from. Deleted, it is begun anew.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ro,categories=keelson
// +kubebuilder:printcolumn:name="Pipeline",type=string,JSONPath=`.status.pipeline`
// +kubebuilder:printcolumn:name="From",type=string,JSONPath=`.status.from`
// +kubebuilder:printcolumn:name="To",type=string,JSONPath=`.status.to`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Stage",type=string,JSONPath=`.status.stage`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="Because",type=string,JSONPath=`.status.because`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.status.begun`
type Rollout struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status RolloutStatus `json:"status,omitempty"`
}

// RolloutList is a list of [Rollout].
//
// +kubebuilder:object:root=true
type RolloutList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Rollout `json:"items"`
}

// RolloutPhase is where a rollout is.
//
// +kubebuilder:validation:Enum=Progressing;Paused;RollingBack;RolledBack;Complete
type RolloutPhase string

// The values of [RolloutPhase].
const (
	RolloutProgressing RolloutPhase = "Progressing"
	RolloutPaused      RolloutPhase = "Paused"      // something failed: nothing is let go
	RolloutRollingBack RolloutPhase = "RollingBack" // clusters of the stage that failed go back
	RolloutRolledBack  RolloutPhase = "RolledBack"  // they are back, and that is its end
	RolloutComplete    RolloutPhase = "Complete"    // all clusters have the change
)

// RolloutStatus is what is remembered of a change on its way.
type RolloutStatus struct {
	Component string `json:"component,omitempty"`
	Pipeline  string `json:"pipeline,omitempty"`
	// Change is a hash of what git wants on all clusters; no two changes share it.
	Change string `json:"change,omitempty"`
	// Revision is the commit of the fleet repository at which it was begun.
	Revision string `json:"revision,omitempty"`
	// From and To are the versions that clusters come from and go to; several are
	// separated by commas.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Back says that it takes another change back, and waits for no window, silence,
	// bake or check.
	Back  bool         `json:"back,omitempty"`
	Phase RolloutPhase `json:"phase,omitempty"`
	// Because says in one sentence why it is Paused, RollingBack or RolledBack.
	Because string `json:"because,omitempty"`
	// Paused says which person paused it, and why; empty: nobody did.
	Paused string `json:"paused,omitempty"`
	// Stage is the first that has not passed.
	Stage string `json:"stage,omitempty"`
	// Progress is how many clusters have the change, of how many: 3/8.
	Progress string `json:"progress,omitempty"`
	// Begun and Ended are when the change was seen, and when nothing was left to do.
	Begun *metav1.Time `json:"begun,omitempty"`
	Ended *metav1.Time `json:"ended,omitempty"`
	// Stages in their order.
	// +listType=map
	// +listMapKey=name
	Stages []RolloutStage `json:"stages,omitempty"`
	// Clusters in the order in which they get the change.
	// +listType=map
	// +listMapKey=name
	Clusters []RolloutCluster `json:"clusters,omitempty"`
	// Timeline is what happened, the last 200 lines of it.
	// +listType=atomic
	Timeline []RolloutEvent `json:"timeline,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RolloutStage is one stage of a rollout.
type RolloutStage struct {
	Name string `json:"name"`
	// Evidence names what this stage and those before it bring. A check or a word of
	// a person is of one evidence, and opens no gate of another.
	Evidence string `json:"evidence,omitempty"`
	// Opened is when the checks before it had passed, Passed when the stage had.
	Opened *metav1.Time `json:"opened,omitempty"`
	Passed *metav1.Time `json:"passed,omitempty"`
	// Promoted says who lets it go without waiting, and why.
	Promoted string `json:"promoted,omitempty"`
	// Checks of Evidence that were asked.
	// +listType=atomic
	Checks []RolloutCheck `json:"checks,omitempty"`
}

// RolloutCheck is how far a check of a stage is.
type RolloutCheck struct {
	Name string `json:"name"`
	// After the stage, or before it.
	After bool `json:"after,omitempty"`
	// Asked is when it was asked first.
	Asked metav1.Time `json:"asked"`
	// Since is from when on the answer was yes without a break.
	Since *metav1.Time `json:"since,omitempty"`
	// Passed or Failed is when that was decided.
	Passed *metav1.Time `json:"passed,omitempty"`
	Failed *metav1.Time `json:"failed,omitempty"`
	// Message says why it has not passed.
	Message string `json:"message,omitempty"`
	// Job is what a check has clusters run.
	Job *RolloutJob `json:"job,omitempty"`
}

// RolloutJob is the Job that a check has the clusters of its stage run.
type RolloutJob struct {
	// Template is the path of its file in the fleet repository, Hash that of what stands
	// there, and Revision the commit at which it was asked for.
	Template string `json:"template"`
	Hash     string `json:"hash"`
	Revision string `json:"revision"`
	// Run names the question: an answer to another one is none. It is a hash of the
	// evidence, the check, the template and when it was asked.
	Run string `json:"run"`
}

// RolloutCluster is one cluster of a rollout.
type RolloutCluster struct {
	Name  string `json:"name"`
	Stage string `json:"stage"`
	// Want is the hash of the target that git wants here; empty while it is not known.
	Want string `json:"want,omitempty"`
	// From is the hash of the target that it goes back to; empty: it had none.
	From string `json:"from,omitempty"`
	// Released is when it was let go to Want; absent: it keeps what it has.
	Released *metav1.MicroTime `json:"released,omitempty"`
	// Settled is when it was seen to be healthy there.
	Settled *metav1.MicroTime `json:"settled,omitempty"`
	// Back says that it goes back to From.
	Back bool `json:"back,omitempty"`
	// Because says in one sentence why it has not got the change.
	Because string `json:"because,omitempty"`
}

// RolloutEvent is one line of a timeline.
type RolloutEvent struct {
	Time    metav1.Time `json:"time"`
	Stage   string      `json:"stage,omitempty"`
	Cluster string      `json:"cluster,omitempty"`
	Message string      `json:"message"`
}
