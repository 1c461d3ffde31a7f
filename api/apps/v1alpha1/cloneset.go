package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// Labels and annotations of a CloneSet that are fields in v1beta1.
const (
	LabelExcludePreparingDelete         = "apps.kruise.io/cloneset-scaling-exclude-preparing-delete"
	AnnotationPreDownloadParallelism    = "apps.kruise.io/image-predownload-parallelism"
	AnnotationPreDownloadTimeoutSeconds = "apps.kruise.io/image-predownload-timeout-seconds"
	AnnotationPreDownloadMinUpdated     = "apps.kruise.io/image-predownload-min-updated-ready-pods"
)

// CloneSet is [v1beta1.CloneSet].
//
// +kubebuilder:object:root=true
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

	Spec   CloneSetSpec           `json:"spec,omitempty"`
	Status v1beta1.CloneSetStatus `json:"status,omitempty"`
}

// CloneSetList is a list of [CloneSet].
//
// +kubebuilder:object:root=true
type CloneSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CloneSet `json:"items"`
}

// CloneSetSpec is [v1beta1.CloneSetSpec], with other strategies.
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
	Lifecycle *v1beta1.Lifecycle `json:"lifecycle,omitempty"`
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
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// DisablePVCReuse gives a new pod its own claims, instead of the claims of a deleted pod.
	DisablePVCReuse bool `json:"disablePVCReuse,omitempty"`
}

// CloneSetUpdateStrategy is [v1beta1.CloneSetRollingUpdateStrategy] with a type that
// is the policy for one pod.
type CloneSetUpdateStrategy struct {
	// Type is how one pod is updated: ReCreate, which is the default, InPlaceIfPossible or
	// InPlaceOnly. With OnDelete, a pod is updated after a user deletes it.
	Type v1beta1.PodUpdatePolicy `json:"type,omitempty"`
	// Partition is how many pods stay at the old revision; a percentage is rounded up, but below
	// 100% at least one pod is updated. Raising it returns pods to the old revision.
	Partition *intstr.IntOrString `json:"partition,omitempty"`
	// MaxUnavailable is how many pods may be unavailable because of an update or a requested
	// deletion; default 20%. A percentage is rounded up, but rounded down with MaxSurge.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// MaxSurge is how many pods there may be above Replicas; default 0. A percentage
	// is rounded up.
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// Paused leaves every pod at its revision.
	Paused bool `json:"paused,omitempty"`
	// PriorityStrategy says which pods are updated first.
	PriorityStrategy *v1beta1.UpdatePriorityStrategy `json:"priorityStrategy,omitempty"`
	// ScatterStrategy keeps pods with the same labels out of the same batch.
	ScatterStrategy []v1beta1.UpdateScatterTerm `json:"scatterStrategy,omitempty"`
	// InPlaceUpdateStrategy is how pods are updated in place.
	InPlaceUpdateStrategy *v1beta1.InPlaceUpdateStrategy `json:"inPlaceUpdateStrategy,omitempty"`
	// Batches divides the update into batches.
	Batches *v1beta1.UpdateBatches `json:"batches,omitempty"`
}
