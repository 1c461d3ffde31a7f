package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels and annotations of pods, and of objects that belong to them.
const (
	// LabelInstanceID identifies a pod of a CloneSet and its claims: five characters that are also
	// the end of the pod's name.
	LabelInstanceID = "apps.kruise.io/cloneset-instance-id"
	// LabelSpecifiedDelete on a pod requests its replacement from its workload, with any value.
	LabelSpecifiedDelete = "apps.kruise.io/specified-delete"
	// LabelLifecycle is the [LifecycleState] of a pod of a CloneSet, or of a DaemonSet with hooks.
	LabelLifecycle = "lifecycle.apps.kruise.io/state"
	// AnnotationLifecycleSince is when the pod entered that state, in RFC 3339.
	AnnotationLifecycleSince = "lifecycle.apps.kruise.io/timestamp"
	// AnnotationInPlaceState is an [InPlaceState] in JSON.
	AnnotationInPlaceState = "apps.kruise.io/inplace-update-state"
	// AnnotationInPlaceGrace is an [InPlaceGrace] in JSON: an update that waits until the pod is
	// out of its Services.
	AnnotationInPlaceGrace = "apps.kruise.io/inplace-update-grace"
	// EnvContainerPriority of a container determines its batch of an update in place: the highest
	// first.
	EnvContainerPriority = "KRUISE_CONTAINER_PRIORITY"
)

// AnnotationClaimTemplates on a ControllerRevision of a CloneSet records the claim templates of the
// revision: a list of claims in JSON, or its hash if it is too long. Any other text means that they are
// not known.
const AnnotationClaimTemplates = "workloads.keelson.io/claim-templates"

// The annotations of a pod template, and of its pods, by which configuration reaches running containers.
const (
	// AnnotationConfigurationPrefix is the prefix of annotations that hold configuration files. A volume of
	// the downward API shows them to containers.
	AnnotationConfigurationPrefix = "configuration.keelson.io/"
	// AnnotationConfigurationVersion is the version of these files. A running pod that gets another version
	// is told to reload.
	AnnotationConfigurationVersion = "workloads.keelson.io/configuration-version"
	// AnnotationReload is a [ReloadMethod] in JSON. Without it, containers watch their files, and no reload
	// is awaited.
	AnnotationReload = "workloads.keelson.io/reload"
	// AnnotationReloadState of a pod is a [ReloadState] in JSON.
	AnnotationReloadState = "workloads.keelson.io/reload-state"
)

// ReloadMethod says how a container is told that its configuration has changed.
type ReloadMethod struct {
	// HTTP is a request to the pod.
	HTTP *ReloadHTTP `json:"http"`
	// TimeoutSeconds is how long a pod may take to reload before it counts as failed; default 60, at most
	// 3600.
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}

// ReloadHTTP is a POST request without a body to the address of a pod.
type ReloadHTTP struct {
	// Port is the number of a TCP port that a container of the pod declares.
	Port int32 `json:"port"`
	// Path is the path of the URL; default /reload.
	Path string `json:"path,omitempty"`
}

// ReloadState is the record of the last reload of a pod.
type ReloadState struct {
	// Version is the configuration version that the container should run.
	Version string `json:"version"`
	// Since is when the pod got it.
	Since metav1.Time `json:"since"`
	// Retries is how often the pod was changed again because its files were still old.
	Retries int32 `json:"retries,omitempty"`
	// Result is empty until the container has answered.
	Result ReloadResult `json:"result,omitempty"`
	// Finished is when the container has answered that it runs the version.
	Finished *metav1.Time `json:"finished,omitempty"`
	// Message is why the reload has failed.
	Message string `json:"message,omitempty"`
}

// ReloadResult is the result of a reload.
type ReloadResult string

// The values of [ReloadResult].
const (
	// Reloaded: the container has answered that it runs the version.
	Reloaded ReloadResult = "Reloaded"
	// ReloadNotAsked: the pod has no [ReloadMethod]. The container watches its files.
	ReloadNotAsked ReloadResult = "NotAsked"
	// ReloadFailed: the container has refused the version, or did not answer in time.
	ReloadFailed ReloadResult = "Failed"
)

