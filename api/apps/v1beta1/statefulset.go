package v1beta1

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnotationOwnedBySet on a claim says that a StatefulSet with volumeClaimUpdateStrategy
// OnPodRollingUpdate has changed its size. Its value is "true".
const AnnotationOwnedBySet = "apps.kruise.io/owned-by-asts"

// StatefulSet runs pods with stable names and claims of their own, and updates them in order or by
// priority, in place or by replacement.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.labelSelector
// +kubebuilder:resource:shortName=sts;asts
// +kubebuilder:printcolumn:name="DESIRED",type=integer,JSONPath=`.spec.replicas`,description="pods that are wanted"
// +kubebuilder:printcolumn:name="CURRENT",type=integer,JSONPath=`.status.replicas`,description="pods that there are"
// +kubebuilder:printcolumn:name="UPDATED",type=integer,JSONPath=`.status.updatedReplicas`,description="pods of the newest revision"
// +kubebuilder:printcolumn:name="READY",type=integer,JSONPath=`.status.readyReplicas`,description="pods that are ready, of any revision"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="CONTAINERS",type=string,priority=1,JSONPath=`.spec.template.spec.containers[*].name`
// +kubebuilder:printcolumn:name="IMAGES",type=string,priority=1,JSONPath=`.spec.template.spec.containers[*].image`
// +kubebuilder:printcolumn:name="BATCH",type=string,priority=1,JSONPath=`.status.batches.batch`,description="the batch of the update, and how many there are"
type StatefulSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec StatefulSetSpec `json:"spec,omitempty"`
	// Status is the observed state.
	Status StatefulSetStatus `json:"status,omitempty"`
}

// StatefulSetList is a list of [StatefulSet].
//
// +kubebuilder:object:root=true
type StatefulSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StatefulSet `json:"items"`
}

// StatefulSetSpec is the desired state of a StatefulSet.
type StatefulSetSpec struct {
	// Replicas is how many pods are wanted; default 1.
	Replicas *int32 `json:"replicas,omitempty"`
	// Selector finds the pods. It must select the template's labels, and can't change.
	Selector *metav1.LabelSelector `json:"selector"`
	// Template is the template of the pods.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Template corev1.PodTemplateSpec `json:"template"`
	// VolumeClaimTemplates are claims that each pod has for itself, named TEMPLATE-SET-ORDINAL. A pod
	// that is created again gets the claims of its ordinal.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates,omitempty"`
	// VolumeClaimUpdateStrategy says when existing claims follow their template.
	VolumeClaimUpdateStrategy VolumeClaimUpdateStrategy `json:"volumeClaimUpdateStrategy,omitempty"`
	// ServiceName is the Service that gives the pods their names in DNS. It can't change.
	ServiceName string `json:"serviceName,omitempty"`
	// PodManagementPolicy is the order in which pods are created and deleted. It can't change.
	PodManagementPolicy appsv1.PodManagementPolicyType `json:"podManagementPolicy,omitempty"`
	// UpdateStrategy says how pods come to a new revision.
	UpdateStrategy StatefulSetUpdateStrategy `json:"updateStrategy,omitempty"`
	// RevisionHistoryLimit is how many revisions that no pod has are kept; default 10.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// ReserveOrdinals are ordinals that no pod has: numbers, and ranges as "2-5".
	ReserveOrdinals []IntOrString `json:"reserveOrdinals,omitempty"`
	// Lifecycle has hooks of pods.
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
	// ScaleStrategy says how pods are created.
	ScaleStrategy *StatefulSetScaleStrategy `json:"scaleStrategy,omitempty"`
	// PersistentVolumeClaimRetentionPolicy says what happens to claims of pods that are gone for good.
	PersistentVolumeClaimRetentionPolicy *ClaimRetentionPolicy `json:"persistentVolumeClaimRetentionPolicy,omitempty"`
	// Ordinals says where the ordinals begin.
	Ordinals *StatefulSetOrdinals `json:"ordinals,omitempty"`
}

// PodManagementPolicies returns all values of the pod management policy: OrderedReady, the default,
// creates each pod when all pods before it are available; Parallel waits for none.
func PodManagementPolicies() []appsv1.PodManagementPolicyType {
	return []appsv1.PodManagementPolicyType{appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement}
}

