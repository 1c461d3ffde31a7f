package batch

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/reload"
)

// noImage returns the reasons for which a kubelet lets a container wait whose image it can't get, and
// broken those for which it can't run it. The names are those of Kubernetes' pkg/kubelet: images,
// kuberuntime and container.
func noImage() map[string]bool {
	return map[string]bool{
		"ErrImagePull": true, "ImagePullBackOff": true, "ErrImageNeverPull": true, "InvalidImageName": true,
		"ImageInspectError": true, "RegistryUnavailable": true, "SignatureValidationFailed": true,
	}
}

func broken() map[string]bool {
	return map[string]bool{
		"CrashLoopBackOff": true, "CreateContainerConfigError": true, "CreateContainerError": true, "RunContainerError": true,
		"PreStartHookError": true, "PostStartHookError": true,
	}
}

// Failed reports whether a pod of the update revision counts as failed: its kubelet can't run a container
// of it, or a container has not read its new configuration. A pod that has failed counts until it is
// available: between two attempts its containers run. was is the status of the update to the revision, or of
// an earlier one; nil: there is none.
func Failed(pod *corev1.Pod, available bool, revision string, was *v1beta1.BatchStatus) bool {
	if available {
		return false
	}
	return failing(pod) || was != nil && was.Revision == revision && slices.Contains(was.FailedPods, pod.Name)
}

func failing(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed || reload.Failed(pod) {
		return true
	}
	for i := range pod.Status.InitContainerStatuses {
		if reason := waitsFor(&pod.Status.InitContainerStatuses[i]); noImage()[reason] || broken()[reason] {
			return true
		}
	}
	// Until an update in place is complete, a container may be that of the revision before. But the kubelet
	// that has read the spec says of the new image that it can't get it; an old one does not tell what it read.
	updated := inplace.ContainersUpdated(pod)
	read := pod.Status.ObservedGeneration == 0 || pod.Status.ObservedGeneration >= pod.Generation
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		reason := waitsFor(&s)
		return broken()[reason] && updated || noImage()[reason] && (updated || read)
	})
}

func waitsFor(s *corev1.ContainerStatus) string {
	if s.State.Waiting == nil {
		return ""
	}
	return s.State.Waiting.Reason
}

// Tell records an event when a batch begins, and when failed pods stop the update.
func Tell(recorder events.EventRecorder, of runtime.Object, was, is *v1beta1.BatchStatus) {
	if was == nil {
		was = &v1beta1.BatchStatus{}
	}
	switch {
	case is == nil || is.Reason == v1beta1.BatchDone:
	case is.Reason == v1beta1.BatchFailed && was.Reason != v1beta1.BatchFailed:
		recorder.Eventf(of, nil, corev1.EventTypeWarning, "BatchFailed", "Updating", "batch %s of revision %s is stopped: %s", is.Batch, is.Revision, is.Message)
	case is.Number != was.Number || is.Revision != was.Revision:
		recorder.Eventf(of, nil, corev1.EventTypeNormal, "BatchBegins", "Updating", "batch %s of revision %s begins", is.Batch, is.Revision)
	}
}
