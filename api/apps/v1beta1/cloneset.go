package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// IntOrString is a number, or a percentage of a number: 5 or "10%".
type IntOrString = intstr.IntOrString

// CloneSet runs identical pods, and updates them in place or by replacement. It chooses first the
// pods whose update or deletion does the least harm.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.labelSelector
// +kubebuilder:resource:shortName=clone
// +kubebuilder:printcolumn:name="DESIRED",type=integer,JSONPath=`.spec.replicas`,description="pods that are wanted"
// +kubebuilder:printcolumn:name="UPDATED",type=integer,JSONPath=`.status.updatedReplicas`,description="pods of the newest revision"
// +kubebuilder:printcolumn:name="UPDATED_READY",type=integer,JSONPath=`.status.updatedReadyReplicas`,description="those that are ready"
// +kubebuilder:printcolumn:name="UPDATED_AVAILABLE",type=integer,JSONPath=`.status.updatedAvailableReplicas`,description="those that have been for long enough"
// +kubebuilder:printcolumn:name="READY",type=integer,JSONPath=`.status.readyReplicas`,description="pods that are ready, of any revision"
// +kubebuilder:printcolumn:name="TOTAL",type=integer,JSONPath=`.status.replicas`,description="pods that there are"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="CONTAINERS",type=string,priority=1,JSONPath=`.spec.template.spec.containers[*].name`
// +kubebuilder:printcolumn:name="IMAGES",type=string,priority=1,JSONPath=`.spec.template.spec.containers[*].image`
// +kubebuilder:printcolumn:name="SELECTOR",type=string,priority=1,JSONPath=`.status.labelSelector`
// +kubebuilder:printcolumn:name="BATCH",type=string,priority=1,JSONPath=`.status.batches.batch`,description="the batch of the update, and how many there are"
type CloneSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec CloneSetSpec `json:"spec,omitempty"`
	// Status is the observed state.
	Status CloneSetStatus `json:"status,omitempty"`
}

// CloneSetList is a list of [CloneSet].
//
// +kubebuilder:object:root=true
type CloneSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CloneSet `json:"items"`
}

// CloneSetSpec is the desired state of a CloneSet.
type CloneSetSpec struct {
	// Replicas is how many pods are wanted; default 1.
	Replicas *int32 `json:"replicas,omitempty"`
	// Selector finds the pods. It must select the template's labels, and can't change.
	Selector *metav1.LabelSelector `json:"selector"`
	// Template is the template of the pods.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Template corev1.PodTemplateSpec `json:"template"`
	// VolumeClaimTemplates are claims that each pod has for itself, named
	// TEMPLATE-CLONESET-ID. An update in place keeps them.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates,omitempty"`
	// ScaleStrategy says how pods are created and deleted.
	ScaleStrategy CloneSetScaleStrategy `json:"scaleStrategy,omitempty"`
	// UpdateStrategy says how pods come to a new revision.
	UpdateStrategy CloneSetUpdateStrategy `json:"updateStrategy,omitempty"`
	// RevisionHistoryLimit is how many revisions that no pod has are kept; default 10.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// MinReadySeconds is how long a pod has to be ready to be available.
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// Lifecycle has hooks of pods.
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
	// ProgressDeadlineSeconds is the time without progress after which the condition Progressing is
	// False. Time while it is paused doesn't count. 2147483647 means no deadline, and so no condition.
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
}

// CloneSetScaleStrategy says how pods are created and deleted.
type CloneSetScaleStrategy struct {
	// PodsToDelete names pods to delete. They are deleted first if there are too many pods, and
	// replaced otherwise.
	PodsToDelete []string `json:"podsToDelete,omitempty"`
	// MaxUnavailable stops creation while that many pods aren't available.
	MaxUnavailable *IntOrString `json:"maxUnavailable,omitempty"`
	// EnablePVCReuse gives a new pod the claims of a deleted pod. It is always written, so that no
	// default replaces the value of another version.
	//
	// +optional
	// +kubebuilder:default=false
	EnablePVCReuse bool `json:"enablePVCReuse"`
	// ExcludePreparingDelete doesn't count pods whose deletion a hook holds back.
	ExcludePreparingDelete bool `json:"excludePreparingDelete,omitempty"`
}

