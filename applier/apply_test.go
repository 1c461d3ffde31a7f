package applier_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// server is a real API server, one for the package; nil in -short runs.
var server *rest.Config

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return m.Run()
	}
	env := &envtest.Environment{}
	config, err := env.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = env.Stop() }()
	config.QPS = -1
	server = config
	return m.Run()
}

// world is one component on the real API server, in a namespace of its own.
type world struct {
	t         *testing.T
	ns        string
	cluster   *applier.Cluster
	dynamic   dynamic.Interface
	component string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if server == nil {
		if testing.Short() {
			t.Skip("needs an API server: run make test")
		}
		t.Fatal("KUBEBUILDER_ASSETS is not set: run make test, or go test -short")
	}
	t.Parallel()
	d, err := dynamic.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))
	w := &world{t: t, ns: name, dynamic: d, component: name}
	w.reconnect()
	return w
}

// reconnect forgets all that the process knows, as a restart does.
func (w *world) reconnect() {
	w.t.Helper()
	c, err := applier.New(applier.Options{Name: "test", Config: server})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := c.Prepare(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.cluster = c
}

// collect does the garbage collector's part of a foreground deletion: only the
// API server runs here.
func (w *world) collect() {
	w.t.Helper()
	list, err := w.resource(configMaps).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, u := range list.Items {
		if u.GetDeletionTimestamp() == nil {
			continue
		}
		_, err := w.resource(configMaps).Patch(w.t.Context(), u.GetName(), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// want builds a target from manifests, in which NS stands for the namespace.
func (w *world) want(version string, manifests ...string) applier.Want {
	w.t.Helper()
	rules, err := differ.NewRules()
	if err != nil {
		w.t.Fatal(err)
	}
	target := &renderer.Target{Hash: fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(manifests, "---"))))}
	for _, m := range manifests {
		object := w.object(m)
		u := unstructured.Unstructured{Object: object}
		labels := u.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels["keelson.io/component"] = w.component
		u.SetLabels(labels)
		target.Objects = append(target.Objects, &renderer.Object{Content: object})
	}
	return applier.Want{
		Component: w.component, Version: version, Tree: "tree of " + version, Revision: "abc", Namespace: w.ns,
		Target: target, Rules: rules,
	}
}

func (w *world) object(manifest string) map[string]any {
	w.t.Helper()
	var u unstructured.Unstructured
	data, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(manifest, "NS", w.ns)))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := u.UnmarshalJSON(data); err != nil {
		w.t.Fatal(err)
	}
	return u.Object
}

func (w *world) plan(want applier.Want) *applier.Prepared {
	w.t.Helper()
	p, err := w.cluster.Plan(w.t.Context(), want)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// apply plans and applies; afterwards a second plan must find nothing to do,
// also after a restart.
func (w *world) apply(want applier.Want) *applier.Prepared {
	w.t.Helper()
	p := w.plan(want)
	if _, err := w.cluster.Apply(w.t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)}); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) settled(want applier.Want) {
	w.t.Helper()
	for _, restart := range []bool{false, true} {
		if restart {
			w.reconnect()
		}
		if p := w.plan(want); !p.Settled() {
			w.t.Errorf("a second plan (after a restart: %v) is not empty: %s", restart, show(p))
		}
	}
}

func show(p *applier.Prepared) string {
	var b strings.Builder
	_ = p.Plan.WriteText(&b, false)
	for _, c := range p.Plan.Changes {
		fmt.Fprintf(&b, "%s %s %s stale=%v\n", c.ID, c.Op, c.State, c.RecordStale)
	}
	return b.String()
}

func (w *world) resource(gvr schema.GroupVersionResource) dynamic.ResourceInterface {
	return w.dynamic.Resource(gvr).Namespace(w.ns)
}

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	hpas        = schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
)

func (w *world) get(gvr schema.GroupVersionResource, name string) *unstructured.Unstructured {
	w.t.Helper()
	u, err := w.resource(gvr).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return u
}

func (w *world) replicas() int64 {
	w.t.Helper()
	n, _, _ := unstructured.NestedInt64(w.get(deployments, "web").Object, "spec", "replicas")
	return n
}

func (w *world) scale(n int, manager string) {
	w.t.Helper()
	_, err := w.resource(deployments).Patch(w.t.Context(), "web", types.MergePatchType,
		[]byte(fmt.Sprintf(`{"spec":{"replicas":%d}}`, n)), metav1.PatchOptions{FieldManager: manager}, "scale")
	if err != nil {
		w.t.Fatal(err)
	}
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NS}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: web:v1
        resources: {limits: {cpu: 1000m, memory: 1024Mi}}
        ports: [{containerPort: 80}]
        env: [{name: A, value: "1"}]
      tolerations: [{key: a, operator: Exists}]
      volumes: [{name: empty, emptyDir: {}}]
`

const service = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NS}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 80}]
`

const networkPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: NS}
spec:
  podSelector: {}
  ingress: [{ports: [{port: 80}]}]
