// Package lifecycle implements the lifecycle hooks of pods: what must be agreed before a pod
// serves, is updated in place, or is deleted.
//
// A hook is set on a pod by labels or finalizers. The label lifecycle.apps.kruise.io/state of a
// pod is what the pod is waiting for:
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

// Action is what a workload wants to do with a pod.
type Action int

// The values of [Action].
const (
	Keep   Action = iota // the pod is as it should be, or must wait
	Update               // update in place
	Delete
)

// Verdict is the answer of the hooks of a pod to an intent.
type Verdict struct {
	// State is the new lifecycle state of the pod, or its present one; "" means no state.
	State v1beta1.LifecycleState
	// Go: the intent can be carried out now.
	Go bool
	// NotReady: the pod must be out of its Services for now.
	NotReady bool
}

// StateOf returns the lifecycle state of a pod; "" if there is none.
func StateOf(pod *corev1.Pod) v1beta1.LifecycleState {
	return v1beta1.LifecycleState(pod.Labels[v1beta1.LabelLifecycle])
}

// Normal reports whether the lifecycle state allows a pod to serve: the state is Normal or
// missing.
func Normal(pod *corev1.Pod) bool {
	s := StateOf(pod)
	return s == "" || s == v1beta1.LifecycleNormal
}

// Judge returns whether an intent can be carried out on a pod, and its lifecycle state. updated
// says that a started update in place is complete; only Keep uses it. Pods of a workload whose hooks
// are nil get no state; with an empty [v1beta1.Lifecycle] they do.
func Judge(pod *corev1.Pod, hooks *v1beta1.Lifecycle, intent Action, updated bool) Verdict {
	if hooks == nil {
		if hooks = (&v1beta1.Lifecycle{}); intent == Keep && StateOf(pod) == "" {
			return Verdict{}
		}
	}
	is := StateOf(pod)
	switch intent {
	case Delete:
		if holds(hooks.PreDelete, pod) {
			return Verdict{State: v1beta1.LifecyclePreparingDelete, NotReady: hooks.PreDelete.MarkPodNotReady}
		}
		return Verdict{State: is, Go: true}
	case Update:
		if is == v1beta1.LifecyclePreparingNormal && !Agrees(hooks.PreNormal, pod) {
			return Verdict{State: is, Go: true} // it does not serve yet
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
	return keepState(pod, hooks, updated)
}

// keepState returns the way back to Normal for a pod with the intent Keep.
func keepState(pod *corev1.Pod, hooks *v1beta1.Lifecycle, updated bool) Verdict {
	is := StateOf(pod)
	notReady := hooks.InPlaceUpdate != nil && hooks.InPlaceUpdate.MarkPodNotReady
	switch is {
	case v1beta1.LifecyclePreparingNormal:
		if !Agrees(hooks.PreNormal, pod) {
			return Verdict{State: is}
		}
	case v1beta1.LifecycleUpdating:
		if !updated {
			return Verdict{State: is, NotReady: notReady}
		}
		if hooks.InPlaceUpdate != nil && !Agrees(hooks.InPlaceUpdate, pod) {
			return Verdict{State: v1beta1.LifecycleUpdated}
		}
	case v1beta1.LifecycleUpdated:
		if hooks.InPlaceUpdate != nil && !Agrees(hooks.InPlaceUpdate, pod) {
			return Verdict{State: is}
		}
	case v1beta1.LifecyclePreparingDelete:
		// The deletion is cancelled, unless the hook took the pod out of its Services: the owner
		// of the hook expects the end of the pod.
		if hooks.PreDelete != nil && hooks.PreDelete.MarkPodNotReady {
			return Verdict{State: is, NotReady: true}
		}
	case "", v1beta1.LifecycleNormal, v1beta1.LifecyclePreparingUpdate: // "": it is older than the hooks
	}
	if pod.Spec.NodeName == "" && is != v1beta1.LifecycleNormal {
		return Verdict{State: v1beta1.LifecyclePreparingNormal}
	}
	return Verdict{State: v1beta1.LifecycleNormal}
}

// holds reports whether a hook blocks a pod: the pod has any label or finalizer of the hook.
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

// Agrees reports whether a pod has all labels and finalizers of a hook. A hook that is nil wants none.
func Agrees(h *v1beta1.LifecycleHook, pod *corev1.Pod) bool {
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

// Patch returns a strategic merge patch that sets a lifecycle state, and the time of the change.
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
