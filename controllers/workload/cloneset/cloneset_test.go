package cloneset_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

func inPlace(s *v1beta1.CloneSetSpec) {
	s.UpdateStrategy.RollingUpdate.PodUpdatePolicy = v1beta1.PodUpdateInPlaceIfPossible
}

func image(is string) func(*v1beta1.CloneSetSpec) {
	return func(s *v1beta1.CloneSetSpec) { s.Template.Spec.Containers[0].Image = is }
}

func uids(pods []corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, p := range pods {
		out[p.Name] = string(p.UID)
	}
	return out
}

// Pods are created, and more of them, and fewer.
func TestScale(t *testing.T) {
	w := newWorld(t)
	w.create(3, nil)
	w.settled(3, 3)
	before := uids(w.list())
	w.change(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(5)) })
	w.settled(5, 5)
	after := uids(w.list())
	for name, uid := range before {
		if after[name] != uid {
			t.Errorf("%s was replaced", name)
		}
	}
	w.change(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(0)) })
	w.settled(0, 0)
	if s := w.get().Status; s.LabelSelector != "app=web" || s.CurrentRevision != s.UpdateRevision || s.CurrentRevision == "" {
		t.Errorf("%+v", s)
	}
}

// An update in place keeps the pod: the gate is closed, the image changes, and the gate
// is opened when the container runs it.
func TestUpdateInPlace(t *testing.T) {
	w := newWorld(t)
	w.create(1, inPlace)
	w.settled(1, 1)
	before := w.list()
	w.kubelet.Happened()
	w.change(image("web:v2"))
	w.settled(1, 1)
	after := w.list()
	if diff := cmp.Diff(uids(before), uids(after)); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	if c := after[0].Status.ContainerStatuses[0]; c.Image != "web:v2" || c.RestartCount != 1 {
		t.Errorf("%+v", c)
	}
	if diff := cmp.Diff([]string{"gate False", "image web:v2", "gate True"}, w.kubelet.Happened()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// What can't be updated in place is replaced.
func TestUpdateByReplacement(t *testing.T) {
	w := newWorld(t)
	w.create(3, inPlace)
	w.settled(3, 3)
	before := uids(w.list())
	w.change(func(s *v1beta1.CloneSetSpec) { s.Template.Spec.HostNetwork = true })
	w.settled(3, 3)
	for name := range uids(w.list()) {
		if before[name] != "" {
			t.Errorf("%s is still there", name)
		}
	}
}

// A partition of 80, 60, 40, 20 and 0 % is five batches, and raising it takes pods back.
func TestPartition(t *testing.T) {
	w := newWorld(t)
	partition := func(p string) func(*v1beta1.CloneSetSpec) {
		return func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromString(p)) }
	}
	w.create(10, inPlace)
	w.settled(10, 10)
	before := uids(w.list())
	w.change(partition("100%"))
	w.change(image("web:v2"))
	w.settled(10, 0)
	for _, step := range []struct {
		partition string
		updated   int32
	}{{"80%", 2}, {"60%", 4}, {"40%", 6}, {"60%", 4}, {"80%", 2}, {"20%", 8}, {"0%", 10}} {
		w.change(partition(step.partition))
		w.settled(10, step.updated)
	}
	if diff := cmp.Diff(before, uids(w.list())); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// Pods of several revisions come to a newer one side by side, a few at a time.
func TestSeveralRevisions(t *testing.T) {
	w := newWorld(t)
	w.create(16, func(s *v1beta1.CloneSetSpec) {
		inPlace(s)
		s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(6))
	})
	w.settled(16, 16)
	before := uids(w.list())
	w.change(func(s *v1beta1.CloneSetSpec) {
		image("web:v2")(s)
		s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromInt32(8))
	})
	w.settled(16, 8)
	w.change(func(s *v1beta1.CloneSetSpec) {
		image("web:v3")(s)
		s.UpdateStrategy.RollingUpdate.Partition = nil
	})
	w.settled(16, 16)
	after := w.list()
	if diff := cmp.Diff(before, uids(after)); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	for _, p := range after {
		if is := p.Status.ContainerStatuses[0].Image; is != "web:v3" {
			t.Errorf("%s runs %s", p.Name, is)
		}
	}
}