`

func configMap(name, value string) string {
	return `
apiVersion: v1
kind: ConfigMap
metadata: {name: ` + name + `, namespace: NS}
data: {key: ` + value + `}
`
}

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

func paths(p *applier.Prepared) []string {
	var out []string
	for _, c := range p.Plan.Changes {
		for _, f := range c.Fields {
			out = append(out, f.Path)
		}
	}
	return out
}

// What left the chart leaves the object, and what somebody else added stays.
func TestRemovedField(t *testing.T) {
	w := newWorld(t)
	two := strings.Replace(deployment, `env: [{name: A, value: "1"}]`, `env: [{name: A, value: "1"}, {name: B, value: "2"}]`, 1)
	w.apply(w.want("v1", two))
	_, err := w.resource(deployments).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"metadata":{"annotations":{"theirs":"1"}},"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"C","value":"3"}]}]}}}}`),
		metav1.PatchOptions{FieldManager: "somebody"})
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

func (w *world) autoscaler() {
	w.t.Helper()
	_, err := w.resource(hpas).Create(w.t.Context(), &unstructured.Unstructured{Object: w.object(`
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: NS}
spec: {maxReplicas: 9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
`)}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
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

// record is the resourceVersion of the component's record.
func (w *world) record() string {
	w.t.Helper()
	u, err := w.dynamic.Resource(secrets).Namespace("keelson-system").Get(w.t.Context(), "record-"+w.component, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return u.GetResourceVersion()
}

// What left the chart is deleted, once, and only that.
func TestPrune(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x"), configMap("b", "x")))
	want := w.want("v2", configMap("a", "x"))
	p := w.apply(want)
	if p.Plan.Count(differ.OpDelete) != 1 {
		t.Errorf("want one deletion:\n%s", show(p))
	}
	w.collect()
	w.apply(want) // it is gone: forget it
	w.settled(want)
	list, err := w.resource(configMaps).List(t.Context(), metav1.ListOptions{LabelSelector: "keelson.io/component"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d ConfigMaps left, want 1 (%v)", len(list.Items), err)
	}
}

// An object that lost the label, or was made anew by somebody else, is not ours
// to delete.
func TestPruneLeavesWhatIsNotOurs(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x"), configMap("b", "x"), configMap("c", "x")))
	_, err := w.resource(configMaps).Patch(t.Context(), "b", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"keelson.io/component":null}}}`), metav1.PatchOptions{FieldManager: "kubectl-label"})
	if err != nil {
		t.Fatal(err)
	}
	again := w.get(configMaps, "c")
	if err := w.resource(configMaps).Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again.SetResourceVersion("")
	again.SetUID("")
	again.SetManagedFields(nil)
	if _, err := w.resource(configMaps).Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want := w.want("v2", configMap("a", "x"))
	p := w.apply(want)
	if p.Plan.Count(differ.OpDelete) != 0 {
		t.Errorf("want no deletion:\n%s", show(p))
	}
	w.get(configMaps, "b")
	w.get(configMaps, "c")
	w.settled(want)
}

// More deletions than max(10, 10 %) look like a mistake: held.
func TestDeletionBudget(t *testing.T) {
	w := newWorld(t)
	var many []string
	for i := range 12 {
		many = append(many, configMap(fmt.Sprintf("c%d", i), "x"))
	}
	w.apply(w.want("v1", many...))
	p := w.apply(w.want("v2", many[0]))
	if p.Plan.Count(differ.OpDelete) != 0 || !strings.Contains(show(p), "deletion-budget") {
		t.Errorf("want every deletion held:\n%s", show(p))
	}
	w.get(configMaps, "c11")
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

func (w *world) namespace() error {
	_, err := w.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(w.t.Context(),
		&unstructured.Unstructured{Object: w.object("{apiVersion: v1, kind: Namespace, metadata: {name: NS}}")}, metav1.CreateOptions{})
	return err
}

// A lost record is rebuilt from the fields that Keelson owns, so that what
// leaves the chart afterwards still goes; no object is deleted by inference.
func TestRecordLost(t *testing.T) {
	w := newWorld(t)
	labelled := strings.Replace(deployment, "{name: web, namespace: NS}", "{name: web, namespace: NS, labels: {old: label}}", 1)
	w.apply(w.want("v1", labelled, configMap("a", "x"), configMap("b", "x")))
	w.loseRecord()
	want := w.want("v2", deployment, configMap("a", "x"))
	p := w.apply(want)
	if n := p.Plan.Count(differ.OpCreate) + p.Plan.Count(differ.OpDelete); n != 0 {
		t.Errorf("want neither creates nor deletions:\n%s", show(p))
	}
	if w.get(deployments, "web").GetLabels()["old"] != "" {
		t.Error("a removed label stayed")
	}
	w.get(configMaps, "b")
	w.settled(want)
}

func (w *world) loseRecord() {
	w.t.Helper()
	err := w.dynamic.Resource(secrets).Namespace("keelson-system").Delete(w.t.Context(), "record-"+w.component, metav1.DeleteOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.reconnect()
}

// Somebody writes between plan and apply: nothing of theirs is lost.
func TestConcurrentWriter(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x")))
	p := w.plan(w.want("v2", configMap("a", "changed")))
	_, err := w.resource(configMaps).Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"data":{"key":"theirs"}}`), metav1.PatchOptions{FieldManager: "somebody"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.cluster.Apply(t.Context(), p, applier.ApplyOptions{})
	if !errors.Is(err, applier.ErrStale) {
		t.Errorf("error is %v, want ErrStale", err)
	}
	if v, _, _ := unstructured.NestedString(w.get(configMaps, "a").Object, "data", "key"); v != "theirs" {
		t.Errorf("their write was lost: %q", v)
	}
}

// A process that is killed between the record of what it intends and the
// record of what it did neither doubles nor forgets an object.
func TestKilledInTheMiddle(t *testing.T) {
	w := newWorld(t)
	ctx, kill := context.WithCancel(t.Context())
	reader := &failingReader{after: 1, kill: kill}
	c, err := applier.New(applier.Options{Name: "test", Config: server, Progress: func(applier.Step) { reader.step() }})
	if err != nil {
		t.Fatal(err)
	}
	want := w.want("v1", configMap("a", "x"), service, deployment)
	p, err := c.Plan(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Apply(ctx, p, applier.ApplyOptions{}); err == nil {
		t.Fatal("the apply was not cut off")
	}
	w.reconnect()
	w.apply(want)
	w.settled(want)
	w.apply(w.want("v2", deployment, service))
	w.collect()
	if _, err := w.resource(configMaps).Get(t.Context(), "a", metav1.GetOptions{}); err == nil {
		t.Error("what was created before the kill was forgotten")
	}
}

// failingReader ends a context after some steps.
type failingReader struct {
	after int
	kill  context.CancelFunc
}

func (r *failingReader) step() {
	if r.after--; r.after == 0 {
		r.kill()
	}
}

// A version can't change: a tag that names another tree is refused.
func TestMovedTag(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x")))
	moved := w.want("v1", configMap("a", "changed"))
	moved.Tree = "another tree"
	var want *applier.TagMovedError
	if _, err := w.cluster.Plan(t.Context(), moved); !errors.As(err, &want) {
		t.Errorf("error is %v, want a TagMovedError", err)
	}
}

// An empty render is a mistake, and no wish to delete everything.
func TestEmptyRenderPrunesNothing(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x")))
	var want *applier.EmptyTargetError
	if _, err := w.cluster.Plan(t.Context(), w.want("v2")); !errors.As(err, &want) {
		t.Errorf("error is %v, want an EmptyTargetError", err)
	}
	w.get(configMaps, "a")
}

// A read that fails is no absence: no plan is made.
func TestFailedReadIsNoAbsence(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", configMap("a", "x"))
	w.apply(want)
	broken := errors.New("broken")
	c, err := applier.New(applier.Options{Name: "test", Config: server, Reader: brokenReader{broken}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Plan(t.Context(), want); !errors.Is(err, broken) {
		t.Errorf("error is %v, want %v", err, broken)
	}
}

type brokenReader struct{ err error }

func (r brokenReader) Get(context.Context, *meta.RESTMapping, differ.ID) (map[string]any, error) {
	return nil, r.err
}

func (r brokenReader) Fresh(context.Context, *meta.RESTMapping, differ.ID) (map[string]any, error) {
	return nil, r.err
}
func (r brokenReader) Scaled(context.Context, []schema.GroupVersionResource) (map[differ.ID]differ.Scaling, error) {
	return nil, nil
}
func (r brokenReader) Wrote(differ.ID, map[string]any) {}

// A Secret's data is in no plan and no record.
func TestSecretStaysSecret(t *testing.T) {
	w := newWorld(t)
	const secret = `
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: NS}
stringData: {password: hunter2-canary}
`
	want := w.want("v1", secret)
	p := w.apply(want)
	record, err := w.cluster.Record(t.Context(), w.component)
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{"plan": show(p), "record": fmt.Sprint(record)} {
		if strings.Contains(text, "canary") || strings.Contains(text, "aHVudGVyMi1jYW5hcnk") {
			t.Errorf("the %s shows the secret", what)
		}
	}
	w.settled(want)
}

// The API server quotes values of the wrong type; of a Secret none may get out.
func TestRefusedSecretStaysSecret(t *testing.T) {
	w := newWorld(t)
	const secret = `
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: NS}
data: {pin: 31337}
`
	_, err := w.cluster.Apply(t.Context(), w.plan(w.want("v1", secret)), applier.ApplyOptions{})
	if err == nil || strings.Contains(err.Error(), "31337") || !strings.Contains(err.Error(), "withheld") {
		t.Errorf("error is %v", err)
	}
}
