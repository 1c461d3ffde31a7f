package cloneset_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// stored has each pod have a claim, named data.
func stored(s *v1beta1.CloneSetSpec) {
	inPlace(s)
	s.Template.Spec.Volumes = []corev1.Volume{{Name: "data"}, {Name: "tmp"}} // the claim takes the place of the first
	s.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "tmp", MountPath: "/tmp"}}
	s.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: map[string]string{"tier": "gold"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}}
}

func reused(s *v1beta1.CloneSetSpec) {
	stored(s)
	s.ScaleStrategy.EnablePVCReuse = true
}

// claims are those that aren't being deleted, by name.
func (w *world) claims() map[string]corev1.PersistentVolumeClaim {
	w.Helper()
	list, err := w.pods.CoreV1().PersistentVolumeClaims(w.namespace).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	out := map[string]corev1.PersistentVolumeClaim{}
	for _, c := range list.Items {
		if c.DeletionTimestamp == nil {
			out[c.Name] = c
		}
	}
	return out
}

// claimed waits until the claims are those of the pods, and returns their UIDs.
func (w *world) claimed() map[string]string {
	w.Helper()
	var want, got []string
	uids := map[string]string{}
	err := wait.PollUntilContextTimeout(w.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		want, got = nil, nil
		clear(uids)
		for _, p := range w.list() { //nolint:contextcheck // the test's own
			want = append(want, "data-"+p.Name)
		}
		for name, c := range w.claims() { //nolint:contextcheck // the test's own
			got = append(got, name)
			uids[name] = string(c.UID)
		}
		slices.Sort(got)
		return slices.Equal(want, got), nil
	})
	if err != nil {
		w.Fatalf("pods want %v, and there are %v", want, got)
	}
	return uids
}

func (w *world) deletePod(p *corev1.Pod) {
	w.Helper()
	if err := w.client.Delete(w.Context(), p); err != nil {
		w.Fatal(err)
	}
}

// gone waits until a pod has gone, and as many others serve.
func (w *world) gone(p *corev1.Pod, replicas int32) {
	w.Helper()
	w.eventually(p.Name+" has gone", func(s v1beta1.CloneSetStatus) bool {
		pods := w.list()
		return !slices.ContainsFunc(pods, func(o corev1.Pod) bool { return o.UID == p.UID }) && len(pods) == int(replicas) && s.Replicas == replicas && s.AvailableReplicas == replicas
	})
}

// Each pod has a claim for itself, which an update in place keeps, and which goes with
// it, whoever deletes it.
func TestClaims(t *testing.T) {
	w := newWorld(t)
	w.create(3, stored)
	w.settled(3, 3)
	before := w.claimed()
	set := w.get()
	for _, p := range w.list() {
		id := p.Labels[v1beta1.LabelInstanceID]
		volumes := map[string]string{}
		for _, v := range p.Spec.Volumes {
			if volumes[v.Name] = ""; v.PersistentVolumeClaim != nil {
				volumes[v.Name] = v.PersistentVolumeClaim.ClaimName
			}
		}
		if volumes["data"] != "data-web-"+id || volumes["tmp"] != "" || p.Name != "web-"+id {
			t.Errorf("%s has %v", p.Name, volumes)
		}
		c := w.claims()[volumes["data"]]
		if diff := cmp.Diff(map[string]string{"tier": "gold", "app": "web", v1beta1.LabelInstanceID: id}, c.Labels); diff != "" {
			t.Errorf("%s: -want +got:\n%s", c.Name, diff)
		}
		if !metav1.IsControlledBy(&c, set) {
			t.Errorf("%s belongs to %+v", c.Name, c.OwnerReferences)
		}
	}
	w.change(image("web:v2"))
	w.settled(3, 3)
	if diff := cmp.Diff(before, w.claimed()); diff != "" {
		t.Errorf("through the update: -before +after:\n%s", diff)
	}
	w.change(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(2)) })
	w.settled(2, 2)
	w.claimed()
	lost := w.list()[0]
	w.deletePod(&lost)
	w.gone(&lost, 2)
	if _, there := w.claimed()["data-"+lost.Name]; there {
		t.Errorf("%s was used again", "data-"+lost.Name)
	}
}

// If claims are reused, a new pod takes over the claim of a pod that another client deleted. The
// CloneSet deletes the claims of pods that it deletes itself. A claim that is being deleted is not
// reused.
func TestClaimsReused(t *testing.T) {
	w := newWorld(t)
	w.create(2, reused)
	w.settled(2, 2)
	before := w.claimed()
	lost := w.list()[0]
	w.deletePod(&lost)
	w.gone(&lost, 2)
	if diff := cmp.Diff(before, w.claimed()); diff != "" {
		t.Errorf("a pod was lost: -before +after:\n%s", diff)
	}

	lost = w.list()[0]
	if err := w.pods.CoreV1().PersistentVolumeClaims(w.namespace).Delete(t.Context(), "data-"+lost.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.deletePod(&lost)
	w.gone(&lost, 2)
	if _, there := w.claimed()["data-"+lost.Name]; there || slices.ContainsFunc(w.list(), func(p corev1.Pod) bool { return p.Name == lost.Name }) {
		t.Errorf("the claim of %s was used again", lost.Name)
	}

	w.change(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(1)) })
	w.settled(1, 1)
	w.claimed()
}

// A pod that hasn't ended yet still uses its claim, so its successor waits.
func TestClaimsWait(t *testing.T) {
	w := newWorld(t)
	w.create(1, func(s *v1beta1.CloneSetSpec) {
		reused(s)
		s.Template.Finalizers = []string{"example.com/held"}
	})
	w.settled(1, 1)
	before := w.claimed()
	lost := w.list()[0]
	w.deletePod(&lost)
	w.eventually("it is missed", func(s v1beta1.CloneSetStatus) bool { return s.Replicas == 0 })
	w.change(func(s *v1beta1.CloneSetSpec) { s.RevisionHistoryLimit = new(int32(3)) })
	w.eventually("another look came to the same", func(s v1beta1.CloneSetStatus) bool { return s.Replicas == 0 })
	if pods := w.list(); len(pods) != 1 {
		t.Errorf("there are %d pods", len(pods))
	}
	w.edit(lost.Name, func(p *corev1.Pod) { p.Finalizers = nil })
	w.gone(&lost, 1)
	if diff := cmp.Diff(before, w.claimed()); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// A claim of that name may belong to another owner. It is left alone, and the new pod gets another
// name.
func TestClaimsOfOthers(t *testing.T) {
	w := newWorld(t)
	w.create(1, reused)
	w.settled(1, 1)
	lost := w.list()[0]
	name := "data-" + lost.Name
	c := w.claims()[name]
	c.OwnerReferences = nil
	if err := w.client.Update(t.Context(), &c); err != nil {
		t.Fatal(err)
	}
	w.deletePod(&lost)
	w.gone(&lost, 1)
	if now := w.list()[0]; now.Name == lost.Name || strings.Contains(now.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, lost.Name) {
		t.Errorf("%s uses %+v", now.Name, now.Spec.Volumes[0])
	}
	if _, there := w.claims()[name]; !there {
		t.Errorf("%s was deleted", name)
	}
}
