package probe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/applier/rights"
	"github.com/keelson-io/keelson/controllers/probe"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer/redact"
)

// server is a real API server, hub and cluster in one; nil in -short runs.
var server *rest.Config

func TestMain(m *testing.M) {
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { server = config }))
}

const (
	patience = 3 * time.Minute
	head     = "apiVersion: keelson.io/v1alpha1\nkind: "
	// workloads has a subject of each kind.
	workloads = head + `Probe
clusterSelector: {matchLabels: {probed: "true"}}
namespace: NAMESPACE
timeout: TIMEOUT
images:
  old: {repository: registry.k8s.io/pause, tag: "3.9"}
  new: {repository: registry.k8s.io/pause, tag: "3.10"}
subjects:
- {name: web, deployment: {image: old, upgradeTo: new, replicas: 2}}
- {name: db, statefulSet: {image: old, upgradeTo: new}}
- {name: agent, daemonSet: {image: old, nodeSelector: {probes: "true"}}}
- {name: job, job: {image: old, upgradeTo: new}}
- {name: backup, custom: {template: manifests/backup.yaml, ready: object.status.done == object.spec.keep, upgrade: {spec: {keep: 2}}}}
`
)

// repo is a fleet repository with probes.
type repo struct {
	t         testing.TB
	folder    string
	namespace string
	repo      *registry.Repo
}

func newRepo(t testing.TB) *repo {
	t.Helper()
	r := &repo{t: t, folder: t.TempDir(), namespace: strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))}
	r.git("init", "-q", "-b", "main")
	r.write("fleet.yaml", head+"Fleet\nname: NAMESPACE\n")
	for name, more := range map[string]string{"a": "labels: {probed: \"true\"}\n", "b": "labels: {probed: \"true\"}\n", "other": "", "paused": "labels: {probed: \"true\"}\npaused: true\n"} {
		r.write("clusters/"+name+"/cluster.yaml", head+"Cluster\n"+more+"connection: {context: "+name+"}\n")
	}
	r.write("manifests/backup.yaml", "apiVersion: probes.example.com/v1\nkind: Backup\nspec: {keep: 1}\n")
	r.write("probes/workloads.yaml", workloads)
	return r
}

