package v1beta1

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DaemonSet runs a pod on each node, and updates them in partitions, by node, in place
// or by replacement.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=daemon;ads
// +kubebuilder:printcolumn:name="DESIRED",type=integer,JSONPath=`.status.desiredNumberScheduled`,description="nodes that should run a pod"
// +kubebuilder:printcolumn:name="CURRENT",type=integer,JSONPath=`.status.currentNumberScheduled`,description="those that do"
// +kubebuilder:printcolumn:name="READY",type=integer,JSONPath=`.status.numberReady`,description="those whose pod is ready"
// +kubebuilder:printcolumn:name="UP-TO-DATE",type=integer,JSONPath=`.status.updatedNumberScheduled`,description="those whose pod has the newest revision"
// +kubebuilder:printcolumn:name="AVAILABLE",type=integer,JSONPath=`.status.numberAvailable`,description="those whose pod has been ready for long enough"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="CONTAINERS",type=string,priority=1,JSONPath=`.spec.template.spec.containers[*].name`
// +kubebuilder:printcolumn:name="IMAGES",type=string,priority=1,JSONPath=`.spec.template.spec.containers[*].image`
// +kubebuilder:printcolumn:name="BATCH",type=string,priority=1,JSONPath=`.status.batches.batch`,description="the batch of the update, and how many there are"
type DaemonSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec DaemonSetSpec `json:"spec,omitempty"`
	// Status is the observed state.
	Status DaemonSetStatus `json:"status,omitempty"`
}

// DaemonSetList is a list of [DaemonSet].
//
// +kubebuilder:object:root=true
type DaemonSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DaemonSet `json:"items"`
}

// DaemonSetSpec is the desired state of a DaemonSet.
type DaemonSetSpec struct {
	// Selector finds the pods. It must select the template's labels, and can't change.
	Selector *metav1.LabelSelector `json:"selector"`
	// Template is the template of the pods. Its node selector and affinity select the nodes.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Template corev1.PodTemplateSpec `json:"template"`
	// UpdateStrategy says how pods come to a new revision.
	UpdateStrategy DaemonSetUpdateStrategy `json:"updateStrategy,omitempty"`
	// ScaleStrategy says how pods are created.
	ScaleStrategy *DaemonSetScaleStrategy `json:"scaleStrategy,omitempty"`
	// MinReadySeconds is how long a pod has to be ready to be available.
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// BurstReplicas bounds how many pods are created or deleted at once; default 250.
	BurstReplicas *IntOrString `json:"burstReplicas,omitempty"`
	// RevisionHistoryLimit is how many revisions that no pod has are kept; default 10.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// Lifecycle has hooks of pods; of a DaemonSet only preDelete counts.
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
}

// DaemonSetScaleStrategy says how pods are created.
type DaemonSetScaleStrategy struct {
	// PartitionedScaling leaves as many nodes without a pod as the partition says.
	PartitionedScaling bool `json:"partitionedScaling,omitempty"`
}

// DaemonSetUpdateStrategyType is when pods come to a new revision.
type DaemonSetUpdateStrategyType string

// The values of [DaemonSetUpdateStrategyType].
const (
	DaemonSetRollingUpdate DaemonSetUpdateStrategyType = "RollingUpdate" // by Keelson, a few at a time
	DaemonSetOnDelete      DaemonSetUpdateStrategyType = "OnDelete"      // after a user deletes them
)

// DaemonSetUpdateStrategyTypes returns all values of [DaemonSetUpdateStrategyType].
func DaemonSetUpdateStrategyTypes() []DaemonSetUpdateStrategyType {
	return []DaemonSetUpdateStrategyType{DaemonSetRollingUpdate, DaemonSetOnDelete}
}

// DaemonSetUpdateStrategy says how pods come to a new revision.
type DaemonSetUpdateStrategy struct {
	// Type is RollingUpdate, which is the default, or OnDelete.
	Type DaemonSetUpdateStrategyType `json:"type,omitempty"`
	// RollingUpdate holds the settings of the type RollingUpdate.
	RollingUpdate *DaemonSetRollingUpdateStrategy `json:"rollingUpdate,omitempty"`
}

// DaemonSetRollingUpdateType is how one pod comes to a new revision.
type DaemonSetRollingUpdateType string

// The values of [DaemonSetRollingUpdateType].
const (
	DaemonSetStandard          DaemonSetRollingUpdateType = "Standard"          // replaced
	DaemonSetInPlaceIfPossible DaemonSetRollingUpdateType = "InPlaceIfPossible" // in place, or replaced if that is impossible
)

// DaemonSetRollingUpdateTypes returns all values of [DaemonSetRollingUpdateType].
func DaemonSetRollingUpdateTypes() []DaemonSetRollingUpdateType {
	return []DaemonSetRollingUpdateType{DaemonSetStandard, DaemonSetInPlaceIfPossible}
}

// DaemonSetRollingUpdateStrategy says which pods come to a new revision, and how many
// at once.
type DaemonSetRollingUpdateStrategy struct {
	// Type is how one pod is updated; default Standard.
	Type DaemonSetRollingUpdateType `json:"rollingUpdateType,omitempty"`
	// MaxUnavailable is how many nodes may be without an available pod during an update; default 1.
	// A percentage refers to the nodes that should run a pod, and is rounded up.
	MaxUnavailable *IntOrString `json:"maxUnavailable,omitempty"`
	// MaxSurge is how many nodes may run a new pod beside the old one until that is
	// available; default 0. A percentage is rounded up.
	MaxSurge *IntOrString `json:"maxSurge,omitempty"`
	// Selector chooses the nodes whose pods are updated; none: all.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Partition is how many pods stay at the old revision.
	Partition *IntOrString `json:"partition,omitempty"`
	// Paused leaves every pod at its revision.
	Paused *bool `json:"paused,omitempty"`
	// Batches divides the update into batches.
	Batches *UpdateBatches `json:"batches,omitempty"`
}

// DaemonSetStatus is the observed state of a DaemonSet. All numbers count nodes.
type DaemonSetStatus struct {
	// CurrentNumberScheduled is how many should run a pod, and do.
	CurrentNumberScheduled int32 `json:"currentNumberScheduled"`
	// NumberMisscheduled is how many run a pod, and should not.
	NumberMisscheduled int32 `json:"numberMisscheduled"`
	// DesiredNumberScheduled is how many should run a pod.
	DesiredNumberScheduled int32 `json:"desiredNumberScheduled"`
	// NumberReady is how many have a pod that is ready.
	NumberReady int32 `json:"numberReady"`
	// ObservedGeneration is the generation of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// UpdatedNumberScheduled is how many have a pod of the newest revision.
	UpdatedNumberScheduled int32 `json:"updatedNumberScheduled"`
	// NumberAvailable is how many have a pod that has been ready for MinReadySeconds.
	NumberAvailable int32 `json:"numberAvailable,omitempty"`
	// NumberUnavailable is how many should have an available pod, and don't.
	NumberUnavailable int32 `json:"numberUnavailable,omitempty"`
	// CollisionCount counts the revisions whose hashes were the same.
	CollisionCount *int32 `json:"collisionCount,omitempty"`
	// Conditions are the latest observations.
	Conditions []appsv1.DaemonSetCondition `json:"conditions,omitempty"`
	// UpdateRevision is the newest revision.
	UpdateRevision string `json:"updateRevision,omitempty"`
	// Batches says how far an update in batches is.
	Batches *BatchStatus `json:"batches,omitempty"`
}
