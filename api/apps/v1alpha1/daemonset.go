package v1alpha1

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// AnnotationProgressiveCreate is partitionedScaling of v1beta1: "true" leaves as many
// nodes without a pod as the partition says.
const AnnotationProgressiveCreate = "daemonset.kruise.io/progressive-create-pod"

// DaemonSet is [v1beta1.DaemonSet].
//
// +kubebuilder:object:root=true
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

	Spec   DaemonSetSpec   `json:"spec,omitempty"`
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

// DaemonSetSpec is [v1beta1.DaemonSetSpec] without a scale strategy: see
// [AnnotationProgressiveCreate].
type DaemonSetSpec struct {
	// Selector finds the pods. It must select the template's labels, and can't change.
	Selector *metav1.LabelSelector `json:"selector"`
	// Template is the template of the pods. Its node selector and affinity select the nodes.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Template corev1.PodTemplateSpec `json:"template"`
	// UpdateStrategy says how pods come to a new revision.
	UpdateStrategy v1beta1.DaemonSetUpdateStrategy `json:"updateStrategy,omitempty"`
	// MinReadySeconds is how long a pod has to be ready to be available.
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// BurstReplicas bounds how many pods are created or deleted at once; default 250.
	BurstReplicas *intstr.IntOrString `json:"burstReplicas,omitempty"`
	// RevisionHistoryLimit is how many revisions that no pod has are kept; default 10.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// Lifecycle has hooks of pods; of a DaemonSet only preDelete counts.
	Lifecycle *v1beta1.Lifecycle `json:"lifecycle,omitempty"`
}

// DaemonSetStatus is [v1beta1.DaemonSetStatus] with another name for the newest
// revision.
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
	// DaemonSetHash is the newest revision.
	DaemonSetHash string `json:"daemonSetHash,omitempty"`
	// Batches says how far an update in batches is.
	Batches *v1beta1.BatchStatus `json:"batches,omitempty"`
}
