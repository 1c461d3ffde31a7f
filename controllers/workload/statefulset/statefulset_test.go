package statefulset_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// A pod has a stable name, its names in DNS, and the labels that users of StatefulSets know.
func TestIdentity(t *testing.T) {
	w := newWorld(t)
	w.create(2, volume("1Gi"))
	w.settled(2, 2)
	set, p := w.get(), w.pods()[1]
	want := map[string]string{
		"app": "db", "controller-revision-hash": set.Status.UpdateRevision, "statefulset.kubernetes.io/pod-name": "db-1", "apps.kubernetes.io/pod-index": "1",
		v1beta1.LabelLifecycle: "Normal",
	}
	if diff := cmp.Diff(want, p.Labels); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	volumes := []string{}
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			volumes = append(volumes, v.Name+": "+v.PersistentVolumeClaim.ClaimName)
		}
	}
	if p.Name != "db-1" || p.Spec.Hostname != "db-1" || p.Spec.Subdomain != "db" || !slices.Equal(volumes, []string{"data: data-db-1"}) {
		t.Errorf("%s, %s.%s, %v", p.Name, p.Spec.Hostname, p.Spec.Subdomain, volumes)
	}
	if c := w.claim("data-db-1"); c.Labels["app"] != "db" || len(c.OwnerReferences) > 0 {
		t.Errorf("%v, %v", c.Labels, c.OwnerReferences)
	}
	s := set.Status
	if s.LabelSelector != "app=db" || s.CurrentRevision != s.UpdateRevision || !strings.HasPrefix(s.UpdateRevision, "db-") || s.CurrentReplicas != 2 {
		t.Errorf("%+v", s)
	}
	if diff := cmp.Diff([]v1beta1.VolumeClaimStatus{{VolumeClaimName: "data", CompatibleReplicas: 2}}, s.VolumeClaims); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// OrderedReady creates a pod when those before it are available, updates from the highest ordinal
