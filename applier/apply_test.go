package applier_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	jobs        = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	hpas        = schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
)

// The API server defaults fields, also inside atomic lists, and writes
// quantities its own way: none of it may look like drift.
func TestApplyTwice(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", deployment, service, networkPolicy, configMap("a", "x"))
	p := w.apply(want)
	if n := p.Plan.Count(differ.OpCreate); n != 4 {
		t.Errorf("created %d objects, want 4", n)
	}
	w.settled(want)
}

// A wanted change sends one request, and the answer settles it.
func TestApplyChange(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", deployment, service))
	next := w.want("v2", strings.Replace(deployment, "web:v1", "web:v2", 1), service)
	p := w.apply(next)
	if p.Plan.Count(differ.OpUpdate) != 1 {
		t.Errorf("want one update:\n%s", show(p))
	}
	if diff := cmp.Diff([]string{`.spec.template.spec.containers[name="web"].image`}, paths(p)); diff != "" {
		t.Error(diff)
	}
	w.settled(next)
}

// A field that left the chart leaves the object. A field that another client added stays.
func TestRemovedField(t *testing.T) {
	w := newWorld(t)
	two := strings.Replace(deployment, `env: [{name: A, value: "1"}]`, `env: [{name: A, value: "1"}, {name: B, value: "2"}]`, 1)
	w.apply(w.want("v1", two))
	_, err := w.resource(deployments).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"metadata":{"annotations":{"theirs":"1"}},"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"C","value":"3"}]}]}}}}`),
		metav1.PatchOptions{FieldManager: "other-client"})
	if err != nil {
		t.Fatal(err)
	}
	want := w.want("v2", deployment)
	w.apply(want)
	containers, _, _ := unstructured.NestedSlice(w.get(deployments, "web").Object, "spec", "template", "spec", "containers")
	env := fmt.Sprint(containers[0].(map[string]any)["env"])
	if strings.Contains(env, "name:B") || !strings.Contains(env, "name:C") || !strings.Contains(env, "name:A") {
		t.Errorf("env is %s, want A and C", env)
	}
	w.settled(want)
}

// kubectl scale is a person's change: set back.
func TestScaleRestored(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", deployment)
	w.apply(want)
	w.scale(5, "kubectl")
	w.apply(want)
	if n := w.replicas(); n != 2 {
		t.Errorf("%d replicas, want 2", n)
	}
	w.settled(want)
}

// Under an autoscaler the same change stays, and an update of something else
// doesn't reset it.
func TestScaleKeptUnderAutoscaler(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", deployment))
	w.autoscaler()
	w.scale(5, "kube-controller-manager")
	p := w.plan(w.want("v1", deployment))
	if !p.Settled() {
		t.Errorf("an autoscaler's replicas are no drift:\n%s", show(p))
	}
	want := w.want("v2", strings.Replace(deployment, "web:v1", "web:v2", 1))
	w.apply(want)
	if n := w.replicas(); n != 5 {
		t.Errorf("%d replicas, want 5", n)
	}
	w.settled(want)
}

// replicas leaves the chart because an autoscaler took over. Keelson alone owns
// the field, so it is handed over: else the API server would reset it to 1.
func TestReplicasHandedOver(t *testing.T) {
	w := newWorld(t)
	three := strings.Replace(deployment, "replicas: 2", "replicas: 3", 1)
	w.apply(w.want("v1", three))
	w.autoscaler()
	want := w.want("v2", strings.Replace(strings.Replace(deployment, "  replicas: 2\n", "", 1), "web:v1", "web:v2", 1))
	w.apply(want)
	if n := w.replicas(); n != 3 {
		t.Errorf("%d replicas, want 3", n)
	}
	w.settled(want)
}

