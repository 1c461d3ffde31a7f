// Package lifecycle has the hooks of pods: who must agree before a pod is taken into
// service, updated in place, or deleted.
//
// A hook is on a pod by a label or a finalizer. What a pod is waiting for is in its
// label lifecycle.apps.kruise.io/state:
//
//	PreparingNormal → Normal → PreparingUpdate → Updating → Updated → Normal
//	any of them → PreparingDelete → deleted, or back to Normal
package lifecycle

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// Intent is what a workload wants with a pod.
type Intent int

// The values of [Intent].
const (
	Keep   Intent = iota // it is as it should be, or is not its turn
	Update               // in place
	Delete
)

// Verdict is what the hooks of a pod say to an intent.
type Verdict struct {
	// State is what the label becomes, if it is another one.
	State v1beta1.LifecycleState
	// Go: what is intended can be done now.
	Go bool
	// NotReady: the pod is to be out of its Services until then.
	NotReady bool
}

// StateOf is where a pod stands; "" where nobody noted it.
func StateOf(pod *corev1.Pod) v1beta1.LifecycleState {
	return v1beta1.LifecycleState(pod.Labels[v1beta1.LabelLifecycle])
}

// Normal reports whether a pod may serve: nothing that it waits for keeps it from that.
func Normal(pod *corev1.Pod) bool {
	s := StateOf(pod)
	return s == "" || s == v1beta1.LifecycleNormal
}

// AtBirth is the state that a pod is created with; "": no label.
func AtBirth(hooks *v1beta1.Lifecycle) v1beta1.LifecycleState {
	switch {
	case hooks == nil:
		return ""
	case hooks.PreNormal != nil:
		return v1beta1.LifecyclePreparingNormal
	}
	return v1beta1.LifecycleNormal
}

// Judge says whether a pod can go on, and which state that takes it to. Updated reports
// that an update in place which was begun has come to its end.
func Judge(pod *corev1.Pod, hooks *v1beta1.Lifecycle, intent Intent, updated bool) Verdict {
	if hooks == nil {
		hooks = &v1beta1.Lifecycle{}
	}
	is := StateOf(pod)
	switch intent {
	case Delete:
		if holds(hooks.PreDelete, pod) {
			return Verdict{State: v1beta1.LifecyclePreparingDelete, NotReady: hooks.PreDelete.MarkPodNotReady}
		}
		return Verdict{State: is, Go: true}
	case Update:
		if is == v1beta1.LifecyclePreparingNormal && !agrees(hooks.PreNormal, pod) {
			return Verdict{State: is, Go: true} // it serves nobody yet
		}
		if is != v1beta1.LifecycleUpdating && holds(hooks.InPlaceUpdate, pod) {
			return Verdict{State: v1beta1.LifecyclePreparingUpdate, NotReady: hooks.InPlaceUpdate.MarkPodNotReady}
		}
		if hooks.InPlaceUpdate == nil {
			return Verdict{State: is, Go: true}
		}
		return Verdict{State: v1beta1.LifecycleUpdating, Go: true, NotReady: hooks.InPlaceUpdate.MarkPodNotReady}
	case Keep:
	}
	return kept(pod, hooks, updated)
}

// kept is how a pod comes back to Normal that nothing is wanted of.
func kept(pod *corev1.Pod, hooks *v1beta1.Lifecycle, updated bool) Verdict {
	is := StateOf(pod)
	notReady := hooks.InPlaceUpdate != nil && hooks.InPlaceUpdate.MarkPodNotReady
	switch is {
	case v1beta1.LifecyclePreparingNormal:
		if !agrees(hooks.PreNormal, pod) {
			return Verdict{State: is}
		}
	case v1beta1.LifecycleUpdating:
		if !updated {
			return Verdict{State: is, NotReady: notReady}
		}
		if hooks.InPlaceUpdate != nil && !agrees(hooks.InPlaceUpdate, pod) {
			return Verdict{State: v1beta1.LifecycleUpdated}
		}
	case v1beta1.LifecycleUpdated:
		if hooks.InPlaceUpdate != nil && !agrees(hooks.InPlaceUpdate, pod) {
			return Verdict{State: is}
		}
	case v1beta1.LifecyclePreparingDelete:
		// Called back, but for one that was taken out of its Services: who held the hook
		// has counted on its end.
		if hooks.PreDelete != nil && hooks.PreDelete.MarkPodNotReady {
			return Verdict{State: is, NotReady: true}
		}
	case "": // it served before there were hooks
		if *hooks == (v1beta1.Lifecycle{}) {
			return Verdict{}
		}
	case v1beta1.LifecycleNormal, v1beta1.LifecyclePreparingUpdate:
	}
	return Verdict{State: v1beta1.LifecycleNormal}
}

// holds reports whether a hook is on a pod: any label or finalizer of it.
func holds(h *v1beta1.LifecycleHook, pod *corev1.Pod) bool {
	if h == nil {
		return false
	}
	for k, v := range h.LabelsHandler {
		if is, has := pod.Labels[k]; has && is == v {
			return true
		}
	}
	return slices.ContainsFunc(h.FinalizersHandler, func(f string) bool { return slices.Contains(pod.Finalizers, f) })
}

// agrees reports whether all of a hook is on a pod.
func agrees(h *v1beta1.LifecycleHook, pod *corev1.Pod) bool {
	if h == nil {
		return true
	}
	for k, v := range h.LabelsHandler {
		if is, has := pod.Labels[k]; !has || is != v {
			return false
		}
	}
	return !slices.ContainsFunc(h.FinalizersHandler, func(f string) bool { return !slices.Contains(pod.Finalizers, f) })
}

// Patch is a strategic merge patch that notes a state, and since when.
func Patch(pod *corev1.Pod, state v1beta1.LifecycleState, now time.Time) ([]byte, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         pod.UID,
		"labels":      map[string]any{v1beta1.LabelLifecycle: state},
		"annotations": map[string]any{v1beta1.AnnotationLifecycleSince: now.UTC().Format(time.RFC3339)},
	}})
	if err != nil {
		return nil, fmt.Errorf("the state of a pod: %w", err)
	}
	return patch, nil
}
