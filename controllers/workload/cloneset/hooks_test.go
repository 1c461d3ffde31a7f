package cloneset_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
)

const (
	hookLabel     = "example.com/serving"
	hookFinalizer = "example.com/held"
)

func byLabel(notReady bool) *v1beta1.LifecycleHook {
	return &v1beta1.LifecycleHook{LabelsHandler: map[string]string{hookLabel: "true"}, MarkPodNotReady: notReady}
}

// hooked has each pod be born with the hook's label on it.
func hooked(hooks v1beta1.Lifecycle) func(*v1beta1.CloneSetSpec) {
	return func(s *v1beta1.CloneSetSpec) {
		inPlace(s)
		s.Lifecycle = &hooks
		s.Template.Labels[hookLabel] = "true"
	}
}

// edit changes a pod as another client would.
func (w *world) edit(name string, change func(*corev1.Pod)) {
	w.Helper()
	var p corev1.Pod
	if err := w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &p); err != nil {
		w.Fatal(err)
	}
	before := p.DeepCopy()
	change(&p)
	if err := w.client.Patch(w.Context(), &p, client.MergeFrom(before)); err != nil {
		w.Fatal(err)
	}
}

// in waits until as many pods are in a state of their lifecycle, and returns them.
func (w *world) in(state v1beta1.LifecycleState, n int) []corev1.Pod {
	w.Helper()
	var pods []corev1.Pod
	err := wait.PollUntilContextTimeout(w.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		pods = slices.DeleteFunc(w.list(), func(p corev1.Pod) bool { return p.Labels[v1beta1.LabelLifecycle] != string(state) }) //nolint:contextcheck // the test's own
		return len(pods) == n, nil
	})
	if err != nil {
		for _, p := range w.list() {
			w.Logf("%s: %v %+v", p.Name, p.Labels, p.Status.Conditions)
		}
		w.Fatalf("%d pods are %s, want %d: %+v", len(pods), state, n, w.get().Status)
	}
	return pods
}

// gate is the status of KruisePodReady, and its message.
func gate(p corev1.Pod) (corev1.ConditionStatus, string) {
	for _, c := range p.Status.Conditions {
		if c.Type == v1beta1.KruisePodReady {
			return c.Status, c.Message
		}
	}
	return "", ""
}

// A finalizer holds back a deletion. No other pod is deleted instead, and the deletion is taken
// back when the pod is wanted again.
func TestPreDelete(t *testing.T) {
	w := newWorld(t)
	w.create(3, func(s *v1beta1.CloneSetSpec) {
		s.Lifecycle = &v1beta1.Lifecycle{PreDelete: &v1beta1.LifecycleHook{FinalizersHandler: []string{hookFinalizer}}}
		s.Template.Finalizers = []string{hookFinalizer}
	})
	w.settled(3, 3)
	before := uids(w.list())
	w.kubelet.Happened()
	w.change(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(2)) })
	w.in(v1beta1.LifecyclePreparingDelete, 1)
	w.eventually("it is counted, and is not available", func(s v1beta1.CloneSetStatus) bool { return s.Replicas == 3 && s.AvailableReplicas == 2 })

	w.change(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(3)) })
	w.in(v1beta1.LifecycleNormal, 3)
	w.settled(3, 3)
	if diff := cmp.Diff(before, uids(w.list())); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}

	w.change(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(1)) })
	held := w.in(v1beta1.LifecyclePreparingDelete, 2)
	w.edit(held[0].Name, func(p *corev1.Pod) { p.Finalizers = nil })
	w.eventually("one was released", func(s v1beta1.CloneSetStatus) bool { return s.Replicas == 2 && s.AvailableReplicas == 1 })
	w.edit(held[1].Name, func(p *corev1.Pod) { p.Finalizers = nil })
	w.settled(1, 1)
	if got, want := w.kubelet.Happened(), []string{"deleting", "DELETED"}; slices.Contains(got, "ADDED") || !slices.Equal(slices.Compact(slices.Sorted(slices.Values(got))), []string{want[1], want[0]}) {
		t.Errorf("%v happened to the pods, want %v", got, want)
	}
}

// A hook that marks a pod not ready takes it out of its Services until it is deleted: it
// isn't taken back, and its place is another's only when it isn't counted.
func TestPreDeleteNotReady(t *testing.T) {
	w := newWorld(t)
	w.create(2, hooked(v1beta1.Lifecycle{PreDelete: byLabel(true)}))
	w.settled(2, 2)
	for _, p := range w.list() {
		if status, message := gate(p); status != corev1.ConditionTrue || message != "" {
			t.Errorf("%s: %s %s", p.Name, status, message)
		}
	}
	w.change(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(1)) })
	held := w.in(v1beta1.LifecyclePreparingDelete, 1)[0]
	if status, message := gate(held); status != corev1.ConditionFalse || message != `[{"userAgent":"Lifecycle","key":"PreparingDelete"}]` {
		t.Errorf("%s: %s %s", held.Name, status, message)
	}
	w.change(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(2)) })
	w.eventually("its kubelet has heard", func(s v1beta1.CloneSetStatus) bool { return s.Replicas == 2 && s.ReadyReplicas == 1 })
	if again := w.in(v1beta1.LifecyclePreparingDelete, 1)[0]; again.UID != held.UID {
		t.Errorf("%s is held, and was %s", again.Name, held.Name)
	}
	w.change(func(s *v1beta1.CloneSetSpec) { s.ScaleStrategy.ExcludePreparingDelete = true })
	w.eventually("another is in its place", func(s v1beta1.CloneSetStatus) bool { return s.Replicas == 3 && s.AvailableReplicas == 2 })
	w.edit(held.Name, func(p *corev1.Pod) { delete(p.Labels, hookLabel) })
	w.gone(&held, 2)
}

