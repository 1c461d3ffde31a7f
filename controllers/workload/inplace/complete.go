package inplace

import (
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// incomplete returns what the pod is waiting for until it runs as its spec says; "" if nothing.
func incomplete(pod *corev1.Pod, state v1beta1.InPlaceState) string {
	for _, c := range pod.Spec.Containers {
		is := status(pod, c.Name)
		if was, changed := state.LastContainerStatuses[c.Name]; changed && !runs(pod, c, is, was, state.UpdateTimestamp.Time) {
			return "container " + c.Name + " to run " + c.Image + because(is)
		}
		if state.UpdateResources && is.Resources != nil && !resized(c.Resources, *is.Resources) {
			return "container " + c.Name + " to be resized" + because(is)
		}
	}
	return ""
}

// runs reports whether a container runs the image of the spec.
//
// A changed imageID is sufficient. Tags of one digest share an imageID, and the runtime may then
// still report the old tag. In that case the container must be a new one. It must also report
// the image, or have started after the kubelet had read the spec.
func runs(pod *corev1.Pod, c corev1.Container, is corev1.ContainerStatus, was v1beta1.InPlaceContainerStatus, since time.Time) bool {
	if is.ImageID == "" {
		return false
	}
	if is.ImageID != was.ImageID {
		return true
	}
	if was.ContainerID == "" || is.ContainerID == "" { // OpenKruise recorded only the image, or the container need not change: see changes
		return is.State.Running != nil && sameImage(is.Image, c.Image)
	}
	if is.ContainerID == was.ContainerID || is.State.Running == nil {
		return false
	}
	read := pod.Status.ObservedGeneration >= pod.Generation && pod.Status.ObservedGeneration > 0
	return sameImage(is.Image, c.Image) || read || !is.State.Running.StartedAt.Time.Before(since)
}

// sameImage reports whether two image names are equivalent: "nginx" is
// "docker.io/library/nginx:latest".
func sameImage(a, b string) bool {
	if a == b {
		return true
	}
	na, err := reference.ParseDockerRef(a)
	if err != nil {
		return false
	}
	nb, err := reference.ParseDockerRef(b)
	return err == nil && na.String() == nb.String()
}

func resized(want, is corev1.ResourceRequirements) bool {
	for _, pair := range [][2]corev1.ResourceList{{want.Requests, is.Requests}, {want.Limits, is.Limits}} {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if amount, ok := pair[0][name]; ok && !equality.Semantic.DeepEqual(amount, pair[1][name]) {
				return false
			}
		}
	}
	return true
}

// because returns the reason for which a container waits, as a suffix of a message; "" if none
// is known.
func because(is corev1.ContainerStatus) string {
	w := is.State.Waiting
	if w == nil || w.Reason == "" {
		return ""
	}
	return ": " + w.Reason
}
