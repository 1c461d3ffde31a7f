package inplace

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/reload"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// Reasons of the condition InPlaceUpdateReady.
const (
	ReasonStart = "StartInPlaceUpdate"
	ReasonDone  = "InPlaceUpdateComplete"
)

// Step is the next step of a pod. The zero step means to wait until the pod changes.
type Step struct {
	// Condition is the new condition InPlaceUpdateReady, for the status of the pod.
	Condition *corev1.PodCondition
	// Resize is a strategic merge patch of the subresource resize. It is written first.
	Resize []byte
	// Patch is a strategic merge patch of the pod.
	Patch []byte
	// Reload is a reload that the container has ahead.
	Reload *reload.Request
	// After is when to try again without a change of the pod; 0 means never.
	After time.Duration
	// Done: the pod runs what its spec says.
	Done bool
	// Waits is what the pod is waiting for.
	Waits string
}

// Begin returns the next step of a pod to another revision. It returns an error if the state of
// the update cannot be encoded.
func Begin(pod *corev1.Pod, plan *Plan, to string, grace time.Duration, now time.Time) (Step, error) {
	if plan.stops(pod) && HasGate(pod) {
		c := condition(pod)
		if c == nil || c.Status != corev1.ConditionFalse {
			return Step{Condition: gate(corev1.ConditionFalse, ReasonStart, now)}, nil
		}
		if left := c.LastTransitionTime.Add(grace).Sub(now); grace > 0 && left > 0 {
			return Step{After: left, Waits: "the grace period"}, nil
		}
	}
	state := v1beta1.InPlaceState{
		Revision: to, UpdateTimestamp: metav1.NewTime(now), NextContainerImages: plan.Images, NextContainerResources: plan.Resources,
		UpdateImages: len(plan.Images) > 0, UpdateResources: len(plan.Resources) > 0,
	}
	if len(plan.Resources) > 0 {
		// The record comes first, and has all as still to be done: a resize that the API server refuses
		// must not pass for one that is done.
		return record(pod, state, plan)
	}
	return batch(pod, state, plan, now)
}

// Complete reports whether a pod runs what its last update in place asked for, whatever its readiness: its
// containers are the new ones, and have read the new configuration.
func Complete(pod *corev1.Pod) bool { return ContainersUpdated(pod) && reload.Complete(pod) }

// ContainersUpdated reports whether the containers of a pod are those of its last update in place. A pod
// whose record cannot be parsed has other ones. The gate says so of images, and nothing says so of a
// resize, or of a pod without the gate.
func ContainersUpdated(pod *corev1.Pod) bool {
	state, updated, err := stateOf(pod)
	switch {
	case err != nil || len(state.NextContainerImages)+len(state.NextContainerResources) > 0:
		return false
	case !updated:
		return true
	case HasGate(pod) && !state.UpdateResources:
		return Open(pod)
	}
	return incomplete(pod, state) == ""
}

// Settle returns the next step of a pod that stays at its revision. It returns an error if the
// state annotation of the pod is invalid.
func Settle(pod *corev1.Pod, now time.Time) (Step, error) {
	state, updated, err := stateOf(pod)
	if err != nil {
		return Step{}, err
	}
	if updated {
		if what := incomplete(pod, state); what != "" {
			return Step{Waits: what}, nil
		}
		if len(state.NextContainerImages)+len(state.NextContainerResources) > 0 {
			if what := notReady(pod, state.PreCheckBeforeNext); what != "" {
				return Step{Waits: what}, nil
			}
			return batch(pod, state, &Plan{}, now)
		}
	}
	if c := condition(pod); HasGate(pod) && (c == nil || c.Status != corev1.ConditionTrue) {
		return Step{Condition: gate(corev1.ConditionTrue, ReasonDone, now)}, nil
	}
	due, err := reload.Due(pod)
	if err != nil || due != nil {
		return Step{Reload: due, Waits: "the container to reload its configuration"}, err
	}
	return Step{Done: true}, nil
}

// HasGate reports whether a pod has the readiness gate InPlaceUpdateReady.
func HasGate(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == v1beta1.InPlaceUpdateReady })
}

// Open reports whether the gate is open, or there is no gate. The kubelet may not have seen the
// condition yet.
func Open(pod *corev1.Pod) bool {
	c := condition(pod)
	return !HasGate(pod) || c != nil && c.Status == corev1.ConditionTrue
}

// AddGate adds the readiness gate to the spec of a pod, unless it has the gate.
func AddGate(spec *corev1.PodSpec) {
	if !HasGate(&corev1.Pod{Spec: *spec}) {
		spec.ReadinessGates = append(spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: v1beta1.InPlaceUpdateReady})
	}
}

func condition(pod *corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1beta1.InPlaceUpdateReady })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}

func gate(status corev1.ConditionStatus, reason string, now time.Time) *corev1.PodCondition {
	return &corev1.PodCondition{Type: v1beta1.InPlaceUpdateReady, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(now)}
}

// stops reports whether the change restarts a container.
func (p *Plan) stops(pod *corev1.Pod) bool {
	return len(p.Images) > 0 || slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		_, resized := p.Resources[c.Name]
		return resized && slices.ContainsFunc(c.ResizePolicy, func(r corev1.ContainerResizePolicy) bool { return r.RestartPolicy == corev1.RestartContainer })
	})
}

