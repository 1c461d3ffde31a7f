package statefulset_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// patch changes an object by a merge patch.
func patchPod(w *world, name, patch string, subresources ...string) {
	w.Helper()
	if _, err := w.Pods.CoreV1().Pods(w.Namespace).Patch(w.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		w.Fatal(err)
	}
}

// condition returns the message of a condition that is True; "" if there is none.
func (w *world) condition(kind appsv1.StatefulSetConditionType) string {
	w.Helper()
	for _, c := range w.get().Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// A StatefulSet that was deleted while its pods stayed, and is created again, has its history: the
// partition keeps the old revision, and pods are updated in place.
func TestOrphansKeepTheirHistory(t *testing.T) {
	w := newWorld(t)
	w.create(3, inPlace)
	w.settled(3, 3)
	before, set := uids(w.pods()), w.get()
	if err := w.Client.Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	const orphan = `{"metadata":{"ownerReferences":null}}` // as the garbage collector does
	for _, p := range w.pods() {
		patchPod(w, p.Name, orphan)
	}
	revisions := w.Pods.AppsV1().ControllerRevisions(w.Namespace)
	if _, err := revisions.Patch(t.Context(), set.Status.UpdateRevision, types.MergePatchType, []byte(orphan), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create(3, inPlace)
	w.settled(3, 3)
	w.change(image("db:v2"), partition(2))
	w.settled(3, 1)
	if s := w.get().Status; s.CurrentRevision != set.Status.UpdateRevision {
		t.Errorf("the current revision is %s, want %s", s.CurrentRevision, set.Status.UpdateRevision)
	}
	if diff := cmp.Diff(before, uids(w.pods())); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	if err := w.Pods.CoreV1().Pods(w.Namespace).Delete(t.Context(), "db-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("db-0 is created again", func() bool { is := uids(w.pods())["db-0"]; return is != "" && is != before["db-0"] })
	w.settled(3, 1)
	if is := w.images()["db-0"]; is != "db:v1" {
		t.Errorf("db-0 runs %s", is)
	}
}

// A pod counts as out of service until its kubelet has done an update in place, also without a gate.
func TestSlowKubelet(t *testing.T) {
	for name, update := range map[string]change{
		"Image":  image("db:v2"),
		"Resize": func(s *v1beta1.StatefulSetSpec) { s.Template.Spec.Containers[0].Resources.Requests = cpu("50m") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node()
			w.create(4, func(s *v1beta1.StatefulSetSpec) { s.Template.Spec.Containers[0].Resources.Requests = cpu("100m") }) // pods without a gate
			w.settled(4, 4)
			w.Kubelet.Pause(true)
			for _, p := range w.pods() { // as a kubelet reports it
				patchPod(w, p.Name, `{"status":{"containerStatuses":[{"name":"db","image":"db:v1","imageID":"sha256:1","containerID":"containerd://1","ready":true,"restartCount":0,
					"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}},"resources":{"requests":{"cpu":"100m"}}}]}}`, "status")
			}
			w.change(inPlace, update)
			changed := func() (n int) {
				for _, p := range w.pods() {
					if c := p.Spec.Containers[0]; c.Image != "db:v1" || c.Resources.Requests.Cpu().String() != "100m" {
						n++
					}
				}
				return n
			}
			w.eventually("one is updated", func() bool { return changed() == 1 })
			w.eventually("the status says so", func() bool { s := w.get().Status; return s.UpdatedReplicas == 1 && s.UpdatedAvailableReplicas == 0 })
			if n := changed(); n != 1 {
				t.Errorf("%d pods have been changed, and 1 may be unavailable", n)
			}
		})
	}
}

func cpu(q string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q)}
}

// node creates the node of the pods, which the API server wants for a resize.
func (w *world) node() {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	n.Status.Allocatable, n.Status.Capacity = cpu("8"), cpu("8")
	n.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.36.0", OperatingSystem: "linux"}
	if _, err := w.Pods.CoreV1().Nodes().Create(w.Context(), n, metav1.CreateOptions{}); err != nil && !strings.Contains(err.Error(), "already exists") {
		w.Fatal(err)
	}
}

