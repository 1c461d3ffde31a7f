package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rollout shows how a change of one component goes from cluster to cluster. It is stored in the
// hub, is named as the component, and holds status only. Git determines what should run, and in
// which order clusters get it. Clusters act on this status, and the next step is decided from it.
// If it is deleted, the rollout starts again.
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

	// Status is the state of the rollout.
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

// RolloutPhase is the phase of a rollout.
//
// +kubebuilder:validation:Enum=Progressing;Paused;RollingBack;RolledBack;Complete
type RolloutPhase string

// The values of [RolloutPhase].
const (
	RolloutProgressing RolloutPhase = "Progressing" // clusters get the change, stage by stage
	RolloutPaused      RolloutPhase = "Paused"      // something failed, or a person paused it: no cluster is released
	RolloutRollingBack RolloutPhase = "RollingBack" // clusters of the failed stage go back
	RolloutRolledBack  RolloutPhase = "RolledBack"  // the clusters are back; the rollout has ended
	RolloutComplete    RolloutPhase = "Complete"    // all clusters have the change
)

// RolloutStatus is the state of a rollout.
type RolloutStatus struct {
	// Component and Pipeline are names in the fleet repository.
	Component string `json:"component,omitempty"`
	Pipeline  string `json:"pipeline,omitempty"`
	// Change is a hash of what git wants on all clusters; no two changes share it.
	Change string `json:"change,omitempty"`
	// Revision is the commit of the fleet repository at which the rollout began.
	Revision string `json:"revision,omitempty"`
	// From and To are the versions that clusters come from and go to; several are
	// separated by commas.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Back says that the change reverts another change. It waits for no window, silence, bake or
	// check.
	Back bool `json:"back,omitempty"`
	// Phase of the rollout.
	Phase RolloutPhase `json:"phase,omitempty"`
	// Because says in one sentence why the rollout has stopped, or goes back.
	Because string `json:"because,omitempty"`
	// Paused says which person paused it, and why; empty if no person did.
	Paused string `json:"paused,omitempty"`
	// Stage is the first stage that has not passed.
	Stage string `json:"stage,omitempty"`
	// Progress is the number of clusters that have the change, and of all clusters: 3/8.
	Progress string `json:"progress,omitempty"`
	// Begun is when the change was first seen, and Ended when nothing was left to do.
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
	// Conditions are Ready, and Reconciling or Stalled while they are True.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RolloutStage is one stage of a rollout.
type RolloutStage struct {
	// Name of the stage in the pipeline.
	Name string `json:"name"`
	// Evidence is a hash of the targets in this stage and in all stages before it. A check or a
	// person's decision counts only for the Evidence for which it was made.
	Evidence string `json:"evidence,omitempty"`
	// Opened is when the checks before the stage had passed, Passed when the stage had.
	Opened *metav1.Time `json:"opened,omitempty"`
	Passed *metav1.Time `json:"passed,omitempty"`
	// Promoted says who released the stage without waiting, and why.
	Promoted string `json:"promoted,omitempty"`
	// Checks that were asked for this Evidence.
	// +listType=atomic
	Checks []RolloutCheck `json:"checks,omitempty"`
}

// RolloutCheck is the state of one check of a stage.
type RolloutCheck struct {
	// Name of the check in the pipeline.
	Name string `json:"name"`
	// After says that the check comes after the stage, not before it.
	After bool `json:"after,omitempty"`
	// Asked is when the check was first asked.
	Asked metav1.Time `json:"asked"`
	// Since is the time since which the answer has been yes without a break.
	Since *metav1.Time `json:"since,omitempty"`
	// Passed or Failed is when the check was decided.
	Passed *metav1.Time `json:"passed,omitempty"`
	Failed *metav1.Time `json:"failed,omitempty"`
	// Message says why the check has not passed.
	Message string `json:"message,omitempty"`
	// Job is the Job that the check runs on clusters.
	Job *RolloutJob `json:"job,omitempty"`
}

// RolloutJob is the Job that a check runs on the clusters of its stage.
type RolloutJob struct {
	// Template is the path of the Job's file in the fleet repository, Hash the hash of its content,
	// and Revision the commit at which the check was asked.
	Template string `json:"template"`
	Hash     string `json:"hash"`
	Revision string `json:"revision"`
	// Run identifies the request. Results of other runs do not count. It is a hash of the evidence,
	// the check, the template and the time of the request.
	Run string `json:"run"`
}

// RolloutCluster is one cluster of a rollout.
type RolloutCluster struct {
	// Name of the cluster, and of its Stage.
	Name  string `json:"name"`
	Stage string `json:"stage"`
	// Want is the hash of the target that git wants here; empty while unknown.
	Want string `json:"want,omitempty"`
	// From is the hash of the target that the cluster goes back to; empty if there is none.
	From string `json:"from,omitempty"`
	// Released is when the cluster was released to Want; absent: it keeps what it has.
	Released *metav1.MicroTime `json:"released,omitempty"`
	// Settled is when the cluster was seen to be healthy with Want.
	Settled *metav1.MicroTime `json:"settled,omitempty"`
	// Back says that the cluster goes back to From.
	Back bool `json:"back,omitempty"`
	// Because says in one sentence why the cluster does not have the change.
	Because string `json:"because,omitempty"`
}

// RolloutEvent is one line of a timeline.
type RolloutEvent struct {
	// Time of the event.
	Time metav1.Time `json:"time"`
	// Stage and Cluster that the event is about; empty for the whole rollout.
	Stage   string `json:"stage,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	// Message says what happened.
	Message string `json:"message"`
}