func (r *repo) git(args ...string) {
	r.t.Helper()
	c := exec.CommandContext(r.t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
	c.Dir = r.folder
	if out, err := c.CombinedOutput(); err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func (r *repo) write(name, content string) {
	r.t.Helper()
	path := filepath.Join(r.folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	content = strings.NewReplacer("NAMESPACE", r.namespace, "timeout: TIMEOUT\n", "").Replace(content)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// load commits and reads the repository, which has no mistakes.
func (r *repo) load() *registry.Fleet {
	r.t.Helper()
	f := r.loadBroken()
	if err := f.Problems.Err(); err != nil {
		r.t.Fatal(err)
	}
	return f
}

func (r *repo) loadBroken() *registry.Fleet {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", "x")
	var err error
	if r.repo == nil {
		r.repo, err = registry.Open(r.t.Context(), gitrepo.Options{URL: r.folder, CacheDir: r.t.TempDir()})
	} else {
		err = r.repo.Git().Fetch(r.t.Context())
	}
	if err != nil {
		r.t.Fatal(err)
	}
	f, err := r.repo.Load(r.t.Context(), "")
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// world is a namespace of the API server in which the test plays the controllers.
type world struct {
	*repo
	dynamic dynamic.Interface
	hub     client.Client
	metrics *prometheus.Registry
	events  *record.FakeRecorder
	// user may do what keelson rbac prints for the probe, and nothing else; empty: an
	// administrator runs it.
	user string
	// stuck has no pod of the second image become ready.
	stuck atomic.Bool
	// ahead is what the clock is ahead of the real one.
	ahead atomic.Int64
	asked atomic.Int64 // Unix microseconds; 0: no check asks
	mu    sync.Mutex
	seen  map[string]bool // what objects were seen to be: KIND IMAGE×REPLICAS
}

func newWorld(t *testing.T) *world {
	t.Helper()
	apiservertest.Need(t, server)
	t.Parallel()
	w := &world{repo: newRepo(t), seen: map[string]bool{}, metrics: prometheus.NewRegistry(), events: record.NewFakeRecorder(100)}
	var err error
	if w.dynamic, err = dynamic.NewForConfig(server); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	if w.hub, err = client.New(server, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{w.namespace, v1alpha1.Namespace} {
		if err := w.hub.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	w.crd(backups)
	manifest, err := os.ReadFile("../../components/keelson/template/crds/keelson.io_proberesults.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w.crd(string(manifest))
	ctx, stop := context.WithCancel(t.Context())
	played := make(chan struct{})
	go func() {
		defer close(played)
		_ = wait.PollUntilContextCancel(ctx, 30*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			w.play(ctx)
			return false, nil
		})
	}()
	t.Cleanup(func() { stop(); <-played })
	return w
}

const backups = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "backups.probes.example.com"},
"spec": {"group": "probes.example.com", "names": {"kind": "Backup", "plural": "backups"}, "scope": "Namespaced", "versions": [{"name": "v1", "served": true, "storage": true,
"subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
"status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}]}}`

// crd has the API server serve a kind.
func (w *world) crd(manifest string) {
	w.t.Helper()
	u := decode(w.t, manifest)
	gvr := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := w.dynamic.Resource(gvr).Create(w.t.Context(), u, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	w.eventually(u.GetName()+" is served", func() bool {
		live, err := w.dynamic.Resource(gvr).Get(w.t.Context(), u.GetName(), metav1.GetOptions{})
		if err != nil {
			return false
		}
		names, _, _ := unstructured.NestedString(live.Object, "status", "acceptedNames", "plural")
		group, _, _ := unstructured.NestedString(live.Object, "spec", "group")
		versions, _, _ := unstructured.NestedSlice(live.Object, "spec", "versions")
		version, _ := versions[0].(map[string]any)["name"].(string)
		_, err = w.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: names}).List(w.t.Context(), metav1.ListOptions{})
		return err == nil
	})
}

// kinds are what the test plays the controllers of.
func kinds() map[string]schema.GroupVersionResource {
	return map[string]schema.GroupVersionResource{
		"Deployment":  {Group: "apps", Version: "v1", Resource: "deployments"},
		"StatefulSet": {Group: "apps", Version: "v1", Resource: "statefulsets"},
		"DaemonSet":   {Group: "apps", Version: "v1", Resource: "daemonsets"},
		"Job":         {Group: "batch", Version: "v1", Resource: "jobs"},
		"Backup":      {Group: "probes.example.com", Version: "v1", Resource: "backups"},
	}
}

// play does the part of the controllers, and of the garbage collector.
func (w *world) play(ctx context.Context) {
	for kind, gvr := range kinds() {
		list, err := w.dynamic.Resource(gvr).Namespace(w.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for i := range list.Items {
			u := &list.Items[i]
			if u.GetLabels()[v1alpha1.LabelProbe] == "" || u.GetAnnotations()["hands"] == "off" {
				continue
			}
			api := w.dynamic.Resource(gvr).Namespace(w.namespace)
			if u.GetDeletionTimestamp() != nil {
				_, _ = api.Patch(ctx, u.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				continue
			}
			image := imageOf(u)
			replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
			w.mu.Lock()
			w.seen[fmt.Sprintf("%s %s×%d", kind, image, replicas)] = true
			w.mu.Unlock()
			if w.stuck.Load() && strings.HasSuffix(image, ":3.10") {
				continue
			}
			status := statusOf(kind, u, replicas)
			if was, _, _ := unstructured.NestedMap(u.Object, "status"); was["observedGeneration"] == status["observedGeneration"] && kind != "Job" && kind != "Backup" {
				continue
			}
			text, _ := json.Marshal(map[string]any{"status": status})
			_, _ = api.Patch(ctx, u.GetName(), types.MergePatchType, text, metav1.PatchOptions{FieldManager: "player"}, "status")
		}
	}
}

func imageOf(u *unstructured.Unstructured) string {
	containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	if len(containers) == 0 {
		return ""
	}
	image, _ := containers[0].(map[string]any)["image"].(string)
	return image
}

// statusOf is that of an object whose controller is done with it.
func statusOf(kind string, u *unstructured.Unstructured, n int64) map[string]any {
	status := map[string]any{"observedGeneration": u.GetGeneration()}
	add := func(value any, keys ...string) {
		for _, key := range keys {
			status[key] = value
		}
	}
	now := time.Now().UTC().Format(time.RFC3339)
	switch kind {
	case "Deployment":
		add(n, "replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
		add([]any{
			map[string]any{"type": "Available", "status": "True"},
			map[string]any{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
		}, "conditions")
	case "StatefulSet":
		add(n, "replicas", "updatedReplicas", "readyReplicas", "currentReplicas", "availableReplicas")
		add("one", "currentRevision", "updateRevision")
	case "DaemonSet":
		add(int64(1), "desiredNumberScheduled", "currentNumberScheduled", "updatedNumberScheduled", "numberAvailable", "numberReady")
		add(int64(0), "numberMisscheduled")
	case "Job":
		add(now, "startTime", "completionTime")
		add(int64(1), "succeeded")
		add(map[string]any{}, "uncountedTerminatedPods")
		add([]any{
			map[string]any{"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": now, "lastProbeTime": now},
			map[string]any{"type": "Complete", "status": "True", "lastTransitionTime": now, "lastProbeTime": now},
		}, "conditions")
		delete(status, "observedGeneration")
	case "Backup":
		keep, _, _ := unstructured.NestedInt64(u.Object, "spec", "keep")
		status = map[string]any{"done": keep}
	}
	return status
}

func decode(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = u.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// left are the objects of probes in the namespace: KIND NAME.
func (w *world) left() []string {
	var out []string
	for kind, gvr := range kinds() {
		list, err := w.dynamic.Resource(gvr).Namespace(w.namespace).List(context.WithoutCancel(w.t.Context()), metav1.ListOptions{})
		if err != nil {
			out = append(out, err.Error())
			continue
		}
		for _, u := range list.Items {
			out = append(out, kind+" "+u.GetName())
		}
	}
	return out
}

func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(w.t.Context(), 30*time.Millisecond, patience, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		w.t.Fatalf("%s: not within %s; left are %v, the result is %+v", what, patience, w.left(), w.result())
	}
}

func (w *world) result() v1alpha1.ProbeResultStatus {
	var r v1alpha1.ProbeResult
	_ = w.hub.Get(context.WithoutCancel(w.t.Context()), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: w.cluster() + ".workloads"}, &r)
	return r.Status
}

// cluster is the one that is probed, named after the test: results are in one hub.
func (w *world) cluster() string { return w.namespace }

// now is the test's clock.
func (w *world) now() time.Time {
	return time.Now().Add(time.Duration(w.ahead.Load()))
}

// restrict has the probe run with the rights that it is granted.
func (w *world) restrict(f *registry.Fleet) {
	w.t.Helper()
	cluster, err := applier.New(applier.Options{Name: w.cluster(), Config: server, Shared: applier.NewShared()})
	if err != nil {
		w.t.Fatal(err)
	}
	served := rights.Served{Mapping: func(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
		return cluster.Mapping(w.t.Context(), gvk)
	}}
	allowed := rights.Probe{Namespace: w.namespace}
	for _, s := range probe.Subjects(f.Probe("workloads"), f.Spec.Name, f.Cluster("a")) {
		allowed.Kinds = append(allowed.Kinds, s.GVK)
	}
	r, _, err := rights.ForCluster(nil, served)
	if err == nil {
		err = r.Allow(allowed, served)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.user = "prober-" + w.namespace
	for _, o := range r.Objects("keelson", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: w.user}) {
		if o, ok := o.(client.Object); ok && o.GetNamespace() == w.namespace {
			if err := w.hub.Create(w.t.Context(), o); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// start runs a prober as a process would until stop is called. Once killed is set none
// of its requests is sent any more.
func (w *world) start(f *registry.Fleet, killed *atomic.Bool) (p *probe.Prober, stop func()) {
	w.t.Helper()
	config := rest.CopyConfig(server)
	if killed != nil {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if killed.Load() {
					return nil, context.Canceled
				}
				return next.RoundTrip(r)
			})
		})
	}
	target := rest.CopyConfig(config)
	if w.user != "" {
		target.Impersonate = rest.ImpersonationConfig{UserName: w.user, Groups: []string{"system:authenticated"}}
	}
	d, err := dynamic.NewForConfig(target)
	if err != nil {
		w.t.Fatal(err)
	}
	cluster, err := applier.New(applier.Options{Name: w.cluster(), Config: target, Shared: applier.NewShared()})
	if err != nil {
		w.t.Fatal(err)
	}
	store, err := probe.NewStore(probe.StoreOptions{
		Hub: config, Redactor: redact.New(), Serve: func(context.Context) error { return nil }, Events: func() record.EventRecorder { return w.events },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	metrics := probe.NewMetrics()
	if killed == nil {
		w.metrics.MustRegister(metrics.Collectors()...)
	}
	p = probe.New(probe.Options{
		Cluster: w.cluster(), Store: store, Metrics: metrics, Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)), Now: w.now, Chance: func() float64 { return 0 },
		Asked: func(*registry.Fleet, *registry.Cluster, string) time.Time {
			if at := w.asked.Load(); at != 0 {
				return time.UnixMicro(at)
			}
			return time.Time{}
		},
	})
	p.Update(f, f.Cluster("a"))
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx, probe.Cluster{Dynamic: d, Mapping: cluster.Mapping, Examine: cluster.Examine})
	}()
	stop = func() { cancel(); <-done }
	w.t.Cleanup(stop)
	return p, stop
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// passes lets time pass, after which the prober looks.
func (w *world) passes(p *probe.Prober, d time.Duration) {
	w.ahead.Add(int64(d))
	p.Look()
}

// settles waits until the prober has looked: what it is told is taken when it has done
// with what it was told before.
func (w *world) settles(p *probe.Prober) {
	w.t.Helper()
	for range 3 {
		p.Look()
		w.eventually("it looks", p.Looked)
	}
}