// A hook holds back an update in place, out of its Services, and lets the pod back into
// service when it is on it again.
func TestInPlaceUpdateHook(t *testing.T) {
	w := newWorld(t)
	w.create(1, hooked(v1beta1.Lifecycle{InPlaceUpdate: byLabel(true)}))
	w.settled(1, 1)
	before := uids(w.list())
	w.change(image("web:v2"))
	held := w.in(v1beta1.LifecyclePreparingUpdate, 1)[0]
	if status, message := gate(held); status != corev1.ConditionFalse || message != `[{"userAgent":"Lifecycle","key":"PreparingUpdate"}]` || held.Spec.Containers[0].Image != "web:v1" {
		t.Errorf("%s: %s %s, %s", held.Name, status, message, held.Spec.Containers[0].Image)
	}
	w.eventually("it is out of service", func(s v1beta1.CloneSetStatus) bool { return s.ReadyReplicas == 0 && s.UpdatedReplicas == 0 })

	w.edit(held.Name, func(p *corev1.Pod) { delete(p.Labels, hookLabel) })
	updated := w.in(v1beta1.LifecycleUpdated, 1)[0]
	w.eventually("it is ready, and not yet available", func(s v1beta1.CloneSetStatus) bool {
		return s.UpdatedReadyReplicas == 1 && s.AvailableReplicas == 0
	})
	if updated.Spec.Containers[0].Image != "web:v2" {
		t.Errorf("it is updated, and has %s", updated.Spec.Containers[0].Image)
	}
	w.edit(held.Name, func(p *corev1.Pod) { p.Labels[hookLabel] = "true" })
	w.in(v1beta1.LifecycleNormal, 1)
	w.settled(1, 1)
	if diff := cmp.Diff(before, uids(w.list())); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	if status, message := gate(w.list()[0]); status != corev1.ConditionTrue || message != "[]" {
		t.Errorf("%s %s", status, message)
	}
}

// A pod that waits for its update and isn't wanted updated any more serves again.
func TestInPlaceUpdateCalledBack(t *testing.T) {
	w := newWorld(t)
	w.create(1, hooked(v1beta1.Lifecycle{InPlaceUpdate: byLabel(true)}))
	w.settled(1, 1)
	w.change(image("web:v2"))
	w.in(v1beta1.LifecyclePreparingUpdate, 1)
	w.change(image("web:v1"))
	w.in(v1beta1.LifecycleNormal, 1)
	w.settled(1, 1)
	if p := w.list()[0]; p.Spec.Containers[0].Image != "web:v1" || p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("%+v", p.Status.ContainerStatuses)
	}
}

// A new pod is available when its hook is on it: a label and a finalizer.
func TestPreNormal(t *testing.T) {
	w := newWorld(t)
	w.create(1, func(s *v1beta1.CloneSetSpec) {
		inPlace(s)
		s.Lifecycle = &v1beta1.Lifecycle{PreNormal: &v1beta1.LifecycleHook{LabelsHandler: map[string]string{hookLabel: "true"}, FinalizersHandler: []string{hookFinalizer}}}
	})
	w.eventually("it is ready, and not available", func(s v1beta1.CloneSetStatus) bool { return s.ReadyReplicas == 1 && s.AvailableReplicas == 0 })
	born := w.in(v1beta1.LifecyclePreparingNormal, 1)[0]
	w.edit(born.Name, func(p *corev1.Pod) { p.Labels[hookLabel] = "true" })
	w.change(func(s *v1beta1.CloneSetSpec) { s.RevisionHistoryLimit = new(int32(3)) })
	w.eventually("half of the hook is none", func(s v1beta1.CloneSetStatus) bool { return s.ReadyReplicas == 1 && s.AvailableReplicas == 0 })
	w.edit(born.Name, func(p *corev1.Pod) { p.Finalizers = []string{hookFinalizer} })
	w.in(v1beta1.LifecycleNormal, 1)
	w.settled(1, 1)
}

// A held update is not called off while other pods are created: its hook would be told so, and told
// the opposite a moment later. It counts as updated where the controller is told so.
func TestHeldWhileScaled(t *testing.T) {
	w := newWorldWith(t, func(o *base.Options) { o.CountPreparingUpdate = true })
	w.create(3, func(s *v1beta1.CloneSetSpec) {
		hooked(v1beta1.Lifecycle{InPlaceUpdate: byLabel(false)})(s)
		s.UpdateStrategy.RollingUpdate.MaxUnavailable, s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromString("100%")), new(intstr.FromInt32(1))
	})
	w.settled(3, 3)
	w.change(image("web:v2"))
	held := uids(w.in(v1beta1.LifecyclePreparingUpdate, 2))
	seen := w.watch(&corev1.PodList{})
	w.change(func(s *v1beta1.CloneSetSpec) {
		s.Replicas, s.UpdateStrategy.RollingUpdate.Partition = new(int32(4)), new(intstr.FromInt32(2))
	})
	// The partition gets the new pod, since two of the old ones count as updated.
	w.eventually("the new pod serves", func(s v1beta1.CloneSetStatus) bool {
		return s.Replicas == 4 && s.AvailableReplicas == 2 && s.UpdatedReplicas == 0
	})
	for _, o := range seen() {
		if state := o.GetLabels()[v1beta1.LabelLifecycle]; held[o.GetName()] != "" && state != string(v1beta1.LifecyclePreparingUpdate) {
			t.Errorf("%s became %s", o.GetName(), state)
		}
	}
}
