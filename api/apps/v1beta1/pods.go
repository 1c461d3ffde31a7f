package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels and annotations of pods, and of what belongs to them.
const (
	// LabelInstanceID tells the pods of a CloneSet apart, and which claims are whose:
	// five characters that are also the end of the pod's name.
	LabelInstanceID = "apps.kruise.io/cloneset-instance-id"
	// LabelSpecifiedDelete on a pod asks its workload to replace it, whatever its
	// value.
	LabelSpecifiedDelete = "apps.kruise.io/specified-delete"
	// LabelLifecycle is the [LifecycleState] of a pod whose workload has hooks.
	LabelLifecycle = "lifecycle.apps.kruise.io/state"
	// AnnotationLifecycleSince is when it came into that state, in RFC 3339.
	AnnotationLifecycleSince = "lifecycle.apps.kruise.io/timestamp"
	// AnnotationInPlaceState is an [InPlaceState] in JSON.
	AnnotationInPlaceState = "apps.kruise.io/inplace-update-state"
	// AnnotationInPlaceGrace is an [InPlaceGrace] in JSON: an update that waits until
	// the pod is out of its Services.
	AnnotationInPlaceGrace = "apps.kruise.io/inplace-update-grace"
	// EnvContainerPriority of a container says in which batch it is updated in
	// place: the highest first.
	EnvContainerPriority = "KRUISE_CONTAINER_PRIORITY"
)

// InPlaceUpdateReady is a readiness gate, and its condition: False while a pod is
// updated in place.
const InPlaceUpdateReady corev1.PodConditionType = "InPlaceUpdateReady"

// KruisePodReady is a readiness gate, and its condition: False while a hook that marks
// pods not ready holds a pod back. Its message lists who wants that, as JSON.
const KruisePodReady corev1.PodConditionType = "KruisePodReady"

// LifecycleState is where a pod stands among the hooks of its workload.
type LifecycleState string

// The values of [LifecycleState], in the order in which a pod goes through them.
const (
	LifecyclePreparingNormal LifecycleState = "PreparingNormal" // created; preNormal isn't there yet
	LifecycleNormal          LifecycleState = "Normal"
	LifecyclePreparingUpdate LifecycleState = "PreparingUpdate" // inPlaceUpdate hooks hold it back
	LifecycleUpdating        LifecycleState = "Updating"
	LifecycleUpdated         LifecycleState = "Updated" // inPlaceUpdate hooks aren't there again
	LifecyclePreparingDelete LifecycleState = "PreparingDelete"
)

// Lifecycle says who must agree before a pod is taken into service, updated in place,
// or deleted.
type Lifecycle struct {
	// PreDelete holds back the deletion of a pod for as long as the hook is on it.
	PreDelete *LifecycleHook `json:"preDelete,omitempty"`
	// InPlaceUpdate holds back an update in place for as long as the hook is on the
	// pod, and after the update keeps the pod unavailable until it is on it again.
	InPlaceUpdate *LifecycleHook `json:"inPlaceUpdate,omitempty"`
	// PreNormal keeps a new pod unavailable until the hook is on it.
	PreNormal *LifecycleHook `json:"preNormal,omitempty"`
}

// LifecycleHook is on a pod that has any of these labels, with its value, or any of
// these finalizers.
type LifecycleHook struct {
	LabelsHandler     map[string]string `json:"labelsHandler,omitempty"`
	FinalizersHandler []string          `json:"finalizersHandler,omitempty"`
	// MarkPodNotReady takes the pod out of its Services while the hook holds it back
	// from an update or its deletion.
	MarkPodNotReady bool `json:"markPodNotReady,omitempty"`
}

// InPlaceUpdateStrategy says how pods are updated in place.
type InPlaceUpdateStrategy struct {
	// GracePeriodSeconds is how long a pod has been not ready before its spec is
	// changed, so that it is out of every Service.
	GracePeriodSeconds int32 `json:"gracePeriodSeconds,omitempty"`
	// ImagePreDownloadParallelism is how many nodes pull the new images at once;
	// default 1, a percentage is one of nodes.
	ImagePreDownloadParallelism *IntOrString `json:"imagePreDownloadParallelism,omitempty"`
	// ImagePreDownloadTimeoutSeconds bounds each pull; default 600.
	ImagePreDownloadTimeoutSeconds *int32 `json:"imagePreDownloadTimeoutSeconds,omitempty"`
	// ImagePreDownloadMinUpdatedReadyPods is how many pods have to be updated and
	// ready before images are pulled ahead for the rest.
	ImagePreDownloadMinUpdatedReadyPods *int32 `json:"imagePreDownloadMinUpdatedReadyPods,omitempty"`
}

// InPlaceState is what a pod remembers of its last update in place.
type InPlaceState struct {
	// Revision is that which the pod was updated to.
	Revision        string      `json:"revision"`
	UpdateTimestamp metav1.Time `json:"updateTimestamp"`
	// LastContainerStatuses tells of each container whose image changed what ran
	// before.
	LastContainerStatuses map[string]InPlaceContainerStatus `json:"lastContainerStatuses,omitempty"`
	// NextContainerImages are those of later batches, by container.
	NextContainerImages map[string]string `json:"nextContainerImages,omitempty"`
	// NextContainerRefMetadata are the labels and annotations that containers of
	// later batches read in their environment, by container.
	NextContainerRefMetadata map[string]metav1.ObjectMeta `json:"nextContainerRefMetadata,omitempty"`
	// NextContainerResources are those of later batches, by container.
	NextContainerResources map[string]corev1.ResourceRequirements `json:"nextContainerResources,omitempty"`
	// PreCheckBeforeNext has to hold before the next batch.
	PreCheckBeforeNext *InPlaceCheck `json:"preCheckBeforeNext,omitempty"`
	// ContainerBatchesRecord lists the batches so far.
	ContainerBatchesRecord []InPlaceBatch `json:"containerBatchesRecord,omitempty"`
	UpdateEnvFromMetadata  bool           `json:"updateEnvFromMetadata,omitempty"`
	UpdateResources        bool           `json:"updateResources,omitempty"`
	UpdateImages           bool           `json:"updateImages,omitempty"`
}

// InPlaceContainerStatus is what ran in a container before its image changed.
type InPlaceContainerStatus struct {
	ImageID string `json:"imageID,omitempty"`
	// ContainerID is ours: OpenKruise knows the image alone, and waits for ever where
	// another tag has the same.
	ContainerID string                      `json:"containerID,omitempty"`
	Resources   corev1.ResourceRequirements `json:"resources,omitempty"`
}

// InPlaceCheck is what has to hold before the next batch of containers.
type InPlaceCheck struct {
	ContainersRequiredReady []string `json:"containersRequiredReady,omitempty"`
}

// InPlaceBatch is a batch of containers that was updated.
type InPlaceBatch struct {
	Timestamp  metav1.Time `json:"timestamp"`
	Containers []string    `json:"containers"`
}

// InPlaceGrace is an update that waits for its grace period to end.
type InPlaceGrace struct {
	Revision             string                                 `json:"revision"`
	ContainerImages      map[string]string                      `json:"containerImages,omitempty"`
	MetaDataPatch        []byte                                 `json:"metaDataPatch,omitempty"`
	ContainerResources   map[string]corev1.ResourceRequirements `json:"containerResources,omitempty"`
	GraceSeconds         int32                                  `json:"graceSeconds,omitempty"`
	ContainerRefMetadata map[string]metav1.ObjectMeta           `json:"containerRefMetadata,omitempty"`
}