// A selector is dangerous: nothing of the object moves, and the rest does.
func TestSelectorHeld(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", deployment, configMap("a", "x")))
	before := w.get(deployments, "web").GetResourceVersion()
	changed := strings.NewReplacer("web:v1", "web:v2", "{matchLabels: {app: web}}", "{matchLabels: {app: other}}").Replace(deployment)
	want := w.want("v2", changed, configMap("a", "changed"))
	p := w.apply(want)
	if after := w.get(deployments, "web").GetResourceVersion(); after != before {
		t.Error("the held object was written")
	}
	if v, _, _ := unstructured.NestedString(w.get(configMaps, "a").Object, "data", "key"); v != "changed" {
		t.Errorf("the other object was not written: %q", v)
	}
	if !strings.Contains(show(p), "workload-selector") {
		t.Errorf("the rule is not named:\n%s", show(p))
	}
	w.reconnect()
	if p := w.plan(want); p.Settled() || p.Plan.Count(differ.OpUpdate) != 0 {
		t.Errorf("want held and nothing to write:\n%s", show(p))
	}
	record := w.record()
	w.apply(want)
	if w.record() != record {
		t.Error("a held change costs a write of the record each time")
	}
}

// A CRD and an object of its kind come in one go.
func TestCRDBeforeItsObjects(t *testing.T) {
	w := newWorld(t)
	const crd = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.NS.example.com}
spec:
  group: NS.example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {
      size: {type: integer, default: 3}, parts: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [id],
        items: {type: object, required: [id], properties: {id: {type: string}, color: {type: string, default: red}}}}}}}}}
`
	const widget = `
apiVersion: NS.example.com/v1
kind: Widget
metadata: {name: w, namespace: NS}
spec: {parts: [{id: a}]}
`
	want := w.want("v1", widget, crd)
	w.apply(want)
	w.settled(want)
	next := w.want("v2", strings.Replace(widget, "[{id: a}]", "[{id: b}, {id: a, color: blue}]", 1), crd)
	w.apply(next)
	w.settled(next)
	p := w.apply(w.want("v3", configMap("a", "x")))
	if !strings.Contains(show(p), "delete-CustomResourceDefinition") {
		t.Errorf("want the CRD's deletion held:\n%s", show(p))
	}
}

// An object that exists and that Keelson never applied is held, or adopted.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	if err := w.namespace(); err != nil {
		t.Fatal(err)
	}
	_, err := w.resource(configMaps).Create(t.Context(), &unstructured.Unstructured{Object: w.object(configMap("a", "theirs"))},
		metav1.CreateOptions{FieldManager: "kubectl-create"})
	if err != nil {
		t.Fatal(err)
	}
	want := w.want("v1", configMap("a", "ours"))
	w.apply(want)
	if v, _, _ := unstructured.NestedString(w.get(configMaps, "a").Object, "data", "key"); v != "theirs" {
		t.Errorf("it was taken over without adopt: %q", v)
	}
	want.Adopt = true
	w.apply(want)
	if v, _, _ := unstructured.NestedString(w.get(configMaps, "a").Object, "data", "key"); v != "ours" {
		t.Errorf("it was not adopted: %q", v)
	}
	w.settled(want)
}

// The API server quotes values of the wrong type, so those of a Secret it never
// gets; what is wrong is said with the template's line.
func TestRefusedSecretStaysSecret(t *testing.T) {
	w := newWorld(t)
	for data, path := range map[string]string{
		"data: {pin: 31337}":                  ".data.pin has to be a text: quote it",
		"data: {pin: hunter2-no-base64}":      ".data.pin has to be in base64",
		"data: {pin: {nested: [31337]}}":      ".data.pin has to be a text",
		"data: [hunter2]":                     ".data has to be a map",
		`stringData: {"a.b": true, c: valid}`: `.stringData."a.b" has to be a text`,
	} {
		want := w.want("v1", "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: NS}\n"+data)
		want.Target.Objects[0].Source = yamlfile.Position{File: "secret.yaml", Line: 3}
		_, err := w.cluster.Plan(t.Context(), want)
		if !errors.As(err, new(*applier.MalformedSecretError)) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "secret.yaml:3: Secret ") ||
			strings.Contains(err.Error(), "31337") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error is %v", data, err)
		}
	}
}
