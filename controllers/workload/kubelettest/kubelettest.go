// Package kubelettest simulates the kubelets of the pods in a namespace of a real API server, as
// far as controllers of workloads need. A container whose image changes is restarted, and an
// image that cannot be pulled waits. A pod is ready when its containers and all of its gates
// are. It never changes the conditions of gates.
package kubelettest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/applier/apiservertest"
)

// Kubelet simulates the kubelets of all nodes. It is safe for concurrent use.
type Kubelet struct {
	t         testing.TB
	pods      kubernetes.Interface
	namespace string

	mu    sync.Mutex
	known map[types.UID]*corev1.Pod
	todo  map[types.UID]*corev1.Pod // pods to sync, as last seen
	none  string                    // an image that can't be pulled
	fails string                    // an image whose pods fail
	anew  bool                      // none or fails changed: sync all pods
	still bool                      // pods are not synced
	seen  []string                  // what happened to the pods, by the watch
}

// Start runs the pods of a namespace until the test ends. It fails the test if the pods cannot
// be listed.
func Start(t testing.TB, pods kubernetes.Interface, namespace string) *Kubelet {
	t.Helper()
	k := &Kubelet{t: t, pods: pods, namespace: namespace, known: map[types.UID]*corev1.Pod{}, todo: map[types.UID]*corev1.Pod{}}
	list, err := pods.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events := apiservertest.Watch(t, list.ResourceVersion, pods.CoreV1().Pods(namespace).Watch)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer events.Stop()
		k.run(t.Context(), list.Items, events.ResultChan())
	}()
	t.Cleanup(func() { <-ended })
	return k
}

// Lose makes an image impossible to pull from now on. It replaces the previous image of Lose.
func (k *Kubelet) Lose(image string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.none, k.anew = image, true
}

// Pause stops all kubelets, or lets them go on.
func (k *Kubelet) Pause(still bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.still, k.anew = still, true
}

// Fail makes the pods of an image fail from now on, like evicted pods. It replaces the previous
// image of Fail.
func (k *Kubelet) Fail(image string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fails, k.anew = image, true
}

// Happened returns what happened to the pods since its last call: ADDED, "deleting" and then
// DELETED, "gate STATUS" of InPlaceUpdateReady, and "image IMAGE" of the first container.
func (k *Kubelet) Happened() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.seen
	k.seen = nil
	return out
}

// atOnce is how many pods are synced at once, because nodes work independently.
const atOnce = 8

// run reads events while work runs. If events had to wait, outdated pods would be synced, and a
// slow machine would do little else.
func (k *Kubelet) run(ctx context.Context, there []corev1.Pod, events <-chan watch.Event) {
	for i := range there {
		k.saw(watch.Added, &there[i])
	}
	var work sync.WaitGroup
	defer work.Wait()
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	work.Go(func() { wait.UntilWithContext(working, k.work, 50*time.Millisecond) })
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-events:
			p, ok := e.Object.(*corev1.Pod)
			if !open || !ok {
				// The end of the test ends the watch, too. ctx is done before any context that
				// was made from it, and so before the watch.
				if ctx.Err() == nil {
					k.t.Errorf("the watch of pods ended, and with it all kubelets: %v", e.Object)
				}
				return
			}
			k.saw(e.Type, p)
		}
	}
}

// saw records an event.
func (k *Kubelet) saw(what watch.EventType, p *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.note(string(what), k.known[p.UID], p)
	if what == watch.Deleted {
		delete(k.known, p.UID)
		delete(k.todo, p.UID)
		return
	}
	k.known[p.UID], k.todo[p.UID] = p, p
}