// InPlaceUpdateReady is a readiness gate, and its condition: False while a pod is
// updated in place.
const InPlaceUpdateReady corev1.PodConditionType = "InPlaceUpdateReady"

// KruisePodReady is a readiness gate, and its condition: False while a hook that marks pods not
// ready holds a pod back. Its message lists the requesters, as JSON.
const KruisePodReady corev1.PodConditionType = "KruisePodReady"

// LifecycleState is the state of a pod with respect to the hooks of its workload.
type LifecycleState string

// The values of [LifecycleState], in the order in which a pod goes through them.
const (
	LifecyclePreparingNormal LifecycleState = "PreparingNormal" // created; it has no node yet, or the preNormal hook is missing
	LifecycleNormal          LifecycleState = "Normal"          // in service
	LifecyclePreparingUpdate LifecycleState = "PreparingUpdate" // inPlaceUpdate hooks hold it back
	LifecycleUpdating        LifecycleState = "Updating"        // being updated
	LifecycleUpdated         LifecycleState = "Updated"         // the inPlaceUpdate hooks are not back yet
	LifecyclePreparingDelete LifecycleState = "PreparingDelete" // preDelete hooks hold its deletion back
)

// Lifecycle holds the hooks that must agree before a pod is taken into service, updated in place,
// or deleted.
type Lifecycle struct {
	// PreDelete holds back the deletion of a pod for as long as the hook is on it.
	PreDelete *LifecycleHook `json:"preDelete,omitempty"`
	// InPlaceUpdate holds back an update in place while the hook is on the pod. After the update,
	// the pod stays unavailable until the hook is on it again.
	InPlaceUpdate *LifecycleHook `json:"inPlaceUpdate,omitempty"`
	// PreNormal keeps a new pod unavailable until the hook is on it.
	PreNormal *LifecycleHook `json:"preNormal,omitempty"`
}

// LifecycleHook is on a pod that has any of these labels, with its value, or any of
// these finalizers.
type LifecycleHook struct {
	// LabelsHandler are labels with their values, and FinalizersHandler finalizers.
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
	// ImagePreDownloadParallelism is how many nodes pull the new images at once; default 1. A
	// percentage refers to the nodes.
	ImagePreDownloadParallelism *IntOrString `json:"imagePreDownloadParallelism,omitempty"`
	// ImagePreDownloadTimeoutSeconds bounds each pull; default 600.
	ImagePreDownloadTimeoutSeconds *int32 `json:"imagePreDownloadTimeoutSeconds,omitempty"`
	// ImagePreDownloadMinUpdatedReadyPods is how many pods have to be updated and
	// ready before images are pulled ahead for the rest.
	ImagePreDownloadMinUpdatedReadyPods *int32 `json:"imagePreDownloadMinUpdatedReadyPods,omitempty"`
}

// InPlaceState is the record of a pod's last update in place.
type InPlaceState struct {
	// Revision is the revision to which the pod was updated.
	Revision        string      `json:"revision"`
	UpdateTimestamp metav1.Time `json:"updateTimestamp"`
	// LastContainerStatuses holds, for each container whose image changed, what ran before.
	LastContainerStatuses map[string]InPlaceContainerStatus `json:"lastContainerStatuses,omitempty"`
	// NextContainerImages are the images of later batches, by container.
	NextContainerImages map[string]string `json:"nextContainerImages,omitempty"`
	// NextContainerRefMetadata are the labels and annotations that containers of
	// later batches read in their environment, by container.
	NextContainerRefMetadata map[string]metav1.ObjectMeta `json:"nextContainerRefMetadata,omitempty"`
	// NextContainerResources are the resources of later batches, by container.
	NextContainerResources map[string]corev1.ResourceRequirements `json:"nextContainerResources,omitempty"`
	// PreCheckBeforeNext must hold before the next batch.
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
	// ContainerID is Keelson's addition: OpenKruise compares only the image, and waits forever if
	// another tag has the same image.
	ContainerID string                      `json:"containerID,omitempty"`
	Resources   corev1.ResourceRequirements `json:"resources,omitempty"`
}

// InPlaceCheck is the condition for the next batch of containers.
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