// CloneSetUpdateStrategyType is how pods come to a new revision.
type CloneSetUpdateStrategyType string

// The values of [CloneSetUpdateStrategyType].
const (
	CloneSetRollingUpdate CloneSetUpdateStrategyType = "RollingUpdate" // by Keelson, a few at a time
	CloneSetOnDelete      CloneSetUpdateStrategyType = "OnDelete"      // after a user deletes them
)

// CloneSetUpdateStrategyTypes returns all values of [CloneSetUpdateStrategyType].
func CloneSetUpdateStrategyTypes() []CloneSetUpdateStrategyType {
	return []CloneSetUpdateStrategyType{CloneSetRollingUpdate, CloneSetOnDelete}
}

// CloneSetUpdateStrategy says how pods come to a new revision.
type CloneSetUpdateStrategy struct {
	// Type is RollingUpdate, which is the default, or OnDelete: no pod is updated or replaced because
	// of a new revision, and a pod that a user deletes is created anew from the new revision.
	Type CloneSetUpdateStrategyType `json:"type,omitempty"`
	// RollingUpdate holds the settings of the type RollingUpdate. With OnDelete, the limits hold for
	// pods that users want replaced, and the partition for the revision of new pods.
	RollingUpdate *CloneSetRollingUpdateStrategy `json:"rollingUpdate,omitempty"`
}

// PodUpdatePolicy is how one pod comes to a new revision.
type PodUpdatePolicy string

// The values of [PodUpdatePolicy].
const (
	PodUpdateRecreate          PodUpdatePolicy = "ReCreate"          // a new pod replaces the old one
	PodUpdateInPlaceIfPossible PodUpdatePolicy = "InPlaceIfPossible" // replaced if an update in place is impossible
	PodUpdateInPlaceOnly       PodUpdatePolicy = "InPlaceOnly"       // a change that can't be made in place is rejected
)

// PodUpdatePolicies returns all values of [PodUpdatePolicy].
func PodUpdatePolicies() []PodUpdatePolicy {
	return []PodUpdatePolicy{PodUpdateRecreate, PodUpdateInPlaceIfPossible, PodUpdateInPlaceOnly}
}

// CloneSetRollingUpdateStrategy says which pods come to a new revision, and how many
// at once.
type CloneSetRollingUpdateStrategy struct {
	// PodUpdatePolicy is how one pod is updated; default ReCreate.
	PodUpdatePolicy PodUpdatePolicy `json:"podUpdatePolicy,omitempty"`
	// Partition is how many pods stay at the old revision; a percentage is rounded up, but below
	// 100% at least one pod is updated. Raising it returns pods to the old revision.
	Partition *IntOrString `json:"partition,omitempty"`
	// MaxUnavailable is how many pods may be unavailable because of an update or a requested
	// deletion; default 20%. A percentage is rounded up, but rounded down with MaxSurge.
	MaxUnavailable *IntOrString `json:"maxUnavailable,omitempty"`
	// MaxSurge is how many pods there may be above spec.replicas; default 0. A percentage
	// is rounded up.
	MaxSurge *IntOrString `json:"maxSurge,omitempty"`
	// Paused leaves every pod at its revision.
	Paused bool `json:"paused,omitempty"`
	// PriorityStrategy says which pods are updated first.
	PriorityStrategy *UpdatePriorityStrategy `json:"priorityStrategy,omitempty"`
	// ScatterStrategy keeps pods with the same labels out of the same batch.
	ScatterStrategy []UpdateScatterTerm `json:"scatterStrategy,omitempty"`
	// InPlaceUpdateStrategy is how pods are updated in place.
	InPlaceUpdateStrategy *InPlaceUpdateStrategy `json:"inPlaceUpdateStrategy,omitempty"`
	// Batches divides the update into batches.
	Batches *UpdateBatches `json:"batches,omitempty"`
}

