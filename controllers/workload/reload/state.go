package reload

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// Begin returns the reload state that an update in place gives a pod, beside new annotations by key; nil
// removes one. changes is false if the reload state stays as it is. A new method for a reload that has
// not ended begins that reload again: the method may be what was wrong.
func Begin(pod *corev1.Pod, annotations map[string]*string, now time.Time) (state *string, changes bool, err error) {
	version, changes := annotations[v1beta1.AnnotationConfigurationVersion]
	method, set := annotations[v1beta1.AnnotationReload]
	if !changes {
		ahead, err := stateOf(pod)
		if !set || err == nil && ended(ahead) {
			return nil, false, nil
		}
		version = new(pod.Annotations[v1beta1.AnnotationConfigurationVersion])
	}
	if old, has := pod.Annotations[v1beta1.AnnotationReload]; !set && has {
		method = &old
	}
	if version == nil {
		return nil, true, nil
	}
	s := v1beta1.ReloadState{Version: *version, Since: metav1.NewTime(now)}
	if method == nil {
		s.Result, s.Finished = v1beta1.ReloadNotAsked, &s.Since
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, false, fmt.Errorf("the reload state of a pod: %w", err)
	}
	return new(string(text)), true, nil
}

// stateOf parses the reload state of a pod; nil: it was never told to reload. Without a method, only a state
// that says so counts. A state of another version than the pod has says nothing of that version: the reload is ahead. Another
// controller can have updated the pod.
func stateOf(pod *corev1.Pod) (*v1beta1.ReloadState, error) {
	text, has := pod.Annotations[v1beta1.AnnotationReloadState]
	version, versioned := pod.Annotations[v1beta1.AnnotationConfigurationVersion]
	_, told := pod.Annotations[v1beta1.AnnotationReload]
	if !has || !versioned {
		return nil, nil //nolint:nilnil // no state is no error
	}
	var s v1beta1.ReloadState
	if err := json.Unmarshal([]byte(text), &s); err != nil && told {
		return nil, fmt.Errorf("pod %s/%s: annotation %s: %w: delete the pod", pod.Namespace, pod.Name, v1beta1.AnnotationReloadState, err)
	}
	switch {
	case !told && (s.Result != v1beta1.ReloadNotAsked || s.Version != version):
		return nil, nil //nolint:nilnil // as above
	case s.Version != version || told && s.Result == v1beta1.ReloadNotAsked:
		return &v1beta1.ReloadState{Version: version, Since: s.Since}, nil
	}
	s.Retries = max(s.Retries, 0) // who can edit the pod can write any number
	return &s, nil
}

// Complete reports whether a pod has no reload ahead: its container has answered that it runs the
// configuration of the pod, or was never told to. A state that can't be parsed is not complete.
func Complete(pod *corev1.Pod) bool {
	s, err := stateOf(pod)
	return err == nil && ended(s)
}

// ended reports whether a reload has ended well, or there was none.
func ended(s *v1beta1.ReloadState) bool {
	return s == nil || s.Result == v1beta1.Reloaded || s.Result == v1beta1.ReloadNotAsked
}

// Failed reports whether the last reload of a pod has failed.
func Failed(pod *corev1.Pod) bool {
	s, err := stateOf(pod)
	return err == nil && s != nil && s.Result == v1beta1.ReloadFailed
}

// FinishedAt returns when the last reload of a pod was complete; the zero time: there was none. A container
// that watches its files is not asked: then it is when the pod got them.
func FinishedAt(pod *corev1.Pod) time.Time {
	s, err := stateOf(pod)
	if err != nil || s == nil || !ended(s) || s.Finished == nil {
		return time.Time{}
	}
	return s.Finished.Time
}

// Describe says in a few words how the reload of a pod stands; "": there is none ahead. An annotation that
// can't be parsed is described, too.
func Describe(pod *corev1.Pod) string {
	s, err := stateOf(pod)
	switch {
	case err != nil:
		return "the annotation " + v1beta1.AnnotationReloadState + " is invalid"
	case ended(s):
		return ""
	case s.Result == v1beta1.ReloadFailed:
		return "reload failed: " + s.Message
	}
	return "reloading its configuration"
}

// Request is a reload that a pod has ahead.
type Request struct {
	method *v1beta1.ReloadMethod
	state  v1beta1.ReloadState
	begun  time.Time // when the container could begin
}

// Due returns the reload that a pod has ahead; nil: there is none. A pod that ends has none: its address may
// already be that of another pod. The error says which annotation is invalid.
func Due(pod *corev1.Pod) (*Request, error) {
	s, err := stateOf(pod)
	ends := pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if err != nil || ended(s) || ends {
		return nil, err
	}
	m, err := parse(pod.Annotations[v1beta1.AnnotationReload])
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: annotation %s: %w: delete the pod, or mend its annotation", pod.Namespace, pod.Name, v1beta1.AnnotationReload, err)
	}
	return &Request{method: m, state: *s, begun: begun(pod, s)}, nil
}

// begun returns when a container could begin to reload. An update that changes an image, too, has its
// container started first. The gate opens when the new image runs.
func begun(pod *corev1.Pod, s *v1beta1.ReloadState) time.Time {
	at := s.Since.Time
	for _, c := range pod.Status.Conditions {
		if c.Type == v1beta1.InPlaceUpdateReady && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

// finished returns the strategic merge patch of a pod whose container has reloaded.
func (r *Request) finished(pod *corev1.Pod, now time.Time) ([]byte, error) {
	s := r.state
	s.Result, s.Message, s.Finished = v1beta1.Reloaded, "", new(metav1.NewTime(now))
	return patchOf(pod, s)
}

// failed returns the strategic merge patch of a pod with the reason of a failure; nil: the pod has one. The
// first reason stays, as a container could give another one each time, and each is a write.
func (r *Request) failed(pod *corev1.Pod, message string) ([]byte, error) {
	if r.state.Result == v1beta1.ReloadFailed {
		return nil, nil
	}
	s := r.state
	s.Result, s.Message = v1beta1.ReloadFailed, message
	return patchOf(pod, s)
}

// again returns a patch that changes the pod, so that its kubelet writes the files once more.
func (r *Request) again(pod *corev1.Pod) ([]byte, error) {
	s := r.state
	s.Retries++
	return patchOf(pod, s)
}

func patchOf(pod *corev1.Pod, s v1beta1.ReloadState) ([]byte, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("the reload state of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	out, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "annotations": map[string]string{v1beta1.AnnotationReloadState: string(text)},
	}})
	if err != nil {
		return nil, fmt.Errorf("the reload state of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return out, nil
}