// down, and deletes from there, too.
func TestOrderedReady(t *testing.T) {
	w := newWorld(t)
	w.Kubelet.Lose("db:v1") // nothing gets ready
	w.create(3, ordered)
	w.eventually("one pod", func() bool { return w.get().Status.Replicas == 1 })
	w.Kubelet.Lose("")
	w.settled(3, 3)
	var born []string
	for _, p := range w.pods() {
		born = append(born, p.CreationTimestamp.Format("15:04:05")+p.Name)
	}
	if !slices.IsSorted(born) {
		t.Errorf("%v", born)
	}
	w.change(image("db:v2"), partition(2))
	w.settled(3, 1)
	if diff := cmp.Diff(map[string]string{"db-0": "db:v1", "db-1": "db:v1", "db-2": "db:v2"}, w.images()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	w.change(partition(0))
	w.settled(3, 3)
	w.change(replicas(1))
	w.settled(1, 1)
	if _, is := w.images()["db-0"]; !is {
		t.Errorf("%v", w.images())
	}
}

// A pod that a bad revision broke is replaced when the template is taken back, also with OrderedReady,
// where Kubernetes and OpenKruise wait for it for ever.
func TestOrderedReadyRecovers(t *testing.T) {
	w := newWorld(t)
	w.create(3, ordered)
	w.settled(3, 3)
	first := w.get().Status.UpdateRevision
	w.Kubelet.Lose("db:bad")
	w.change(image("db:bad"))
	w.eventually("a pod is broken", func() bool { return w.images()["db-2"] == "db:bad" && w.get().Status.ReadyReplicas == 2 })
	w.change(image("db:v1"))
	w.settled(3, 3)
	if s := w.get().Status; s.UpdateRevision != first || s.CurrentRevision != first {
		t.Errorf("%s, %s; want %s", s.UpdateRevision, s.CurrentRevision, first)
	}
}

// An update in place keeps the pod, its claim, and the form of its revision label.
func TestUpdateInPlace(t *testing.T) {
	w := newWorld(t)
	w.create(2, inPlace, ordered, volume("1Gi"))
	w.settled(2, 2)
	before := uids(w.pods())
	w.change(image("db:v2"))
	w.settled(2, 2)
	after := w.pods()
	if diff := cmp.Diff(before, uids(after)); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	for _, p := range after {
		if c := p.Status.ContainerStatuses[0]; c.Image != "db:v2" || c.RestartCount != 1 || p.Labels["controller-revision-hash"] != w.get().Status.UpdateRevision {
			t.Errorf("%+v, %v", c, p.Labels)
		}
	}
}

// The partition counts positions among the wanted ordinals, not ordinals.
func TestPartitionWithReservedOrdinals(t *testing.T) {
	w := newWorld(t)
	w.create(4, inPlace, func(s *v1beta1.StatefulSetSpec) {
		s.Ordinals = &v1beta1.StatefulSetOrdinals{Start: 2}
		s.ReserveOrdinals = []intstr.IntOrString{intstr.FromInt32(3), intstr.FromString("5-6")}
	})
	w.settled(4, 4)
	w.change(image("db:v2"), partition(2))
	w.settled(4, 2)
	if diff := cmp.Diff(map[string]string{"db-2": "db:v1", "db-4": "db:v1", "db-7": "db:v2", "db-8": "db:v2"}, w.images()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	before := uids(w.pods())
	// A pod of the partition that is created again keeps its revision.
	if err := w.Pods.CoreV1().Pods(w.Namespace).Delete(t.Context(), "db-4", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is created again", func() bool {
		return slices.ContainsFunc(w.pods(), func(p corev1.Pod) bool { return p.Name == "db-4" && string(p.UID) != before["db-4"] })
	})
	w.settled(4, 2)
	if is := w.images()["db-4"]; is != "db:v1" {
		t.Errorf("db-4 runs %s", is)
	}
	// An ordinal that becomes reserved goes, and the next one comes.
	w.change(func(s *v1beta1.StatefulSetSpec) { s.ReserveOrdinals = append(s.ReserveOrdinals, intstr.FromInt32(4)) }, partition(0))
	w.settled(4, 4)
	if diff := cmp.Diff(map[string]string{"db-2": "db:v2", "db-7": "db:v2", "db-8": "db:v2", "db-9": "db:v2"}, w.images()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Pods are updated by priority, and the partition is a number of pods.
func TestUnordered(t *testing.T) {
	w := newWorld(t)
	w.create(4, inPlace, func(s *v1beta1.StatefulSetSpec) {
		s.UpdateStrategy.RollingUpdate.UnorderedUpdate = &v1beta1.UnorderedUpdateStrategy{PriorityStrategy: &v1beta1.UpdatePriorityStrategy{
			WeightPriority: []v1beta1.UpdatePriorityWeightTerm{{Weight: 10, MatchSelector: metav1.LabelSelector{MatchLabels: map[string]string{"first": "true"}}}},
		}}
	})
	w.settled(4, 4)
	w.label("db-1", "first")
	w.change(image("db:v2"), partition(3))
	w.settled(4, 1)
	if is := w.images()["db-1"]; is != "db:v2" {
		t.Errorf("%v", w.images())
	}
}

// A pod with the label is replaced, also while updates are paused or left to the user.
func TestSpecifiedDelete(t *testing.T) {
	for name, still := range map[string]change{
		"Paused": func(s *v1beta1.StatefulSetSpec) { s.UpdateStrategy.RollingUpdate.Paused = true },
		"OnDelete": func(s *v1beta1.StatefulSetSpec) {
			s.UpdateStrategy = v1beta1.StatefulSetUpdateStrategy{Type: "OnDelete"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(2, still)
			w.settled(2, 2)
			before := uids(w.pods())
			w.change(image("db:v2"))
			w.eventually("it is seen", func() bool { return w.get().Status.UpdatedReplicas == 0 })
			w.label("db-0", v1beta1.LabelSpecifiedDelete)
			w.settled(2, 1)
			after := uids(w.pods())
			if before["db-1"] != after["db-1"] || before["db-0"] == after["db-0"] {
				t.Errorf("%v became %v", before, after)
			}
		})
	}
}

// A claim grows before the update of its pod, one after the other, and never shrinks.
func TestResize(t *testing.T) {
	w := newWorld(t)
	w.create(2, volume("1Gi"), ordered, func(s *v1beta1.StatefulSetSpec) { s.VolumeClaimUpdateStrategy.Type = v1beta1.ClaimOnPodRollingUpdate })
	w.settled(2, 2)
	w.resized("data-db-0", "1Gi")
	w.resized("data-db-1", "1Gi")
	w.change(volume("2Gi"))
	w.eventually("the API server refuses", func() bool {
		return slices.ContainsFunc(w.get().Status.Conditions, func(c appsv1.StatefulSetCondition) bool {
			return c.Type == v1beta1.StatefulSetFailedUpdatePod && strings.Contains(c.Message, "must support resize")
		})
	})
	w.change(volume("1Gi"))
	w.eventually("there is nothing to grow", func() bool {
		s := w.get()
		return s.Status.ObservedGeneration == s.Generation && len(s.Status.Conditions) == 0
	})
	w.classes()
	before := uids(w.pods())
	w.change(volume("2Gi"), image("db:v2"))
	w.eventually("the first claim grows", func() bool { return w.asks("data-db-1") == "2Gi" })
	if is := w.asks("data-db-0"); is != "1Gi" || !cmp.Equal(before, uids(w.pods())) {
		t.Errorf("db-0 has %s before db-1 is done, and the pods are %v", is, w.images())
	}
	w.resized("data-db-1", "2Gi")
	w.eventually("the other claim grows", func() bool { return w.asks("data-db-0") == "2Gi" })
	if is := w.images(); is["db-1"] != "db:v2" || is["db-0"] != "db:v1" {
		t.Errorf("%v", is)
	}
	// Its file system grows when a pod mounts it: the update is not held back.
	w.resized("data-db-0", "1Gi", corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue})
	w.settled(2, 2)
	w.resized("data-db-0", "2Gi")
	w.eventually("both are ready", func() bool {
		return cmp.Equal(w.get().Status.VolumeClaims, []v1beta1.VolumeClaimStatus{{VolumeClaimName: "data", CompatibleReplicas: 2, CompatibleReadyReplicas: 2}})
	})
	if c := w.claim("data-db-0"); c.Annotations[v1beta1.AnnotationOwnedBySet] != "true" {
		t.Errorf("%v", c.Annotations)
	}
	w.change(volume("1Gi"), image("db:v3"))
	w.settled(2, 2)
	if is := w.asks("data-db-0"); is != "2Gi" {
		t.Errorf("it shrank to %s", is)
	}
}

func (w *world) asks(claim string) string {
	w.Helper()
	q := w.claim(claim).Spec.Resources.Requests[corev1.ResourceStorage]
	return q.String()
}

// Claims have the owners of the retention policy, so that Kubernetes deletes them with those.
func TestRetention(t *testing.T) {
	w := newWorld(t)
	owners := func(claim string) (out []string) {
		for _, o := range w.claim(claim).OwnerReferences {
			out = append(out, o.Kind+" "+o.Name)
		}
		return out
	}
	w.create(2, volume("1Gi"), ordered, func(s *v1beta1.StatefulSetSpec) {
		s.PersistentVolumeClaimRetentionPolicy = &v1beta1.ClaimRetentionPolicy{WhenDeleted: v1beta1.ClaimDelete, WhenScaled: v1beta1.ClaimDelete}
	})
	w.settled(2, 2)
	if diff := cmp.Diff([]string{"StatefulSet db"}, owners("data-db-1")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	pod := w.pods()[1].UID
	w.change(replicas(1))
	w.settled(1, 1)
	if o := w.claim("data-db-1").OwnerReferences; len(o) != 1 || o[0].UID != pod || o[0].Kind != "Pod" {
		t.Errorf("%+v", o)
	}
	// The garbage collector, which this API server has not, deletes the claim: until then no pod may
	// have it.
	w.change(replicas(2))
	w.eventually("it is seen", func() bool { s := w.get(); return s.Status.ObservedGeneration == s.Generation })
	if got := len(w.pods()); got != 1 {
		t.Errorf("%d pods", got)
	}
	c := w.claim("data-db-1")
	c.Finalizers = nil
	if err := w.Client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w.settled(2, 2)
	w.change(func(s *v1beta1.StatefulSetSpec) { s.PersistentVolumeClaimRetentionPolicy = nil })
	w.eventually("the claims have no owner", func() bool { return len(owners("data-db-0"))+len(owners("data-db-1")) == 0 })
}

// A failed pod is replaced, in both orders.
func TestFailed(t *testing.T) {
	for name, order := range map[string]change{"Parallel": func(*v1beta1.StatefulSetSpec) {}, "OrderedReady": ordered} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(2, order)
			w.settled(2, 2)
			before := uids(w.pods())
			p := w.pods()[0]
			p.Status.Phase = corev1.PodFailed
			if _, err := w.Pods.CoreV1().Pods(w.Namespace).UpdateStatus(t.Context(), &p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.eventually("it is replaced", func() bool {
				return !slices.ContainsFunc(w.pods(), func(p corev1.Pod) bool { return string(p.UID) == before["db-0"] })
			})
			w.settled(2, 2)
			if after := uids(w.pods()); after["db-1"] != before["db-1"] {
				t.Errorf("%v became %v", before, after)
			}
		})
	}
}

// Pods and revisions of OpenKruise are taken over: no pod is updated.
func TestTakeOver(t *testing.T) {
	w := newWorld(t)
	w.create(2, inPlace)
	w.settled(2, 2)
	before, set := w.pods(), w.get()
	// What another controller left: a set of another UID has the pods' names, and they have no owner.
	for _, p := range before {
		patch := []byte(`{"metadata":{"uid":"` + string(p.UID) + `","ownerReferences":[{"$patch":"delete","uid":"` + string(set.UID) + `"}]}}`)
		if _, err := w.Pods.CoreV1().Pods(w.Namespace).Patch(t.Context(), p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("they are adopted", func() bool {
		return !slices.ContainsFunc(w.pods(), func(p corev1.Pod) bool { return metav1.GetControllerOf(&p) == nil })
	})
	w.settled(2, 2)
	if diff := cmp.Diff(uids(before), uids(w.pods())); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// A spec that cannot be followed is refused in the status, and its pods stay.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	w.create(1)
	w.settled(1, 1)
	before := uids(w.pods())
	w.change(image("db:v2"), func(s *v1beta1.StatefulSetSpec) { s.UpdateStrategy.Type = "Sometimes" })
	w.eventually("it is refused", func() bool {
		return slices.ContainsFunc(w.get().Status.Conditions, func(c appsv1.StatefulSetCondition) bool {
			return c.Type == v1beta1.StatefulSetFailedUpdatePod && c.Reason == "SpecRefused" && strings.Contains(c.Message, "spec.updateStrategy.type")
		})
	})
	if diff := cmp.Diff(before, uids(w.pods())); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	w.change(func(s *v1beta1.StatefulSetSpec) { s.UpdateStrategy.Type = "RollingUpdate" })
	w.settled(1, 1)
	if c := w.get().Status.Conditions; len(c) > 0 {
		t.Errorf("%+v", c)
	}
}

// Hooks hold back updates in place, deletions, and the service of new pods.
func TestHooks(t *testing.T) {
	w := newWorld(t)
	w.create(1, inPlace, func(s *v1beta1.StatefulSetSpec) {
		s.Template.Labels["guard"] = "true"
		s.Lifecycle = &v1beta1.Lifecycle{
			InPlaceUpdate: &v1beta1.LifecycleHook{LabelsHandler: map[string]string{"guard": "true"}},
			PreDelete:     &v1beta1.LifecycleHook{LabelsHandler: map[string]string{"guard": "true"}},
		}
	})
	w.settled(1, 1)
	state := func() string { return w.pods()[0].Labels[v1beta1.LabelLifecycle] }
	let := func(value string) {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"guard":%q}}}`, value)
		if _, err := w.Pods.CoreV1().Pods(w.Namespace).Patch(t.Context(), "db-0", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.change(image("db:v2"))
	w.eventually("the update waits", func() bool { return state() == "PreparingUpdate" })
	let("false")
	w.eventually("it is updated", func() bool { return state() == "Updated" && w.images()["db-0"] == "db:v2" })
	let("true")
	w.settled(1, 1)
	w.change(replicas(0))
	w.eventually("the deletion waits", func() bool { return state() == "PreparingDelete" })
	w.change(replicas(1))
	w.eventually("it is called off", func() bool { return state() == "Normal" })
	w.settled(1, 1)
}