// A name or a claim that is taken is told, and does not keep the other pods from being created.
func TestTakenNames(t *testing.T) {
	w := newWorld(t)
	w.create(0, volume("1Gi"))
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", Namespace: w.Namespace}}
	other.Spec.Containers = []corev1.Container{{Name: "x", Image: "x"}}
	w.Make(other)
	claim := w.get().Spec.VolumeClaimTemplates[0].DeepCopy()
	claim.Name, claim.Namespace, claim.Finalizers = "data-db-1", w.Namespace, []string{"test.keelson.io/stays"}
	w.Make(claim)
	if err := w.Client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	w.change(replicas(4))
	w.eventually("the others are created", func() bool { p := uids(w.pods()); return p["db-2"] != "" && p["db-3"] != "" })
	w.eventually("it is told", func() bool {
		return strings.Contains(w.condition(v1beta1.StatefulSetFailedCreatePod), "there is a pod db-0 that is not of this StatefulSet")
	})
	c := w.claim("data-db-1")
	c.Finalizers = nil
	if err := w.Client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	w.settled(4, 4)
	w.eventually("nothing is told any more", func() bool { return len(w.get().Status.Conditions) == 0 })
}

// A claim that is not bound can't grow, and does not keep its pod from an update that would let it be
// bound.
func TestUnboundClaim(t *testing.T) {
	w := newWorld(t)
	w.Kubelet.Lose("db:v1")
	w.create(1, volume("1Gi"), ordered, func(s *v1beta1.StatefulSetSpec) { s.VolumeClaimUpdateStrategy.Type = v1beta1.ClaimOnPodRollingUpdate })
	w.eventually("one pod", func() bool { return w.get().Status.Replicas == 1 })
	w.change(volume("2Gi"), image("db:v2"))
	w.settled(1, 1)
	if is := w.images()["db-0"]; is != "db:v2" {
		t.Errorf("db-0 runs %s", is)
	}
}

// The claims of a pod that is being deleted already go with it if it is scaled away, and not if it is
// wanted again.
func TestRetentionOfTerminatingPods(t *testing.T) {
	w := newWorld(t)
	w.create(2, volume("1Gi"), func(s *v1beta1.StatefulSetSpec) {
		s.PersistentVolumeClaimRetentionPolicy = &v1beta1.ClaimRetentionPolicy{WhenScaled: v1beta1.ClaimDelete}
		s.Template.Finalizers = []string{"test.keelson.io/drain"}
	})
	w.settled(2, 2)
	if err := w.Pods.CoreV1().Pods(w.Namespace).Delete(t.Context(), "db-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	owned := func() bool { return len(w.claim("data-db-1").OwnerReferences) == 1 }
	w.change(replicas(1))
	w.eventually("the pod owns its claim", owned)
	w.change(replicas(2))
	w.eventually("the claim is kept", func() bool { return !owned() })
}

// That InPlaceOnly can't update a pod is told for as long as it holds, also while there is no room for
// an update.
func TestStuckIsTold(t *testing.T) {
	w := newWorld(t)
	w.create(3, func(s *v1beta1.StatefulSetSpec) {
		s.UpdateStrategy.RollingUpdate.PodUpdatePolicy = v1beta1.PodUpdateInPlaceOnly
	})
	w.settled(3, 3)
	w.change(partition(1), func(s *v1beta1.StatefulSetSpec) { s.Template.Spec.Containers[0].Command = []string{"x"} })
	stuck := func() bool {
		return strings.Contains(w.condition(v1beta1.StatefulSetFailedUpdatePod), "find strategy is InPlaceOnly but Pod db-1 can not update in-place")
	}
	w.eventually("it is told", stuck)
	w.Kubelet.Pause(true)
	p := w.pods()[0]
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	p.Status.Conditions[i].Status = corev1.ConditionFalse
	if _, err := w.Pods.CoreV1().Pods(w.Namespace).UpdateStatus(t.Context(), &p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("another pod is not ready", func() bool { return w.get().Status.ReadyReplicas == 2 })
	if !stuck() {
		t.Errorf("%+v", w.get().Status.Conditions)
	}
}
