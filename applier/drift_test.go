package applier_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// patchDeployment writes to the Deployment as a tenant of the cluster may: under any
// field manager.
func (w *world) patchDeployment(body, manager string) {
	w.t.Helper()
	_, err := w.resource(deployments).Patch(w.t.Context(), "web", types.StrategicMergePatchType, []byte(body),
		metav1.PatchOptions{FieldManager: manager})
	if err != nil {
		w.t.Fatal(err)
	}
}

// image is that of the Deployment's container.
func (w *world) image() string {
	w.t.Helper()
	containers, _, err := unstructured.NestedSlice(w.get(deployments, "web").Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		w.t.Fatalf("containers %v (%v)", containers, err)
	}
	container, _ := containers[0].(map[string]any)
	image, _ := container["image"].(string)
	return image
}

const hostileImage = `{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"evil:1"}]}}}}`

// Any client may write under the name of a controller. What that controller never sets
// is drift all the same, and goes back.
func TestBorrowedManagers(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", deployment)
	w.apply(want)
	for _, manager := range []string{
		"kubectl-edit", "kube-controller-manager", "kubelet", "kube-scheduler", "cert-manager", "vpa-updater", "keda-operator", "kruise-manager",
		"argo-rollouts", "keelson", "keelson-workload",
	} {
		w.patchDeployment(hostileImage, manager)
		if p := w.plan(want); p.Settled() {
			t.Errorf("an image by %s counts as settled:\n%s", manager, show(p))
		}
		w.apply(want)
		if got := w.image(); got != "web:v1" {
			t.Errorf("an image by %s is not restored: %s", manager, got)
		}
		w.settled(want)
	}
}

// managedFields are a field like others: who may update an object may write there that
// a controller has set its image through the scale subresource.
func TestForgedManagedFields(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", deployment)
	w.apply(want)
	u := w.get(deployments, "web")
	evil := []any{map[string]any{"name": "web", "image": "evil:1"}}
	if err := unstructured.SetNestedSlice(u.Object, evil, "spec", "template", "spec", "containers"); err != nil {
		t.Fatal(err)
	}
	fields := metav1.NewFieldsV1(`{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{"f:image":{}}}}}}}`)
	u.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "scale",
		APIVersion: "apps/v1", FieldsType: "FieldsV1", FieldsV1: fields,
	}})
	if _, err := w.resource(deployments).Update(t.Context(), u, metav1.UpdateOptions{FieldManager: "kube-controller-manager"}); err != nil {
		t.Fatal(err)
	}
	w.apply(want)
	if got := w.image(); got != "web:v1" {
		t.Errorf("the image is not restored: %s", got)
	}
}

// What comes through the scale subresource takes a right of its own, and stays.
func TestScaledByAnyName(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", deployment)
	w.apply(want)
	w.scale(5, "my-scaler")
	w.apply(want)
	if got := w.replicas(); got != 5 {
		t.Errorf("%d replicas, want the 5 of the scaler", got)
	}
}

const otherLabel = `{"metadata":{"labels":{"keelson.io/component":"zzz"}}}`

// One label takes no object out of reconciliation: where the record has the object and
// no other component does, it is drift as any label.
func TestRelabelled(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", deployment, configMap("a", "x"))
	w.apply(among(want))
	w.patchDeployment(otherLabel, "kubectl-label")
	w.patchDeployment(hostileImage, "kubectl-edit")
	w.apply(among(want))
	if got := w.get(deployments, "web").GetLabels()["keelson.io/component"]; got != w.component || w.image() != "web:v1" {
		t.Errorf("label %s and image %s are not restored", got, w.image())
	}
	w.settled(among(want))

	w.patchDeployment(otherLabel, "kubectl-label")
	p := w.plan(among(want, applier.Desired{Component: "broken"}))
	if says := "whether component broken wants it is unknown"; change(t, p, "Deployment").State != differ.StateHeld || !strings.Contains(show(p), says) {
		t.Errorf("want it held, as any component may want it, saying %q:\n%s", says, show(p))
	}
}

// An object that was deleted, and that another component made anew, is no drift: the record
// has another UID for its name.
func TestRelabelledAnew(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", configMap("a", "x"), configMap("b", "x"))
	w.apply(among(want))
	if err := w.resource(configMaps).Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	other := w.as(w.ns + "-other")
	theirs := other.want("v1", configMap("b", "theirs")).Target.Objects[0].Content
	if _, err := w.resource(configMaps).Create(t.Context(), &unstructured.Unstructured{Object: theirs}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := w.plan(among(want))
	if p.Plan.Changes[1].State != differ.StateHeld {
		t.Errorf("what others have made is to be taken over:\n%s", show(p))
	}
}
