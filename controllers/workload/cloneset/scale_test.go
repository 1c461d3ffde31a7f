package cloneset_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// podsToDelete names pods: if there are too many pods these are deleted, else they are replaced. A
// name without a pod has no effect.
func TestPodsToDelete(t *testing.T) {
	w := newWorld(t)
	w.create(3, nil)
	w.settled(3, 3)
	pods := w.list()
	w.change(func(s *v1beta1.CloneSetSpec) {
		s.Replicas = new(int32(2))
		s.ScaleStrategy.PodsToDelete = []string{pods[1].Name, "web-never"}
	})
	w.gone(&pods[1], 2)
	if diff := cmp.Diff(uids([]corev1.Pod{pods[0], pods[2]}), uids(w.list())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	w.change(func(s *v1beta1.CloneSetSpec) {
		s.ScaleStrategy.PodsToDelete = append(s.ScaleStrategy.PodsToDelete, pods[0].Name)
	})
	w.gone(&pods[0], 2)
	if uids(w.list())[pods[2].Name] != string(pods[2].UID) {
		t.Errorf("%s was replaced too", pods[2].Name)
	}
}

// While as many new pods don't serve as may be missing, no more are created.
func TestScaleMaxUnavailable(t *testing.T) {
	w := newWorld(t)
	w.kubelet.Lose("web:v1")
	w.create(5, func(s *v1beta1.CloneSetSpec) { s.ScaleStrategy.MaxUnavailable = new(intstr.FromInt32(2)) })
	w.eventually("two are created", func(s v1beta1.CloneSetStatus) bool { return s.Replicas == 2 })
	w.change(func(s *v1beta1.CloneSetSpec) { s.RevisionHistoryLimit = new(int32(3)) })
	w.eventually("another look came to the same", func(s v1beta1.CloneSetStatus) bool { return s.Replicas == 2 })
	if pods := w.list(); len(pods) != 2 {
		t.Errorf("there are %d pods", len(pods))
	}
	w.kubelet.Lose("")
	w.settled(5, 5)
}

// An autoscaler reads how many pods there are and by which labels, and says how many
// there are to be.
func TestScaleSubresource(t *testing.T) {
	w := newWorld(t)
	w.create(2, nil)
	w.settled(2, 2)
	path := "/apis/apps.kruise.io/v1beta1/namespaces/" + w.namespace + "/clonesets/web/scale"
	var scale autoscalingv1.Scale
	text, err := w.pods.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
	if err = errors.Join(err, json.Unmarshal(text, &scale)); err != nil {
		t.Fatal(err)
	}
	if scale.Spec.Replicas != 2 || scale.Status.Replicas != 2 || scale.Status.Selector != "app=web" {
		t.Errorf("%s", text)
	}
	if found, err := w.pods.CoreV1().Pods(w.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: scale.Status.Selector}); err != nil || len(found.Items) != 2 {
		t.Errorf("its selector finds %d pods: %v", len(found.Items), err)
	}
	scale.Spec.Replicas = 4
	if text, err = json.Marshal(scale); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pods.CoreV1().RESTClient().Put().AbsPath(path).Body(text).SetHeader("Content-Type", "application/json").DoRaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settled(4, 4)
}

// Paused, pods keep their revision, and still come and go.
func TestPaused(t *testing.T) {
	w := newWorld(t)
	w.create(2, inPlace)
	w.settled(2, 2)
	before := uids(w.list())
	w.change(func(s *v1beta1.CloneSetSpec) {
		s.UpdateStrategy.RollingUpdate.Paused = true
		s.Replicas = new(int32(3))
		image("web:v2")(s)
	})
	w.settled(3, 1) // the new one
	w.change(func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Paused = false })
	w.settled(3, 3)
	after := uids(w.list())
	for name, uid := range before {
		if after[name] != uid {
			t.Errorf("%s was replaced", name)
		}
	}
}

