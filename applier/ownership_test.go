package applier_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// What server-side apply does to fields when owners come and go is known to an
// API server alone; each of these was wrong once.

// Replicas leave git alone, with nothing else to send: they are handed over all
// the same, or the next apply would reset them to 1.
func TestReplicasLeaveAlone(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", strings.Replace(deployment, "replicas: 2", "replicas: 3", 1)))
	w.autoscaler()
	without := strings.Replace(deployment, "  replicas: 2\n", "", 1)
	want := w.want("v2", without)
	w.apply(want)
	w.settled(want)
	want = w.want("v3", strings.Replace(without, "web:v1", "web:v2", 1))
	w.apply(want)
	if n := w.replicas(); n != 3 {
		t.Errorf("%d replicas, want 3", n)
	}
	w.settled(want)
}

// The API server fills in claim templates; without a record that must not look
// like the dangerous change that it would be.
func TestStatefulSetWithoutRecord(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: NS}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: db}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1024Mi}}}
`)
	w.apply(want)
	w.settled(want)
	w.loseRecord()
	w.apply(want)
	w.settled(want)
}

// A node port that the chart changes is kept; the port goes as a whole when it
// leaves git, node port and all.
func TestPortWithNodePort(t *testing.T) {
	w := newWorld(t)
	first := strings.Replace(service, "[{port: 80, targetPort: 80}]",
		"[{port: 80, name: a, targetPort: 80, nodePort: 30180}, {port: 81, name: b}]", 1)
	first = strings.Replace(first, "spec:", "spec:\n  type: NodePort", 1)
	w.apply(w.want("v1", first))
	other := strings.Replace(first, "30180", "30181", 1)
	w.apply(w.want("v2", other))
	w.settled(w.want("v2", other))
	w.apply(w.want("v3", strings.Replace(other, "targetPort: 80", "targetPort: 8080", 1)))
	want := w.want("v4", strings.Replace(other, "{port: 80, name: a, targetPort: 80, nodePort: 30181}, ", "", 1))
	w.apply(want)
	w.settled(want)
	services := schema.GroupVersionResource{Version: "v1", Resource: "services"}
	ports, _, _ := unstructured.NestedSlice(w.get(services, "web").Object, "spec", "ports")
	if len(ports) != 1 {
		t.Errorf("ports are %v, want b alone", ports)
	}
}

// A list item leaves git after an unknown client changed it. The item then belongs to that client,
// and stays with all its fields.
func TestItemThatIsTheirs(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", strings.Replace(deployment, `env: [{name: A, value: "1"}]`, `env: [{name: A, value: "1"}, {name: B, value: "2"}]`, 1)))
	_, err := w.resource(deployments).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"B","value":"3"}]}]}}}}`),
		metav1.PatchOptions{FieldManager: "my-operator"})
	if err != nil {
		t.Fatal(err)
	}
	want := w.want("v2", deployment)
	w.apply(want)
	containers, _, _ := unstructured.NestedSlice(w.get(deployments, "web").Object, "spec", "template", "spec", "containers")
	env, _, _ := unstructured.NestedSlice(containers[0].(map[string]any), "env")
	if len(env) != 2 || env[1].(map[string]any)["value"] != "3" {
		t.Errorf("env is %v, want A and their B", env)
	}
	w.settled(want)
}

// A client removed managedFields. The drift then has no owner, so Keelson sets the value back.
func TestNoManagedFields(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", configMap("a", "x"))
	w.apply(want)
	_, err := w.resource(configMaps).Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"metadata":{"managedFields":[{}]},"data":{"key":"theirs"}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.apply(want)
	if v, _, _ := unstructured.NestedString(w.get(configMaps, "a").Object, "data", "key"); v != "x" {
		t.Errorf("the value is %q, want x", v)
	}
	w.settled(want)
}