// UpdatePriorityStrategy says which pods are updated first: by order, or by weight.
type UpdatePriorityStrategy struct {
	// OrderPriority sorts by the last number in the value of a label, the highest first. Pods
	// without the label follow, sorted by the next label.
	OrderPriority []UpdatePriorityOrderTerm `json:"orderPriority,omitempty"`
	// WeightPriority sorts by the sum of the weights that select a pod, the highest
	// first.
	WeightPriority []UpdatePriorityWeightTerm `json:"weightPriority,omitempty"`
}

// UpdatePriorityOrderTerm names a label.
type UpdatePriorityOrderTerm struct {
	// OrderedKey is the key of the label.
	OrderedKey string `json:"orderedKey"`
}

// UpdatePriorityWeightTerm gives pods a weight of 1 to 100.
type UpdatePriorityWeightTerm struct {
	// Weight of the pods that MatchSelector selects.
	Weight        int32                `json:"weight"`
	MatchSelector metav1.LabelSelector `json:"matchSelector"`
}

// UpdateScatterTerm is a label with its value.
type UpdateScatterTerm struct {
	// Key and Value of the label.
	Key   string `json:"key"`
	Value string `json:"value"`
}

// CloneSetConditionType is the type of a [CloneSetCondition].
type CloneSetConditionType string

// The values of [CloneSetConditionType].
const (
	CloneSetFailedScale  CloneSetConditionType = "FailedScale"  // pods can't be created or deleted, or the spec is refused
	CloneSetFailedUpdate CloneSetConditionType = "FailedUpdate" // of OpenKruise; Keelson does not set it
	CloneSetProgressing  CloneSetConditionType = "Progressing"  // an update goes on, is complete, or has stopped
)

// CloneSetStatus is the observed state of a CloneSet.
type CloneSetStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Replicas is how many pods there are.
	Replicas int32 `json:"replicas"`
	// ReadyReplicas is how many of them are ready.
	ReadyReplicas int32 `json:"readyReplicas"`
	// AvailableReplicas is how many have been ready for MinReadySeconds.
	AvailableReplicas int32 `json:"availableReplicas"`
	// UpdatedReplicas is how many have UpdateRevision.
	UpdatedReplicas int32 `json:"updatedReplicas"`
	// UpdatedReadyReplicas is how many of those are ready.
	UpdatedReadyReplicas int32 `json:"updatedReadyReplicas"`
	// UpdatedAvailableReplicas is how many of those are available.
	UpdatedAvailableReplicas int32 `json:"updatedAvailableReplicas,omitempty"`
	// ExpectedUpdatedReplicas is how many pods are to have UpdateRevision: replicas
	// less the partition.
	ExpectedUpdatedReplicas int32 `json:"expectedUpdatedReplicas,omitempty"`
	// UpdateRevision is the newest revision.
	UpdateRevision string `json:"updateRevision,omitempty"`
	// CurrentRevision is the last revision that all pods had. Pods return to it if the partition is
	// raised.
	CurrentRevision string `json:"currentRevision,omitempty"`
	// CollisionCount counts the revisions whose hashes were the same.
	CollisionCount *int32 `json:"collisionCount,omitempty"`
	// Conditions are the latest observations.
	Conditions []CloneSetCondition `json:"conditions,omitempty"`
	// LabelSelector is the selector as text: the scale subresource shows it.
	LabelSelector string `json:"labelSelector,omitempty"`
	// Batches says how far an update in batches is.
	Batches *BatchStatus `json:"batches,omitempty"`
}

// CloneSetCondition is one aspect of a CloneSet.
type CloneSetCondition struct {
	// Type of the condition, and its Status: True or False. LastTransitionTime is the time of the
	// last change of Status.
	Type               CloneSetConditionType  `json:"type"`
	Status             corev1.ConditionStatus `json:"status"`
	LastTransitionTime metav1.Time            `json:"lastTransitionTime,omitempty"`
	// LastUpdateTime is the time of the last progress.
	LastUpdateTime metav1.Time `json:"lastUpdateTime,omitempty"`
	// Reason is one word, and Message a sentence.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}