// What a label prefers is updated first.
func TestPriority(t *testing.T) {
	w := newWorld(t)
	w.create(3, func(s *v1beta1.CloneSetSpec) {
		inPlace(s)
		s.UpdateStrategy.RollingUpdate.PriorityStrategy = &v1beta1.UpdatePriorityStrategy{OrderPriority: []v1beta1.UpdatePriorityOrderTerm{{OrderedKey: "turn"}}}
	})
	w.settled(3, 3)
	order := map[string]string{}
	for i, p := range w.list() {
		turn := []string{"turn-9", "turn-11", "turn-10"}[i]
		order[turn] = p.Name
		w.edit(p.Name, func(p *corev1.Pod) { p.Labels["turn"] = turn })
	}
	for i, want := range [][]string{{"turn-11"}, {"turn-11", "turn-10"}} {
		partition := []int32{2, 1}[i]
		w.change(func(s *v1beta1.CloneSetSpec) {
			image("web:v2")(s)
			s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromInt32(partition))
		})
		w.settled(3, 3-partition)
		for turn, name := range order {
			i := slices.IndexFunc(w.list(), func(p corev1.Pod) bool { return p.Name == name })
			if updated := w.list()[i].Spec.Containers[0].Image == "web:v2"; updated != slices.Contains(want, turn) {
				t.Errorf("partition %d: %s is updated: %v", partition, turn, updated)
			}
		}
	}
}

// The CloneSet adopts a pod that the selector finds if it has no owner and a workload has made it. A
// pod that the selector no longer finds is released and replaced.
func TestAdoptAndRelease(t *testing.T) {
	w := newWorld(t)
	w.create(2, nil)
	w.settled(2, 2)
	before := w.list()
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: w.namespace, Labels: map[string]string{"app": "web"}}, Spec: before[0].Spec}
	bare.Spec.NodeName, bare.Spec.Volumes, bare.Spec.Containers[0].VolumeMounts = "", nil, nil
	if err := w.client.Create(t.Context(), bare); err != nil {
		t.Fatal(err)
	}

	owned := func(name string) bool {
		pods := w.list()
		return metav1.IsControlledBy(&pods[slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == name })], w.get())
	}
	w.edit(before[0].Name, func(p *corev1.Pod) { p.OwnerReferences = nil })
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) { return owned(before[0].Name), nil })
	if err != nil {
		t.Fatalf("%s was never adopted", before[0].Name)
	}
	w.settled(2, 2)
	if pods := w.list(); len(pods) != 3 || uids(pods)[before[0].Name] != string(before[0].UID) {
		t.Errorf("%v", uids(pods))
	}

	w.edit(before[1].Name, func(p *corev1.Pod) { p.Labels["app"] = "mine" })
	w.eventually("it was replaced", func(s v1beta1.CloneSetStatus) bool {
		return len(w.list()) == 4 && s.Replicas == 2 && s.AvailableReplicas == 2
	})
	if owned(before[1].Name) || owned("bare") {
		t.Errorf("the released pod is owned: %v, and the pod that no workload made: %v", owned(before[1].Name), owned("bare"))
	}
}

