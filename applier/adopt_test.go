package applier_test

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/applier"
)

// Keelson adopts an object that another client created: it keeps the object, records its UID and
// sets the label. Fields of the chart are set. Other fields and fields of a controller stay. When
// the object leaves the chart, Keelson deletes it.
func TestAdoptWhole(t *testing.T) {
	w := newWorld(t)
	if err := w.namespace(); err != nil {
		t.Fatal(err)
	}
	theirs := strings.NewReplacer("namespace: NS}", "namespace: NS, labels: {team: a}, annotations: {note: theirs}}", "web:v1", "web:v0").Replace(deployment)
	before, err := w.resource(deployments).Create(t.Context(), &unstructured.Unstructured{Object: w.object(theirs)}, metav1.CreateOptions{FieldManager: "kubectl-create"})
	if err != nil {
		t.Fatal(err)
	}
	w.scale(7, "kube-controller-manager")
	want := w.want("v1", deployment, configMap("a", "x"))
	if p := w.apply(want); !strings.Contains(show(p), "adopt: true in component.yaml takes it over") {
		t.Errorf("the plan does not say how to take the object over:\n%s", show(p))
	}
	want.Adopt = true
	w.apply(want)
	w.settled(want)

	u := w.get(deployments, "web")
	if u.GetUID() != before.GetUID() {
		t.Error("the object was created again")
	}
	if got := u.GetLabels(); got["keelson.io/component"] != w.component || got["team"] != "a" || u.GetAnnotations()["note"] != "theirs" {
		t.Errorf("labels %v, annotations %v", got, u.GetAnnotations())
	}
	containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	if image := containers[0].(map[string]any)["image"]; image != "web:v1" {
		t.Errorf("the image is %v, want git's", image)
	}
	if n := w.replicas(); n != 7 {
		t.Errorf("%d replicas, want those that the controller set", n)
	}
	if o := w.inventory()[1]; o.UID != string(before.GetUID()) || o.Intent != "" {
		t.Errorf("the record has UID %q and intent %q", o.UID, o.Intent)
	}

	w.prune(w.want("v2", configMap("a", "x")))
	if w.get(deployments, "web").GetDeletionTimestamp() == nil {
		t.Error("the adopted object left the chart and was not deleted")
	}
}

// Another client deletes and creates the object between the plan of its adoption and the write.
// Keelson does not write the new object, and does not mistake it for the old one.
func TestAdoptAnother(t *testing.T) {
	w := newWorld(t)
	if err := w.namespace(); err != nil {
		t.Fatal(err)
	}
	create := func(value string) {
		t.Helper()
		_, err := w.resource(configMaps).Create(t.Context(), &unstructured.Unstructured{Object: w.object(configMap("a", value))}, metav1.CreateOptions{FieldManager: "helm"})
		if err != nil {
			t.Fatal(err)
		}
	}
	create("first")
	want := w.want("v1", configMap("a", "ours"))
	w.apply(want) // finds it
	want.Adopt = true
	p := w.plan(want)
	if err := w.resource(configMaps).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	create("second")
	uid := w.uid("a")
	if _, err := w.cluster.Apply(t.Context(), p, applier.ApplyOptions{}); !errors.Is(err, applier.ErrStale) {
		t.Error("a plan for another object was carried out")
	}
	if v, _, _ := unstructured.NestedString(w.get(configMaps, "a").Object, "data", "key"); v != "second" {
		t.Errorf("it was written: %q", v)
	}
	w.reconnect()
	w.apply(want)
	if o := w.inventory()[0]; types.UID(o.UID) != uid {
		t.Errorf("the record has UID %s, want %s", o.UID, uid)
	}
}
