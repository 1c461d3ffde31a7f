// Package podclient writes pods on behalf of a workload. The deletions and patches that it
// builds carry the UID of the pod that was read. They therefore never apply to a later pod with
// the same name. The workload then waits until its informer has shown the write.
package podclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
	"github.com/keelson-io/keelson/controllers/workload/reload"
	"github.com/keelson-io/keelson/controllers/workload/slowstart"
)

// Gather is how long a reconcile is delayed after an event of a pod or a claim. Events come in bursts, and
// one reconcile handles all pods of the workload.
const Gather = 100 * time.Millisecond

// AtOnce bounds the requests that one workload has in flight.
const AtOnce = 32

// Client writes the pods of one workload, during one reconcile.
type Client struct {
	API    kubernetes.Interface
	Expect *expectations.Expectations
	Owner  types.UID
	// Hooks are the lifecycle hooks of the spec of the workload; nil means none.
	Hooks *v1beta1.Lifecycle
	// Reloads tells containers to reload their configuration.
	Reloads *reload.Caller
	Events  events.EventRecorder
	Now     time.Time
}

// Available reports whether a pod is ready for at least minReadySeconds, runs what its last update in
// place asked for, and is not held by a lifecycle state. A reload begins the time again, as a restart does.
// If only time is missing, it also returns how much.
func (c Client) Available(pod *corev1.Pod, minReadySeconds int32) (bool, time.Duration) {
	if !Ready(pod) || !lifecycle.Normal(pod) || !inplace.Complete(pod) {
		return false, 0
	}
	since, _ := podorder.ReadySince(pod)
	if at := reload.FinishedAt(pod); at.After(since) {
		since = at
	}
	left := since.Add(time.Duration(minReadySeconds) * time.Second).Sub(c.Now)
	if podorder.Available(pod, minReadySeconds, c.Now) && (left <= 0 || minReadySeconds == 0) {
		return true, 0
	}
	return false, left
}

// Ready reports whether a pod is ready, and both gates of this controller are open. The gates
// are checked because the kubelet may not have seen a closed gate yet.
func Ready(pod *corev1.Pod) bool {
	_, ready := podorder.ReadySince(pod)
	return ready && inplace.Open(pod) && lifecycle.Open(pod)
}

// Ended reports whether a pod has succeeded or failed, and runs nothing any more.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Active reports whether a pod has not ended, and is not being deleted.
func Active(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && !Ended(pod) }

// Create creates a pod, and opens its gates. If only a later write fails, it returns the pod and
// the error.
func (c Client) Create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	made, err := c.API.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	c.Expect.Wrote(c.Owner, made)
	_, _, err = c.Settle(ctx, made)
	return made, err
}

// Delete deletes a pod and returns true, also if the pod is gone already. If a hook blocks the
// deletion, it records the lifecycle state and returns false.
func (c Client) Delete(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if v := lifecycle.Judge(pod, c.Hooks, lifecycle.Delete, false); !v.Go {
		_, err := c.note(ctx, pod, v)
		return false, err
	}
	// The typed client drops the answer, which has the version to wait for.
	var answer corev1.Pod
	err := c.API.CoreV1().RESTClient().Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		Body(&metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}).Do(ctx).Into(&answer)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return true, nil // it is gone already
	case err != nil:
		return false, fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	c.Expect.Wrote(c.Owner, &answer)
	return true, nil
}

// Updated is what [Client.Update] did.
type Updated struct {
	// Pod is the pod after the writes.
	Pod *corev1.Pod
	// Patched: the pod has the new revision now.
	Patched bool
	// After is when to try again; 0 means when the pod changes.
	After time.Duration
}

// Update moves a pod towards another revision in place, as far as its hooks and its grace period
// allow now.
func (c Client) Update(ctx context.Context, pod *corev1.Pod, plan *inplace.Plan, to string, grace time.Duration) (Updated, error) {
	v := lifecycle.Judge(pod, c.Hooks, lifecycle.Update, false)
	pod, err := c.note(ctx, pod, v)
	if !v.Go || err != nil {
		return Updated{Pod: pod}, err
	}
	for {
		step, err := inplace.Begin(pod, plan, to, grace, c.Now)
		if err != nil {
			return Updated{Pod: pod}, err
		}
		if pod, err = c.step(ctx, pod, step); err != nil || step.Condition == nil {
			return Updated{Pod: pod, Patched: step.Patch != nil && err == nil, After: step.After}, err
		}
	}
}