// batch returns a step that changes the unchanged containers of the highest priority, and
// records the remaining changes in the state.
func batch(pod *corev1.Pod, state v1beta1.InPlaceState, plan *Plan, now time.Time) (Step, error) {
	names := first(pod, state)
	images, resources := state.NextContainerImages, state.NextContainerResources
	state.NextContainerImages, state.NextContainerResources, state.PreCheckBeforeNext = without(images, names), without(resources, names), nil
	if len(state.NextContainerImages)+len(state.NextContainerResources) > 0 {
		state.PreCheckBeforeNext = &v1beta1.InPlaceCheck{ContainersRequiredReady: names}
	}
	state.LastContainerStatuses = maps.Clone(state.LastContainerStatuses)
	if state.LastContainerStatuses == nil {
		state.LastContainerStatuses = map[string]v1beta1.InPlaceContainerStatus{}
	}
	var containers, resized []any
	for _, name := range names {
		s := status(pod, name)
		if image, ok := images[name]; ok {
			state.LastContainerStatuses[name] = v1beta1.InPlaceContainerStatus{ImageID: s.ImageID, ContainerID: changes(pod, s, image)}
			containers = append(containers, map[string]any{"name": name, "image": image})
		}
		if r, ok := resources[name]; ok {
			resized = append(resized, map[string]any{"name": name, "resources": r})
		}
	}
	if len(names) > 0 {
		state.ContainerBatchesRecord = append(slices.Clone(state.ContainerBatchesRecord), v1beta1.InPlaceBatch{Timestamp: metav1.NewTime(now), Containers: names})
	}
	step, err := record(pod, state, plan, containers...)
	if err != nil {
		return Step{}, err
	}
	if len(resized) > 0 {
		if step.Resize, err = json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "spec": map[string]any{"containers": resized}}); err != nil {
			return Step{}, fmt.Errorf("the patch of an update in place: %w", err)
		}
	}
	return step, nil
}

// record returns a step that writes the state, the labels and annotations of a plan, and new images
// of containers.
func record(pod *corev1.Pod, state v1beta1.InPlaceState, plan *Plan, containers ...any) (Step, error) {
	text, err := json.Marshal(state)
	if err != nil {
		return Step{}, fmt.Errorf("the state of an update in place: %w", err)
	}
	labels, annotations := maps.Clone(plan.Labels), maps.Clone(plan.Annotations)
	put(&labels, revision.Label, revision.LabelLike(pod, state.Revision))
	put(&annotations, v1beta1.AnnotationInPlaceState, string(text))
	told, changes, err := reload.Begin(pod, plan.Annotations, state.UpdateTimestamp.Time)
	if err != nil {
		return Step{}, err
	}
	if changes {
		annotations[v1beta1.AnnotationReloadState] = told
	}
	patch := map[string]any{"metadata": map[string]any{"uid": pod.UID, "labels": labels, "annotations": annotations}}
	if len(containers) > 0 {
		patch["spec"] = map[string]any{"containers": containers}
	}
	var step Step
	if step.Patch, err = json.Marshal(patch); err != nil {
		return Step{}, fmt.Errorf("the patch of an update in place: %w", err)
	}
	return step, nil
}

// changes returns the ID of the container that a new container must replace; "" if none must. If
// the running image is wanted again before the last change took effect, the kubelet may have
// missed that change. The kubelet then keeps the container.
func changes(pod *corev1.Pod, is corev1.ContainerStatus, image string) string {
	before, _, err := stateOf(pod)
	if err == nil && before.LastContainerStatuses[is.Name].ContainerID == is.ContainerID && sameImage(is.Image, image) {
		return ""
	}
	return is.ContainerID
}

func put(in *map[string]*string, key, value string) {
	if *in == nil {
		*in = map[string]*string{}
	}
	(*in)[key] = &value
}

func without[V any](m map[string]V, names []string) map[string]V {
	m = maps.Clone(m)
	for _, name := range names {
		delete(m, name)
	}
	return m
}

// first returns the containers of the highest priority that still have to change, in the order
// of the pod.
func first(pod *corev1.Pod, state v1beta1.InPlaceState) []string {
	var names []string
	highest := 0
	for _, c := range pod.Spec.Containers {
		_, image := state.NextContainerImages[c.Name]
		_, resources := state.NextContainerResources[c.Name]
		if !image && !resources {
			continue
		}
		switch p := priority(c); {
		case len(names) == 0 || p > highest:
			names, highest = []string{c.Name}, p
		case p == highest:
			names = append(names, c.Name)
		}
	}
	return names
}

// priority returns the priority of a container; 0 if none is set, or it is not a number.
func priority(c corev1.Container) int {
	for _, e := range c.Env {
		if e.Name == v1beta1.EnvContainerPriority {
			n, err := strconv.Atoi(e.Value)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// stateOf parses the state of the last update in place from the annotation of a pod; false if
// there is none.
func stateOf(pod *corev1.Pod) (v1beta1.InPlaceState, bool, error) {
	var state v1beta1.InPlaceState
	text, ok := pod.Annotations[v1beta1.AnnotationInPlaceState]
	if !ok {
		return state, false, nil
	}
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		return state, false, fmt.Errorf("pod %s/%s: annotation %s: %w: delete the pod, or mend the annotation", pod.Namespace, pod.Name, v1beta1.AnnotationInPlaceState, err)
	}
	return state, true, nil
}

func status(pod *corev1.Pod, container string) corev1.ContainerStatus {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == container {
			return s
		}
	}
	return corev1.ContainerStatus{}
}

func notReady(pod *corev1.Pod, check *v1beta1.InPlaceCheck) string {
	if check == nil {
		return ""
	}
	for _, name := range check.ContainersRequiredReady {
		if !status(pod, name).Ready {
			return "container " + name + " to be ready before the next ones change"
		}
	}
	return ""
}