// A CloneSet that comes anew takes over the pods of the one that was there before, of the
// revision that they have.
func TestAdoptAll(t *testing.T) {
	w := newWorld(t)
	w.create(2, inPlace)
	w.settled(2, 2)
	before := w.list()
	set := w.get()
	if err := w.client.Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	for _, p := range before { // as the garbage collector does with --cascade=orphan
		w.edit(p.Name, func(p *corev1.Pod) { p.OwnerReferences = nil })
	}
	r, err := w.pods.AppsV1().ControllerRevisions(w.namespace).Get(t.Context(), set.Status.UpdateRevision, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.OwnerReferences = nil
	if _, err := w.pods.AppsV1().ControllerRevisions(w.namespace).Update(t.Context(), r, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create(2, inPlace)
	w.settled(2, 2)
	if got := w.get().Status.UpdateRevision; got != set.Status.UpdateRevision {
		t.Errorf("the revision is %s, and was %s", got, set.Status.UpdateRevision)
	}
	if diff := cmp.Diff(uids(before), uids(w.list())); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	if h := w.list()[0].Labels[revision.Label]; h != revision.Hash(w.get().Status.UpdateRevision) {
		t.Errorf("revision %s, and pods have %s", w.get().Status.UpdateRevision, h)
	}
}

// The condition Progressing tells how a rollout stands: its reasons in the order of their
// table.
func TestProgressing(t *testing.T) {
	w := newWorld(t)
	is := func(reason string, status corev1.ConditionStatus, message func(v1beta1.CloneSetStatus) string) {
		t.Helper()
		w.eventually(reason, func(s v1beta1.CloneSetStatus) bool {
			i := slices.IndexFunc(s.Conditions, func(c v1beta1.CloneSetCondition) bool { return c.Type == v1beta1.CloneSetProgressing })
			return i >= 0 && s.Conditions[i].Reason == reason && s.Conditions[i].Status == status && s.Conditions[i].Message == message(s)
		})
	}
	says := func(text string) func(v1beta1.CloneSetStatus) string {
		return func(v1beta1.CloneSetStatus) string { return text }
	}
	deadline := func(s *v1beta1.CloneSetSpec, seconds int32) { s.ProgressDeadlineSeconds = &seconds }
	w.create(2, func(s *v1beta1.CloneSetSpec) {
		inPlace(s)
		s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(1))
		deadline(s, 600)
	})
	is("CloneSetAvailable", corev1.ConditionTrue, says("CloneSet is available"))

	w.kubelet.Lose("web:none")
	w.change(image("web:none"))
	is("CloneSetUpdated", corev1.ConditionTrue, says("CloneSet is progressing"))
	w.change(func(s *v1beta1.CloneSetSpec) { deadline(s, 2) })
	is("ProgressDeadlineExceeded", corev1.ConditionFalse, func(s v1beta1.CloneSetStatus) string {
		return "CloneSet revision " + s.UpdateRevision + " has timed out progressing"
	})
	w.change(func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Paused = true })
	is("CloneSetPaused", corev1.ConditionTrue, says("CloneSet is paused"))
	w.change(func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Paused = false })
	is("CloneSetUpdated", corev1.ConditionTrue, says("CloneSet is progressing")) // its time begins anew
	is("ProgressDeadlineExceeded", corev1.ConditionFalse, func(s v1beta1.CloneSetStatus) string {
		return "CloneSet revision " + s.UpdateRevision + " has timed out progressing"
	})

	w.change(func(s *v1beta1.CloneSetSpec) {
		image("web:v2")(s)
		s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromInt32(1))
	})
	is("ProgressPartitionAvailable", corev1.ConditionTrue, says("CloneSet has been paused due to partition ready"))
	w.change(func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = nil })
	is("CloneSetAvailable", corev1.ConditionTrue, says("CloneSet is available"))

	for _, none := range []*int32{nil, new(int32(math.MaxInt32))} {
		w.change(func(s *v1beta1.CloneSetSpec) { s.ProgressDeadlineSeconds = none })
		w.eventually("without a deadline there is no condition", func(s v1beta1.CloneSetStatus) bool { return len(s.Conditions) == 0 })
		w.change(func(s *v1beta1.CloneSetSpec) { deadline(s, 600) })
		is("CloneSetAvailable", corev1.ConditionTrue, says("CloneSet is available"))
	}
}

// What the API server refuses is told with its reason, until it doesn't any more.
func TestFailedScale(t *testing.T) {
	w := newWorld(t)
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	w.create(1, func(s *v1beta1.CloneSetSpec) { s.Template.Spec.PriorityClassName = class.Name })
	w.eventually("it is told", func(s v1beta1.CloneSetStatus) bool {
		return len(s.Conditions) == 1 && s.Conditions[0].Type == v1beta1.CloneSetFailedScale && s.Conditions[0].Reason == "Failed" && s.Conditions[0].Status == corev1.ConditionTrue &&
			strings.Contains(s.Conditions[0].Message, "no PriorityClass with name "+class.Name)
	})
	if _, err := w.pods.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.settled(1, 1)
	w.eventually("it isn't told any more", func(s v1beta1.CloneSetStatus) bool { return len(s.Conditions) == 0 })
}
