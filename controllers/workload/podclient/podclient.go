// Package podclient writes pods on behalf of a workload: each write is of the pod that
// was looked at, and none that came after it under its name, and the workload waits
// until its informer has shown it.
package podclient

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
)

// gather is how long a workload waits for more events of its pods before it is looked
// at: they come in crowds, and each look takes all of its pods.
const gather = 100 * time.Millisecond

// AtOnce bounds the requests that one workload has in flight.
const AtOnce = 32

// Client writes the pods of one workload, in one look at it.
type Client struct {
	API    kubernetes.Interface
	Expect *expectations.Expectations
	Owner  types.UID
	// Hooks are what the workload's spec has of them; nil: none.
	Hooks *v1beta1.Lifecycle
	Now   time.Time
}

// Available reports whether a pod serves, and has for long enough; if not for long
// enough, after which time it will have.
func (c Client) Available(pod *corev1.Pod, minReadySeconds int32) (bool, time.Duration) {
	if !Ready(pod) || !lifecycle.Normal(pod) {
		return false, 0
	}
	if podorder.Available(pod, minReadySeconds, c.Now) {
		return true, 0
	}
	since, _ := podorder.ReadySince(pod)
	return false, since.Add(time.Duration(minReadySeconds) * time.Second).Sub(c.Now)
}

// Ready reports whether a pod is ready, and none of its gates that are ours was closed:
// its kubelet may not have heard of it yet.
func Ready(pod *corev1.Pod) bool {
	_, ready := podorder.ReadySince(pod)
	return ready && inplace.Open(pod) && lifecycle.Open(pod)
}

// Create creates a pod, and opens its gates.
func (c Client) Create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	made, err := c.API.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	c.Expect.Wrote(c.Owner, made)
	_, _, err = c.Settle(ctx, made)
	return made, err
}

// Delete deletes a pod, or notes that its hooks hold it back: false.
func (c Client) Delete(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if v := lifecycle.Judge(pod, c.Hooks, lifecycle.Delete, false); !v.Go {
		return false, c.note(ctx, pod, v)
	}
	// The typed client drops the answer, and with it the version to wait for.
	var answer corev1.Pod
	err := c.API.CoreV1().RESTClient().Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		Body(&metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}).Do(ctx).Into(&answer)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return true, nil // it has gone already
	case err != nil:
		return false, fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	c.Expect.Wrote(c.Owner, &answer)
	return true, nil
}

// Update takes a pod as far to another revision as its hooks and its grace period let
// it go now. It returns whether its spec was changed, and when to look again; 0: when
// the pod changes.
func (c Client) Update(ctx context.Context, pod *corev1.Pod, plan *inplace.Plan, to string, grace time.Duration) (bool, time.Duration, error) {
	v := lifecycle.Judge(pod, c.Hooks, lifecycle.Update, false)
	if !v.Go {
		return false, 0, c.note(ctx, pod, v)
	}
	if err := c.note(ctx, pod, v); err != nil {
		return false, 0, err
	}
	for {
		step, err := inplace.Begin(pod, plan, to, grace, c.Now)
		if err != nil {
			return false, 0, err
		}
		if pod, err = c.step(ctx, pod, step); err != nil || step.Condition == nil {
			return step.Patch != nil && err == nil, step.After, err
		}
	}
}

// Settle brings a pod to the end of what was begun with it: nobody wants anything else
// of it. It returns whether nothing was to be done, be it that its kubelet has to do
// something first, so that nobody has to ask again before the pod or its hooks change;
// and when to look again though they don't, 0: never.
func (c Client) Settle(ctx context.Context, pod *corev1.Pod) (settled bool, after time.Duration, err error) {
	step, err := inplace.Settle(pod, c.Now)
	if err != nil {
		return false, 0, err
	}
	done := step.Done || step.Condition != nil && step.Condition.Status == corev1.ConditionTrue
	v := lifecycle.Judge(pod, c.Hooks, lifecycle.Keep, done)
	gate := lifecycle.Gate(pod, v, c.Now)
	settled = step.Condition == nil && step.Patch == nil && step.Resize == nil && step.After == 0 && gate == nil && stands(pod, v)
	if step.Condition != nil && gate != nil { // both in one write
		pod, err = c.conditions(ctx, pod, step.Condition, gate)
	} else {
		pod, err = c.step(ctx, pod, step)
	}
	if err != nil {
		return false, 0, err
	}
	err = c.note(ctx, pod, v)
	return settled && err == nil, step.After, err
}

// step writes what an update in place needs next, and returns the pod as it is then.
func (c Client) step(ctx context.Context, pod *corev1.Pod, s inplace.Step) (*corev1.Pod, error) {
	if s.Condition != nil {
		return c.conditions(ctx, pod, s.Condition)
	}
	var err error
	if s.Patch != nil {
		pod, err = c.Patch(ctx, pod, s.Patch)
	}
	if s.Resize != nil && err == nil {
		pod, err = c.Patch(ctx, pod, s.Resize, "resize")
	}
	return pod, err
}

// conditions writes conditions of a pod's status, and leaves the others alone.
func (c Client) conditions(ctx context.Context, pod *corev1.Pod, are ...*corev1.PodCondition) (*corev1.Pod, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"conditions": are},
	})
	if err != nil {
		return pod, fmt.Errorf("conditions of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return c.Patch(ctx, pod, patch, "status")
}

// Patch writes a strategic merge patch. A pod that has gone meanwhile needs none.
func (c Client) Patch(ctx context.Context, pod *corev1.Pod, patch []byte, subresources ...string) (*corev1.Pod, error) {
	answer, err := c.API.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, subresources...)
	if apierrors.IsNotFound(err) {
		return pod, nil
	}
	if err != nil {
		return pod, fmt.Errorf("patch pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	c.Expect.Wrote(c.Owner, answer)
	return answer, nil
}

// note writes where a pod stands among its hooks, where that is another place. The gate
// comes first: whoever reads of a state that takes a pod out of its Services can count
// on it.
func (c Client) note(ctx context.Context, pod *corev1.Pod, v lifecycle.Verdict) error {
	if gate := lifecycle.Gate(pod, v, c.Now); gate != nil {
		var err error
		if pod, err = c.conditions(ctx, pod, gate); err != nil {
			return err
		}
	}
	if stands(pod, v) {
		return nil
	}
	patch, err := lifecycle.Patch(pod, v.State, c.Now)
	if err == nil {
		_, err = c.Patch(ctx, pod, patch)
	}
	return err
}

// stands reports whether a pod is where its hooks want it.
func stands(pod *corev1.Pod, v lifecycle.Verdict) bool {
	return v.State == "" || v.State == lifecycle.StateOf(pod)
}