// A partition that is raised when all pods have the new revision finds none to take them
// back to: nothing happens, by either policy, and the next update starts from there.
func TestPartitionTooLate(t *testing.T) {
	for name, policy := range map[string]func(*v1beta1.CloneSetSpec){"replaced": func(*v1beta1.CloneSetSpec) {}, "in-place": inPlace} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(3, policy)
			w.settled(3, 3)
			w.change(image("web:v2"))
			w.settled(3, 3)
			before := uids(w.list())
			w.kubelet.Happened()
			w.change(func(s *v1beta1.CloneSetSpec) {
				s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromInt32(3))
			})
			w.settled(3, 3)
			w.change(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(4)) }) // something to wait for
			w.settled(4, 4)
			for name, uid := range before {
				if uids(w.list())[name] != uid {
					t.Errorf("%s was replaced", name)
				}
			}
			happened := slices.DeleteFunc(w.kubelet.Happened(), func(what string) bool { return what == "gate True" }) // of the new one
			if diff := cmp.Diff([]string{"ADDED"}, happened); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			w.change(image("web:v3"))
			w.settled(4, 1) // three stay behind
		})
	}
}

// An image that can't be pulled stops at maxUnavailable, and the partition takes it back.
func TestBrokenImage(t *testing.T) {
	w := newWorld(t)
	w.create(5, func(s *v1beta1.CloneSetSpec) {
		inPlace(s)
		s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(2))
	})
	w.settled(5, 5)
	w.kubelet.Lose("web:none")
	w.change(image("web:none"))
	w.eventually("two are broken", func(s v1beta1.CloneSetStatus) bool { return s.UpdatedReplicas == 2 && s.AvailableReplicas == 3 })
	w.change(func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromInt32(5)) })
	w.settled(5, 0)
}

// A label asks for the replacement of one pod.
func TestSpecifiedDelete(t *testing.T) {
	w := newWorld(t)
	w.create(3, nil)
	w.settled(3, 3)
	marked := w.list()[1]
	name := marked.Name
	marked.Labels[v1beta1.LabelSpecifiedDelete] = "true"
	if err := w.client.Update(t.Context(), &marked); err != nil {
		t.Fatal(err)
	}
	w.eventually("it was replaced", func(s v1beta1.CloneSetStatus) bool {
		_, there := uids(w.list())[name]
		return !there && s.AvailableReplicas == 3
	})
}

// What can't be read is refused with the field, and nothing is done.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	w.create(3, nil)
	w.settled(3, 3)
	before := uids(w.list())
	for _, step := range []struct {
		says   string
		change func(*v1beta1.CloneSetRollingUpdateStrategy)
	}{
		{"spec.updateStrategy.rollingUpdate.priorityStrategy.weightPriority[0].matchSelector: ", func(u *v1beta1.CloneSetRollingUpdateStrategy) {
			near := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Near"}}}
			u.PriorityStrategy = &v1beta1.UpdatePriorityStrategy{WeightPriority: []v1beta1.UpdatePriorityWeightTerm{{Weight: 1, MatchSelector: near}}}
		}},
		{`spec.updateStrategy.rollingUpdate.podUpdatePolicy: Unsupported value: "InPlace": supported values: "ReCreate", "InPlaceIfPossible", "InPlaceOnly"`, func(u *v1beta1.CloneSetRollingUpdateStrategy) {
			u.PriorityStrategy, u.PodUpdatePolicy = nil, "InPlace"
		}},
		{"spec.updateStrategy.rollingUpdate.partition: invalid value for IntOrString", func(u *v1beta1.CloneSetRollingUpdateStrategy) {
			u.PodUpdatePolicy, u.Partition = "", new(intstr.FromString("half"))
		}},
	} {
		w.change(func(s *v1beta1.CloneSetSpec) { step.change(s.UpdateStrategy.RollingUpdate); s.Replicas = new(int32(1)) })
		w.eventually("it is refused", func(s v1beta1.CloneSetStatus) bool {
			return len(s.Conditions) == 1 && s.Conditions[0].Reason == "SpecRefused" && strings.HasPrefix(s.Conditions[0].Message, step.says)
		})
	}
	if diff := cmp.Diff(before, uids(w.list())); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	w.change(func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = nil })
	w.settled(1, 1)
	if c := w.get().Status.Conditions; len(c) > 0 {
		t.Errorf("it is still refused: %+v", c)
	}
}

