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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// server is a real API server, one for the package; nil in -short runs.
var server *rest.Config

// shared: schemas are parsed once for the package: a process that restarts would parse the same
// documents again, which takes most of the time of these tests.
var shared = applier.NewShared()

// patience ends a wait for what must happen. It is not a bound: only a test that hangs
// reaches it.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { server = config }))
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
	apiservertest.Need(t, server)
	t.Parallel()
	d, err := dynamic.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "/", "-")
	w := &world{t: t, ns: name, dynamic: d, component: name}
	w.reconnect()
	return w
}

// reconnect forgets all that the process knows, as a restart does.
func (w *world) reconnect() {
	w.t.Helper()
	w.connect(server)
}

func (w *world) connect(config *rest.Config, options ...func(*applier.Options)) {
	w.t.Helper()
	o := applier.Options{Name: "test", Config: config, Shared: shared}
	for _, set := range options {
		set(&o)
	}
	c, err := applier.New(o)
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
func (w *world) want(version string, manifests ...string) applier.Desired {
	w.t.Helper()
	rules, err := differ.NewRules(differ.Scopes{})
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
	return applier.Desired{
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

func (w *world) plan(want applier.Desired) *applier.Prepared {
	w.t.Helper()
	p, err := w.cluster.Plan(w.t.Context(), want)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// apply plans and applies; afterwards a second plan must find nothing to do,
// also after a restart.
func (w *world) apply(want applier.Desired) *applier.Prepared {
	w.t.Helper()
	p := w.plan(want)
	_, err := w.cluster.Apply(w.t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)})
	if errors.Is(err, applier.ErrStale) { // taken over from a session that was cut off
		p = w.plan(want)
		_, err = w.cluster.Apply(w.t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// prune applies in two passes, as a deletion needs, the second after a restart.
func (w *world) prune(want applier.Desired) {
	w.t.Helper()
	w.apply(want)
	w.reconnect()
	w.apply(want)
}

// eventually waits for what the API server takes its time for.
func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(w.t.Context(), 100*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		w.t.Fatalf("not within a minute: %s", what)
	}
}

// as is the same namespace and cluster from another component's side.
func (w *world) as(component string) *world {
	other := *w
	other.component = component
	return &other
}

// there says whether a ConfigMap is there, and is not being deleted.
func (w *world) there(name string) bool {
	w.t.Helper()
	u, err := w.resource(configMaps).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	return err == nil && u.GetDeletionTimestamp() == nil
}

func (w *world) settled(want applier.Desired) {
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

func paths(p *applier.Prepared) []string {
	var out []string
	for _, c := range p.Plan.Changes {
		for _, f := range c.Fields {
			out = append(out, f.Path)
		}
	}
	return out
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

// record is the resourceVersion of the component's record.
func (w *world) record() string {
	w.t.Helper()
	u, err := w.dynamic.Resource(secrets).Namespace("keelson-system").Get(w.t.Context(), "record-"+w.component, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return u.GetResourceVersion()
}

func (w *world) namespace() error {
	_, err := w.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(w.t.Context(),
		&unstructured.Unstructured{Object: w.object("{apiVersion: v1, kind: Namespace, metadata: {name: NS}}")}, metav1.CreateOptions{})
	return err
}

func (w *world) loseRecord() {
	w.t.Helper()
	err := w.dynamic.Resource(secrets).Namespace("keelson-system").Delete(w.t.Context(), "record-"+w.component, metav1.DeleteOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.reconnect()
}