// StatefulSetOrdinals says where the ordinals begin.
type StatefulSetOrdinals struct {
	// Start is the first ordinal; default 0.
	//
	// +optional
	Start int32 `json:"start"`
}

// StatefulSetScaleStrategy says how pods are created.
type StatefulSetScaleStrategy struct {
	// MaxUnavailable stops creation while that many pods aren't available. A percentage is rounded
	// down, but is at least 1. It needs the policy Parallel.
	MaxUnavailable *IntOrString `json:"maxUnavailable,omitempty"`
}

// ClaimRetention is what happens to claims.
type ClaimRetention string

// The values of [ClaimRetention].
const (
	ClaimRetain ClaimRetention = "Retain" // they stay
	ClaimDelete ClaimRetention = "Delete" // Kubernetes deletes them with the object that needed them
)

// ClaimRetentions returns all values of [ClaimRetention].
func ClaimRetentions() []ClaimRetention { return []ClaimRetention{ClaimRetain, ClaimDelete} }

// ClaimRetentionPolicy says what happens to claims of pods that are gone for good.
type ClaimRetentionPolicy struct {
	// WhenDeleted is for the claims of a deleted StatefulSet; default Retain.
	WhenDeleted ClaimRetention `json:"whenDeleted,omitempty"`
	// WhenScaled is for the claims of a pod whose ordinal is no longer wanted; default Retain.
	WhenScaled ClaimRetention `json:"whenScaled,omitempty"`
}

// VolumeClaimUpdateType is when existing claims follow their template.
type VolumeClaimUpdateType string

// The values of [VolumeClaimUpdateType].
const (
	ClaimOnDelete           VolumeClaimUpdateType = "OnDelete"           // only new claims follow it
	ClaimOnPodRollingUpdate VolumeClaimUpdateType = "OnPodRollingUpdate" // claims grow before the update of their pod
)

// VolumeClaimUpdateTypes returns all values of [VolumeClaimUpdateType].
func VolumeClaimUpdateTypes() []VolumeClaimUpdateType {
	return []VolumeClaimUpdateType{ClaimOnDelete, ClaimOnPodRollingUpdate}
}

// VolumeClaimUpdateStrategy says when existing claims follow their template.
type VolumeClaimUpdateStrategy struct {
	// Type is OnDelete, which is the default, or OnPodRollingUpdate. A claim only ever grows.
	Type VolumeClaimUpdateType `json:"type,omitempty"`
}

// StatefulSetUpdateStrategyType is when pods come to a new revision.
type StatefulSetUpdateStrategyType string

// The values of [StatefulSetUpdateStrategyType].
const (
	StatefulSetRollingUpdate StatefulSetUpdateStrategyType = "RollingUpdate" // by Keelson, a few at a time
	StatefulSetOnDelete      StatefulSetUpdateStrategyType = "OnDelete"      // after a user deletes them
)

// StatefulSetUpdateStrategyTypes returns all values of [StatefulSetUpdateStrategyType].
func StatefulSetUpdateStrategyTypes() []StatefulSetUpdateStrategyType {
	return []StatefulSetUpdateStrategyType{StatefulSetRollingUpdate, StatefulSetOnDelete}
}

// StatefulSetUpdateStrategy says how pods come to a new revision.
type StatefulSetUpdateStrategy struct {
	// Type is RollingUpdate, which is the default, or OnDelete.
	Type StatefulSetUpdateStrategyType `json:"type,omitempty"`
	// RollingUpdate holds the settings of the type RollingUpdate.
	RollingUpdate *StatefulSetRollingUpdateStrategy `json:"rollingUpdate,omitempty"`
}