// With OnDelete a new revision replaces no pod: a user does it, one by one. A type that is not known
// is no reason to roll out, either.
func TestOnDelete(t *testing.T) {
	w := newWorld(t)
	w.create(3, func(s *v1beta1.CloneSetSpec) {
		s.UpdateStrategy.Type, s.ProgressDeadlineSeconds = v1beta1.CloneSetOnDelete, new(int32(600))
	})
	w.settled(3, 3)
	before := uids(w.list())
	w.change(image("web:v2"))
	w.settled(3, 0)
	if c := w.get().Status.Conditions; len(c) != 1 || c[0].Reason != "CloneSetAvailable" {
		t.Errorf("nothing goes on, and it says %+v", c)
	}
	for i, p := range w.list() {
		if before[p.Name] != string(p.UID) || p.Spec.Containers[0].Image != "web:v1" {
			t.Errorf("%s was replaced", p.Name)
		}
		if i == 0 {
			if err := w.client.Delete(t.Context(), &p); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.settled(3, 1)
	w.change(func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.Type = "Sometimes"; s.Replicas = new(int32(1)) })
	w.eventually("it is refused", func(s v1beta1.CloneSetStatus) bool {
		return slices.ContainsFunc(s.Conditions, func(c v1beta1.CloneSetCondition) bool {
			return c.Reason == "SpecRefused" && strings.HasPrefix(c.Message, `spec.updateStrategy.type: Unsupported value: "Sometimes": supported values: "RollingUpdate", "OnDelete"`)
		})
	})
	if got := len(w.list()); got != 3 {
		t.Errorf("there are %d pods", got)
	}
	w.change(func(s *v1beta1.CloneSetSpec) {
		s.UpdateStrategy.Type = v1beta1.CloneSetRollingUpdate
		s.Replicas = new(int32(3))
	})
	w.settled(3, 3)
}

// Every pod says what it waits for: for its node, and then for nothing.
func TestLifecycleState(t *testing.T) {
	w := newWorld(t)
	w.create(1, func(s *v1beta1.CloneSetSpec) {
		s.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	})
	// The first status counts the pod that was just created: a client that sees the pod reads so.
	w.eventually("there is a status", func(v1beta1.CloneSetStatus) bool { return true })
	if s := w.get().Status; s.Replicas != 1 || s.UpdatedReplicas != 1 {
		t.Errorf("it says %+v", s)
	}
	pod := w.list()[0]
	if got := pod.Labels[v1beta1.LabelLifecycle]; got != string(v1beta1.LifecyclePreparingNormal) {
		t.Errorf("without a node it is %q", got)
	}
	pod.Spec.SchedulingGates = nil
	if err := w.client.Update(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	w.settled(1, 1)
	pod = w.list()[0]
	if got := pod.Labels[v1beta1.LabelLifecycle]; got != string(v1beta1.LifecycleNormal) {
		t.Errorf("with a node it is %q", got)
	}
	// A pod that is older than the states gets one.
	delete(pod.Labels, v1beta1.LabelLifecycle)
	if err := w.client.Update(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	w.eventually("it has a state again", func(v1beta1.CloneSetStatus) bool {
		return w.list()[0].Labels[v1beta1.LabelLifecycle] == string(v1beta1.LifecycleNormal)
	})
}

// Whatever a status says of pods, there are that many: none is counted as updated and as old, also
// while they come and go back.
func TestStatusAddsUp(t *testing.T) {
	w := newWorld(t)
	w.create(3, func(s *v1beta1.CloneSetSpec) {
		inPlace(s)
		s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString("100%"))
		s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromInt32(1))
	})
	w.settled(3, 3)
	seen := w.watch(&v1beta1.CloneSetList{})
	w.change(image("web:v2"))
	w.settled(3, 2)
	w.change(func(s *v1beta1.CloneSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromInt32(3)) })
	w.settled(3, 0)
	statuses := 0
	for _, o := range seen() {
		set, ok := o.(*v1beta1.CloneSet)
		if !ok {
			continue
		}
		statuses++
		s := set.Status
		if s.UpdatedReadyReplicas > s.UpdatedReplicas || s.UpdatedAvailableReplicas > s.UpdatedReadyReplicas ||
			s.ReadyReplicas-s.UpdatedReadyReplicas > s.Replicas-s.UpdatedReplicas || s.AvailableReplicas > s.ReadyReplicas {
			t.Errorf("it does not add up: %+v", s)
		}
	}
	if statuses == 0 {
		t.Error("no status was seen")
	}
}

// With InPlaceOnly a pod that can't be updated keeps its revision, and still comes into service.
func TestInPlaceOnlyStays(t *testing.T) {
	w := newWorld(t)
	w.create(1, func(s *v1beta1.CloneSetSpec) {
		s.UpdateStrategy.RollingUpdate.Paused = true
		s.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	})
	w.eventually("a pod is there", func(s v1beta1.CloneSetStatus) bool { return s.Replicas == 1 })
	w.change(func(s *v1beta1.CloneSetSpec) {
		s.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
	})
	w.change(func(s *v1beta1.CloneSetSpec) {
		s.UpdateStrategy.RollingUpdate.Paused, s.UpdateStrategy.RollingUpdate.PodUpdatePolicy = false, v1beta1.PodUpdateInPlaceOnly
	})
	w.eventually("it wants another revision", func(s v1beta1.CloneSetStatus) bool { return s.UpdateRevision != s.CurrentRevision })
	pod := w.list()[0]
	pod.Spec.SchedulingGates = nil
	if err := w.client.Update(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	w.settled(1, 0)
}