// Settle completes what was begun with a pod that needs no other change. settled is true if
// nothing was written and nothing is due before the pod or its hooks change; the pod may still
// wait for its kubelet. after is when to call again without a change; 0 means never.
func (c Client) Settle(ctx context.Context, pod *corev1.Pod) (settled bool, after time.Duration, err error) {
	step, err := inplace.Settle(pod, c.Now)
	if err != nil {
		return false, 0, err
	}
	done := step.Done || step.Condition != nil && step.Condition.Status == corev1.ConditionTrue && reload.Complete(pod)
	v := lifecycle.Judge(pod, c.Hooks, lifecycle.Keep, done)
	gate := lifecycle.Gate(pod, v, c.Now)
	settled = step.Condition == nil && step.Patch == nil && step.Resize == nil && step.Reload == nil && step.After == 0 && gate == nil && hasState(pod, v)
	if step.Reload != nil {
		answer, err := c.Reloads.Ask(ctx, pod, step.Reload)
		if err != nil {
			return false, 0, err
		}
		if step.Patch, step.After = answer.Patch, answer.After; answer.Failed != "" {
			c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "ReloadFailed", "Reloading", "%s", answer.Failed)
		}
	}
	if step.Condition != nil && gate != nil { // both in one request
		pod, err = c.conditions(ctx, pod, step.Condition, gate)
	} else {
		pod, err = c.step(ctx, pod, step)
	}
	if err != nil {
		return false, 0, err
	}
	_, err = c.note(ctx, pod, v)
	return settled && err == nil, step.After, err
}

// SettleAll calls [Client.Settle] for pods, and again with each delay. An error of one pod, such as a
// broken annotation, does not keep the others out of service. settled is by index.
func (c Client) SettleAll(ctx context.Context, pods []*corev1.Pod, again func(time.Duration)) (settled []bool, err error) {
	settled = make([]bool, len(pods))
	errs := make([]error, len(pods))
	_, _ = slowstart.Run(len(pods), AtOnce, func(i int) error {
		var after time.Duration
		settled[i], after, errs[i] = c.Settle(ctx, pods[i])
		again(after)
		return nil
	})
	return settled, errors.Join(errs...)
}

// step writes the next step of an update in place, and returns the pod after the write.
func (c Client) step(ctx context.Context, pod *corev1.Pod, s inplace.Step) (*corev1.Pod, error) {
	if s.Condition != nil {
		return c.conditions(ctx, pod, s.Condition)
	}
	var err error
	if s.Resize != nil {
		pod, err = c.Patch(ctx, pod, s.Resize, "resize")
	}
	if s.Patch != nil && err == nil {
		pod, err = c.Patch(ctx, pod, s.Patch)
	}
	return pod, err
}

// conditions writes conditions into the status of a pod, and keeps all other conditions.
func (c Client) conditions(ctx context.Context, pod *corev1.Pod, are ...*corev1.PodCondition) (*corev1.Pod, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"conditions": are},
	})
	if err != nil {
		return pod, fmt.Errorf("conditions of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return c.Patch(ctx, pod, patch, "status")
}

// Patch writes a strategic merge patch, which must name the UID of the pod: the API server then
// refuses to change a later pod of the same name. A pod that no longer exists is not an error.
func (c Client) Patch(ctx context.Context, pod *corev1.Pod, patch []byte, subresources ...string) (*corev1.Pod, error) {
	var named struct{ Metadata struct{ UID types.UID } }
	if err := json.Unmarshal(patch, &named); err != nil || named.Metadata.UID != pod.UID {
		return pod, fmt.Errorf("patch pod %s/%s: the patch does not name UID %s", pod.Namespace, pod.Name, pod.UID)
	}
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

// note writes the lifecycle state of a pod, if it changes, and returns the pod after that. The gate
// is written first: a reader of a state with MarkPodNotReady can rely on the closed gate.
func (c Client) note(ctx context.Context, pod *corev1.Pod, v lifecycle.Verdict) (*corev1.Pod, error) {
	if gate := lifecycle.Gate(pod, v, c.Now); gate != nil {
		var err error
		if pod, err = c.conditions(ctx, pod, gate); err != nil {
			return pod, err
		}
	}
	if hasState(pod, v) {
		return pod, nil
	}
	patch, err := lifecycle.Patch(pod, v.State, c.Now)
	if err != nil {
		return pod, err
	}
	return c.Patch(ctx, pod, patch)
}

// hasState reports whether a pod has the lifecycle state of the verdict already.
func hasState(pod *corev1.Pod, v lifecycle.Verdict) bool {
	return v.State == "" || v.State == lifecycle.StateOf(pod)
}
