package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Delivery shows one component on one cluster. It lives in the hub, is named
// CLUSTER.COMPONENT, and holds status only: editing it changes nothing.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=dlv,categories=keelson
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.status.cluster`
// +kubebuilder:printcolumn:name="Component",type=string,JSONPath=`.status.component`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Pinned",type=string,JSONPath=`.status.pinned.version`,priority=1
// +kubebuilder:printcolumn:name="Sync",type=string,JSONPath=`.status.sync`
// +kubebuilder:printcolumn:name="Health",type=string,JSONPath=`.status.health`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Delivery struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Status is what Keelson last found and did.
	Status DeliveryStatus `json:"status,omitempty"`
}

// DeliveryList is a list of [Delivery].
//
// +kubebuilder:object:root=true
type DeliveryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Delivery `json:"items"`
}

// Sync says how a cluster's objects compare with what git wants.
//
// +kubebuilder:validation:Enum=Synced;Progressing;Held;Denied;Failed;Blocked;Waiting;Paused;Unreachable;Orphaned;Absent
type Sync string

// The values of [Sync].
const (
	SyncSynced      Sync = "Synced"      // every object matches git
	SyncProgressing Sync = "Progressing" // being applied
	SyncHeld        Sync = "Held"        // a dangerous change waits for approval
	SyncDenied      Sync = "Denied"      // a danger rule forbids the change
	SyncFailed      Sync = "Failed"      // the API server rejected a write, or the apply was interrupted
	SyncBlocked     Sync = "Blocked"     // git or the chart is broken: the cluster stays as it is
	SyncWaiting     Sync = "Waiting"     // waits for a dependency, or for its release in a rollout
	SyncPaused      Sync = "Paused"      // paused in git: nothing is changed
	SyncUnreachable Sync = "Unreachable" // the cluster's API server does not answer
	SyncOrphaned    Sync = "Orphaned"    // no longer in git; its objects were left in place
	SyncAbsent      Sync = "Absent"      // git wants it absent, and no object is left
)

// Health says whether the component's objects work.
//
// +kubebuilder:validation:Enum=Healthy;Progressing;Degraded;Unknown
type Health string

// The values of [Health].
const (
	HealthHealthy     Health = "Healthy"     // every object works
	HealthProgressing Health = "Progressing" // an object is not ready yet
	HealthDegraded    Health = "Degraded"    // an object reports a failure, or was not ready in time
	HealthUnknown     Health = "Unknown"     // health can't be evaluated
)

// The types of [DeliveryStatus.Conditions], as kstatus reads them.
const (
	ConditionReady       = "Ready"       // synced and healthy
	ConditionReconciling = "Reconciling" // present while True
	ConditionStalled     = "Stalled"     // present while True: needs a person
)

// ReasonBatchWaits is the reason of the conditions while a synced component is not healthy because an
// update in batches waits for a release or an interval. Otherwise the reason is the value of Sync.
const ReasonBatchWaits = "BatchWaits"

// DeliveryStatus is the status of one component on one cluster.
type DeliveryStatus struct {
	// Cluster and Component are names in the fleet repository.
	Cluster   string `json:"cluster,omitempty"`
	Component string `json:"component,omitempty"`
	// Version that git wants.
	Version string `json:"version,omitempty"`
	// AppliedVersion is the version that was last applied completely, by the record in the cluster.
	AppliedVersion string `json:"appliedVersion,omitempty"`
	// Revision is the commit of the fleet repository that was last acted on.
	Revision string `json:"revision,omitempty"`
	// TargetHash is the hash of the rendered objects.
	TargetHash string `json:"targetHash,omitempty"`
	// Sync says how the objects in the cluster compare with git.
	Sync Sync `json:"sync,omitempty"`
	// Health says whether the objects work.
	Health Health `json:"health,omitempty"`
	// Wanted is what git wants of a component with a pipeline. The cluster has it when TargetHash
	// is equal. Until the change is released, the cluster keeps what it has.
	Wanted *WantedDelivery `json:"wanted,omitempty"`
	// Objects that the component has in the cluster.
	Objects int32 `json:"objects,omitempty"`
	// Pinned is the earlier delivery that a rollback keeps here until git moves on.
	Pinned *PinnedDelivery `json:"pinned,omitempty"`
	// Message says in one sentence why Sync or Health is not as wished.
	Message string `json:"message,omitempty"`
	// Held lists the changes that wait or are denied, at most 32.
	// +listType=atomic
	Held []HeldChange `json:"held,omitempty"`
	// Warnings lists the warnings of danger rules about the last applied change, or about a waiting
	// change, at most 32.
	// +listType=atomic
	Warnings []ChangeWarning `json:"warnings,omitempty"`
	// LastDiff is what the last apply changed.
	LastDiff *DiffSummary `json:"lastDiff,omitempty"`
	// Checks are the Jobs that the component's rollout runs here as checks. A Job is listed until
	// no check needs it and it is deleted.
	// +listType=map
	// +listMapKey=run
	Checks []DeliveryCheck `json:"checks,omitempty"`
	// Conditions are Ready, and Reconciling or Stalled while they are True.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// WantedDelivery is what git wants of one component on one cluster, by the last render.
type WantedDelivery struct {
	// TargetHash is the hash of the rendered objects; "absent" if the component is to be removed.
	TargetHash string `json:"targetHash"`
	// Inputs is a hash of everything that git contributes to the render. A render from other inputs
	// does not show what git wants now.
	Inputs string `json:"inputs"`
}

// DeliveryCheck is a Job of a check on one cluster.
type DeliveryCheck struct {
	// Run is the Run of the [RolloutJob].
	Run string `json:"run"`
	// Job as NAMESPACE/NAME.
	Job string `json:"job"`
	// State of the Job.
	State CheckState `json:"state"`
	// Message says why it failed, or waits.
	Message string `json:"message,omitempty"`
}

// CheckState is the state of a check's Job on a cluster.
//
// +kubebuilder:validation:Enum=Waiting;Running;Passed;Failed
type CheckState string

// The values of [CheckState].
const (
	CheckWaiting CheckState = "Waiting" // not created yet
	CheckRunning CheckState = "Running" // no result yet
	CheckPassed  CheckState = "Passed"  // complete
	CheckFailed  CheckState = "Failed"  // failed
)

// HashAbsent is the TargetHash of a component that is to be removed.
const HashAbsent = "absent"

// HeldChange is one change that a danger rule stopped.
type HeldChange struct {
	// Object as KIND NAMESPACE/NAME.
	Object string `json:"object"`
	// Path of the field; empty when the object's deletion is held.
	Path string `json:"path,omitempty"`
	// Rule that stopped it.
	Rule string `json:"rule"`
	// Because is the rule's reason, and Fix what to do instead.
	Because string `json:"because"`
	Fix     string `json:"fix,omitempty"`
	// Hash of the object's difference, for an approval; empty if an approval would not help.
	Hash string `json:"hash,omitempty"`
}

// ChangeWarning is one danger rule that warns of a change of one object.
type ChangeWarning struct {
	// Object as KIND NAMESPACE/NAME.
	Object string `json:"object"`
	// Path of the first field; empty for the object as a whole.
	Path string `json:"path,omitempty"`
	// Rule that warns.
	Rule string `json:"rule"`
	// Because is the rule's reason, and Fix what to do instead.
	Because string `json:"because"`
	Fix     string `json:"fix,omitempty"`
}

// PinnedDelivery is an earlier delivery that is kept.
type PinnedDelivery struct {
	// Number and Version of the delivery in the component's history.
	Number  int32  `json:"number"`
	Version string `json:"version"`
	// Revision is the commit of the fleet repository that it is rendered from.
	Revision string `json:"revision"`
	// By is who rolled back, and Because why.
	By      string `json:"by,omitempty"`
	Because string `json:"because,omitempty"`
}

// DiffSummary counts what one apply did, by object.
type DiffSummary struct {
	// Time of the apply.
	Time metav1.Time `json:"time"`
	// Created, Updated, Deleted and Restored count objects. An object is restored when a field
	// that another client changed is set back.
	Created  int32 `json:"created,omitempty"`
	Updated  int32 `json:"updated,omitempty"`
	Deleted  int32 `json:"deleted,omitempty"`
	Restored int32 `json:"restored,omitempty"`
}