// work syncs the pending pods. Pods that fail stay pending.
func (k *Kubelet) work(ctx context.Context) {
	k.mu.Lock()
	if k.still {
		k.mu.Unlock()
		return
	}
	if k.anew {
		maps.Copy(k.todo, k.known)
	}
	k.anew = false
	todo := slices.Collect(maps.Values(k.todo))
	k.mu.Unlock()
	var work sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for _, p := range todo {
		room <- struct{}{}
		work.Go(func() {
			defer func() { <-room }()
			if k.sync(ctx, p) != nil {
				return
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.todo[p.UID] == p {
				delete(k.todo, p.UID) // a change comes back as an event
			}
		})
	}
	work.Wait()
}

// note records the changes of the gate and image of a pod. The caller must hold the lock.
func (k *Kubelet) note(what string, was, is *corev1.Pod) {
	gate := func(p *corev1.Pod) string {
		for _, c := range p.Status.Conditions {
			if c.Type == v1beta1.InPlaceUpdateReady {
				return string(c.Status)
			}
		}
		return ""
	}
	switch {
	case what != "MODIFIED":
		k.seen = append(k.seen, what)
	case was != nil && was.DeletionTimestamp == nil && is.DeletionTimestamp != nil:
		k.seen = append(k.seen, "deleting")
	case was != nil && gate(was) != gate(is):
		k.seen = append(k.seen, "gate "+gate(is))
	case was != nil && was.Spec.Containers[0].Image != is.Spec.Containers[0].Image:
		k.seen = append(k.seen, "image "+is.Spec.Containers[0].Image)
	}
}

// sync does one step of a kubelet for a pod.
func (k *Kubelet) sync(ctx context.Context, p *corev1.Pod) error {
	k.mu.Lock()
	none, fails := k.none, k.fails
	k.mu.Unlock()
	if p.DeletionTimestamp != nil {
		err := k.pods.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s/%s ends: %w", p.Namespace, p.Name, err)
		}
		return nil
	}
	if p.Spec.NodeName == "" {
		err := k.pods.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: nodeOf(p)}}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("pod %s/%s comes to its node: %w", p.Namespace, p.Name, err)
		}
		return nil
	}
	if p.Status.Phase == corev1.PodFailed {
		return nil // for good
	}
	if p.Spec.Containers[0].Image == fails {
		return k.write(ctx, p, map[string]any{"phase": corev1.PodFailed, "reason": "Evicted"})
	}
	return k.write(ctx, p, running(p, none))
}

// podIP is the address of all pods: nothing listens to it.
const podIP = "192.0.2.1"

// running returns the status of a pod whose containers run, except containers with the image
// none.
func running(p *corev1.Pod, none string) map[string]any {
	is := p.Status.DeepCopy()
	is.Phase, is.ObservedGeneration = corev1.PodRunning, p.Generation
	ready := corev1.ConditionTrue
	for i, c := range p.Spec.Containers {
		if len(is.ContainerStatuses) <= i {
			is.ContainerStatuses = append(is.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, RestartCount: -1})
		}
		s := &is.ContainerStatuses[i]
		switch {
		case c.Image == none:
			s.Ready, s.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
		case s.Image != c.Image || s.State.Running == nil:
			s.RestartCount++
			s.Image, s.ImageID, s.ContainerID = c.Image, "sha256:"+c.Image, fmt.Sprint("containerd://", p.UID, s.RestartCount)
			s.Ready, s.State = true, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		}
		if !s.Ready {
			ready = corev1.ConditionFalse
		}
	}
	for _, g := range p.Spec.ReadinessGates {
		if !slices.ContainsFunc(is.Conditions, func(c corev1.PodCondition) bool { return c.Type == g.ConditionType && c.Status == corev1.ConditionTrue }) {
			ready = corev1.ConditionFalse
		}
	}
	conditions := []corev1.PodCondition{}
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		c := corev1.PodCondition{Type: t, Status: ready, LastTransitionTime: metav1.Now()}
		if i := slices.IndexFunc(is.Conditions, func(o corev1.PodCondition) bool { return o.Type == t && o.Status == ready }); i >= 0 {
			c = is.Conditions[i]
		}
		conditions = append(conditions, c)
	}
	return map[string]any{
		"phase": is.Phase, "observedGeneration": is.ObservedGeneration, "containerStatuses": is.ContainerStatuses, "conditions": conditions, "podIP": podIP, "podIPs": []corev1.PodIP{{IP: podIP}},
	}
}

// write writes the status of a pod, without a check of its resourceVersion.
func (k *Kubelet) write(ctx context.Context, p *corev1.Pod, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		k.t.Error(err)
		return fmt.Errorf("the status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if _, err = k.pods.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("the status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// nodeOf returns the node that a pod must be on; "node" if there is none.
func nodeOf(p *corev1.Pod) string {
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return "node"
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, r := range term.MatchFields {
			return r.Values[0]
		}
	}
	return "node"
}
