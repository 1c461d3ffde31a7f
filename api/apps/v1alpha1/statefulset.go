package v1alpha1

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// StatefulSet is [v1beta1.StatefulSet] with fewer fields. What v1beta1 has beyond them is kept in
// an annotation.
//
// +kubebuilder:object:root=true
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

	Spec   StatefulSetSpec   `json:"spec,omitempty"`
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

// StatefulSetSpec is [v1beta1.StatefulSetSpec] with fewer fields.
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
	// VolumeClaimTemplates are claims that each pod has for itself, named TEMPLATE-SET-ORDINAL.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates,omitempty"`
	// ServiceName is the Service that gives the pods their names in DNS. It can't change.
	ServiceName string `json:"serviceName,omitempty"`
	// PodManagementPolicy is the order in which pods are created and deleted. It can't change.
	PodManagementPolicy appsv1.PodManagementPolicyType `json:"podManagementPolicy,omitempty"`
	// UpdateStrategy says how pods come to a new revision.
	UpdateStrategy v1beta1.StatefulSetUpdateStrategy `json:"updateStrategy,omitempty"`
	// RevisionHistoryLimit is how many revisions that no pod has are kept; default 10.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
}

// StatefulSetStatus is [v1beta1.StatefulSetStatus] with fewer fields.
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
	// CurrentRevision is the revision of the pods before the update.
	CurrentRevision string `json:"currentRevision,omitempty"`
	// UpdateRevision is the newest revision.
	UpdateRevision string `json:"updateRevision,omitempty"`
	// CollisionCount counts the revisions whose hashes were the same.
	CollisionCount *int32 `json:"collisionCount,omitempty"`
	// Conditions are the latest observations.
	Conditions []appsv1.StatefulSetCondition `json:"conditions,omitempty"`
	// LabelSelector is the selector, as text for kubectl and autoscalers.
	LabelSelector string `json:"labelSelector,omitempty"`
	// Batches says how far an update in batches is.
	Batches *v1beta1.BatchStatus `json:"batches,omitempty"`
}