// StatefulSetRollingUpdateStrategy says which pods come to a new revision, and how many at once.
type StatefulSetRollingUpdateStrategy struct {
	// Partition is how many pods stay at their revision: those with the lowest ordinals, or the last
	// in the order of UnorderedUpdate. A pod that is created again counts by its place. Raising it
	// returns no pod to the old revision.
	Partition *int32 `json:"partition,omitempty"`
	// MaxUnavailable is how many pods may be unavailable because of an update or a requested
	// deletion; default 1. A percentage is rounded down, but is at least 1. More than 1 needs the
	// policy Parallel.
	MaxUnavailable *IntOrString `json:"maxUnavailable,omitempty"`
	// PodUpdatePolicy is how one pod is updated; default ReCreate.
	PodUpdatePolicy PodUpdatePolicy `json:"podUpdatePolicy,omitempty"`
	// Paused leaves every pod at its revision.
	Paused bool `json:"paused,omitempty"`
	// UnorderedUpdate updates pods by priority instead of by ordinal. It needs the policy Parallel.
	UnorderedUpdate *UnorderedUpdateStrategy `json:"unorderedUpdate,omitempty"`
	// InPlaceUpdateStrategy is how pods are updated in place.
	InPlaceUpdateStrategy *InPlaceUpdateStrategy `json:"inPlaceUpdateStrategy,omitempty"`
	// MinReadySeconds is how long a pod has to be ready to be available; at most 300.
	MinReadySeconds *int32 `json:"minReadySeconds,omitempty"`
	// Batches divides the update into batches.
	Batches *UpdateBatches `json:"batches,omitempty"`
}

// UnorderedUpdateStrategy says which pods are updated first.
type UnorderedUpdateStrategy struct {
	// PriorityStrategy sorts the pods. Pods of the same priority come by ordinal, the highest first.
	PriorityStrategy *UpdatePriorityStrategy `json:"priorityStrategy,omitempty"`
}

// StatefulSetStatus is the observed state of a StatefulSet. Pods that are being deleted count for
// Replicas and ReadyReplicas only.
type StatefulSetStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Replicas is how many pods there are, also of ordinals that are no longer wanted.
	Replicas int32 `json:"replicas"`
	// ReadyReplicas is how many of them are ready.
	ReadyReplicas int32 `json:"readyReplicas"`
	// AvailableReplicas is how many have been ready for minReadySeconds.
	AvailableReplicas int32 `json:"availableReplicas"`
	// CurrentReplicas is how many pods have CurrentRevision.
	CurrentReplicas int32 `json:"currentReplicas"`
	// UpdatedReplicas is how many pods have UpdateRevision.
	UpdatedReplicas int32 `json:"updatedReplicas"`
	// UpdatedReadyReplicas is how many of those are ready.
	UpdatedReadyReplicas int32 `json:"updatedReadyReplicas,omitempty"`
	// UpdatedAvailableReplicas is how many of those have been ready for minReadySeconds.
	UpdatedAvailableReplicas int32 `json:"updatedAvailableReplicas,omitempty"`
	// CurrentRevision is the revision of the pods before the update. It becomes UpdateRevision when
	// all pods are updated and ready.
	CurrentRevision string `json:"currentRevision,omitempty"`
	// UpdateRevision is the newest revision.
	UpdateRevision string `json:"updateRevision,omitempty"`
	// CollisionCount counts the revisions whose hashes were the same.
	CollisionCount *int32 `json:"collisionCount,omitempty"`
	// Conditions are the latest observations.
	Conditions []appsv1.StatefulSetCondition `json:"conditions,omitempty"`
	// LabelSelector is the selector, as text for kubectl and autoscalers.
	LabelSelector string `json:"labelSelector,omitempty"`
	// VolumeClaims tells for each claim template how many claims follow it.
	VolumeClaims []VolumeClaimStatus `json:"volumeClaims,omitempty"`
	// Batches says how far an update in batches is.
	Batches *BatchStatus `json:"batches,omitempty"`
}

// The types of conditions of a StatefulSet.
const (
	StatefulSetFailedCreatePod appsv1.StatefulSetConditionType = "FailedCreatePod"
	StatefulSetFailedUpdatePod appsv1.StatefulSetConditionType = "FailedUpdatePod"
)

// VolumeClaimStatus tells how many claims follow their template.
type VolumeClaimStatus struct {
	// VolumeClaimName is the name of the template.
	VolumeClaimName string `json:"volumeClaimName"`
	// CompatibleReplicas is how many claims request at least what the template does, with the same
	// class and modes.
	CompatibleReplicas int32 `json:"compatibleReplicas"`
	// CompatibleReadyReplicas is how many of those have that size.
	CompatibleReadyReplicas int32 `json:"compatibleReadyReplicas"`
}
