package batch

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// failing returns the reasons for which a kubelet lets a container wait that it can't run. The names
// are those of Kubernetes' pkg/kubelet: kuberuntime, images and container.
func failing() map[string]bool {
	return map[string]bool{
		"CrashLoopBackOff": true, "ErrImagePull": true, "ImagePullBackOff": true, "ErrImageNeverPull": true, "InvalidImageName": true,
		"ImageInspectError": true, "RegistryUnavailable": true, "SignatureValidationFailed": true,
		"CreateContainerConfigError": true, "CreateContainerError": true, "RunContainerError": true, "PreStartHookError": true, "PostStartHookError": true,
	}
}

// Failing reports whether a pod has failed, or a container of it waits because it can't run.
func Failing(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if w := statuses[i].State.Waiting; w != nil && failing()[w.Reason] {
				return true
			}
		}
	}
	return false
}

// Failed reports whether an updated pod counts as failed. One that has failed counts until it is
// available: between two attempts its containers run. was is the status of the update; nil: there is
// none.
func Failed(pod *corev1.Pod, available bool, was *v1beta1.BatchStatus) bool {
	return !available && (Failing(pod) || was != nil && slices.Contains(was.FailedPods, pod.Name))
}

// Tell records an event when a batch begins, and when failed pods stop the update.
func Tell(recorder events.EventRecorder, of runtime.Object, was, is *v1beta1.BatchStatus) {
	if was == nil {
		was = &v1beta1.BatchStatus{}
	}
	switch {
	case is == nil:
	case is.Reason == v1beta1.BatchFailed && was.Reason != v1beta1.BatchFailed:
		recorder.Eventf(of, nil, corev1.EventTypeWarning, "BatchFailed", "Updating", "batch %s of revision %s is stopped: %s", is.Batch, is.Revision, is.Message)
	case is.Number != was.Number || is.Revision != was.Revision:
		recorder.Eventf(of, nil, corev1.EventTypeNormal, "BatchBegins", "Updating", "batch %s of revision %s begins", is.Batch, is.Revision)
	}
}
