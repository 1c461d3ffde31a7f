package delivery_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/controllers/notify"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/sops"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// server is a real API server, hub and cluster in one; nil in -short runs.
var server *rest.Config

func TestMain(m *testing.M) {
	code := apiservertest.Main(m, func(config *rest.Config) { server = config })
	os.Exit(cmp.Or(code, stopOthers()))
}

// schemas are parsed once for the package: every controller of a test would parse the same
// documents again.
var schemas = applier.NewShared()

const (
	patience = 3 * time.Minute
	// ageKey is that of testdata/sealed.yaml, which sops encrypted.
	ageKey = "../../registry/sops/testdata/keys.txt"
)

// fleet is a repository with a controller that follows it.
type fleet struct {
	t          testing.TB
	folder     string
	name       string // of the cluster, and prefix of everything in it
	dynamic    dynamic.Interface
	hub        client.Client
	log        log
	trusted    []string      // files of keys; none: nothing has to be signed
	renders    int64         // bytes of renders that are kept
	interval   time.Duration // of a replica's polls; 0: a second
	only       string        // cluster to work on
	follow     func(ctx context.Context, of v1alpha1.Connection, changed func())
	previews   delivery.Previews    // of each replica; nil: none
	sender     *notify.Sender       // nil: no notification is sent
	hubConfig  *rest.Config         // of the controller; nil: as the server's
	now        func() time.Time     // nil: the clock's
	controller *delivery.Controller // that was started last
	metrics    *prometheus.Registry // of the controller that was started last
}

// log is what the controller logs. It is safe for concurrent use.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newFleet makes a repository of one cluster and one component, web v1.0.0,
// which has a Deployment and a ConfigMap.
func newFleet(t testing.TB) *fleet {
	t.Helper()
	apiservertest.Need(t, server)
	if t, ok := t.(*testing.T); ok {
		t.Parallel()
	}
	d, err := dynamic.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	hub, err := client.New(server, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, folder: t.TempDir(), renders: 1 << 20, name: strings.ToLower(strings.TrimPrefix(strings.TrimPrefix(t.Name(), "Test"), "Benchmark")), dynamic: d, hub: hub}
	f.git("init", "-q", "-b", "main")
	const head = "apiVersion: keelson.io/v1alpha1\nkind: "
	f.write("fleet.yaml", head+"Fleet\nname: CLUSTER\n")
	f.write("clusters/CLUSTER/cluster.yaml", head+"Cluster\nconnection: {context: test}\n")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.0\nvalues: {text: hello}\n")
	f.write("components/CLUSTER-web/component.yaml", head+"Component\nnamespace: CLUSTER\n")
	f.write("components/CLUSTER-web/template/Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.0.0\n")
	f.write("components/CLUSTER-web/template/templates/web.yaml", `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "web:v1", ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {text: {{ .Values.text }}}
`)
	f.commit("web v1.0.0")
	f.git("tag", f.name+"-web/v1.0.0")
	t.Cleanup(func() { f.leave(d) })
	return f
}

// leave deletes the fleet's records and Deliveries from the shared API server. A fleet
// that starts later would take them for components that left git, and make a Delivery
// of each. f.dynamic can be another server, which the test has stopped by now.
func (f *fleet) leave(shared dynamic.Interface) {
	ctx := context.WithoutCancel(f.t.Context())
	for _, gvr := range []schema.GroupVersionResource{{Version: "v1", Resource: "secrets"}, v1alpha1.GroupVersion.WithResource("deliveries")} {
		all, err := shared.Resource(gvr).Namespace(v1alpha1.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			f.t.Error(err)
			return
		}
		for i := range all.Items {
			name := all.Items[i].GetName()
			if !strings.HasPrefix(name, "record-"+f.name+"-") && !strings.HasPrefix(name, f.name+".") {
				continue
			}
			if err := shared.Resource(gvr).Namespace(v1alpha1.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				f.t.Error(err)
			}
		}
	}
}

// logged is what the controller logs, without the lines about components of other fleets.
// All fleets share one cluster, and each finds the records of the others there.
func (f *fleet) logged() string {
	var own strings.Builder
	for line := range strings.Lines(f.log.String()) {
		_, component, named := strings.Cut(line, " component=")
		if !named || strings.HasPrefix(component, f.name+"-") {
			own.WriteString(line)
		}
	}
	return own.String()
}

func (f *fleet) git(args ...string) string {
	f.t.Helper()
	c := exec.CommandContext(f.t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
	c.Dir = f.folder
	out, err := c.CombinedOutput()
	if err != nil {
		f.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// write writes a file; CLUSTER stands for the fleet's name.
func (f *fleet) write(name, content string) {
	f.t.Helper()
	fill := strings.NewReplacer("CLUSTER", f.name).Replace
	path := filepath.Join(f.folder, fill(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(fill(content)), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) commit(message string) {
	f.t.Helper()
	f.git("add", "-A")
	f.git("commit", "-q", "-m", message)
}

// start runs a controller until the returned function is called.
func (f *fleet) start(connect func(context.Context, v1alpha1.Connection) (*rest.Config, error)) (stop func()) {
	f.t.Helper()
	repo, err := registry.Open(f.t.Context(), gitrepo.Options{URL: f.folder, CacheDir: f.t.TempDir(), TrustedKeys: f.trusted})
	if err != nil {
		f.t.Fatal(err)
	}
	if connect == nil {
		connect = func(context.Context, v1alpha1.Connection) (*rest.Config, error) { return server, nil }
	}
	if f.hubConfig == nil {
		f.hubConfig = server
	}
	hidden := redact.New()
	f.metrics = prometheus.NewRegistry()
	c, err := delivery.New(delivery.Options{
		Schemas:  schemas,
		Redactor: hidden,
		Repo:     repo, Interval: 200 * time.Millisecond, Hub: cmp.Or(f.hubConfig, server), Connect: connect, Follow: f.follow,
		Renderer: renderer.NewCache(renderer.NewUnsealing(renderer.New(), sops.Keys{File: ageKey}), f.renders),
		Log:      slog.New(slog.NewTextHandler(hidden.Writer(io.MultiWriter(f.t.Output(), &f.log)), nil)),
		Now:      f.clock(), Registry: f.metrics, Identity: "test", Only: f.only, Sender: f.sender,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.controller = c
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	}
	f.t.Cleanup(stop)
	return stop
}

func (f *fleet) clock() func() time.Time {
	if f.now != nil {
		return f.now
	}
	return time.Now
}

// eventually waits for a condition.
func (f *fleet) eventually(what string, condition func() bool) {
	f.t.Helper()
	err := wait.PollUntilContextTimeout(f.t.Context(), 50*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		f.t.Fatalf("%s: not within %s; status is %+v", what, patience, f.status())
	}
}

func (f *fleet) status() v1alpha1.DeliveryStatus {
	var d v1alpha1.Delivery
	_ = f.hub.Get(context.WithoutCancel(f.t.Context()),
		client.ObjectKey{Namespace: v1alpha1.Namespace, Name: f.name + "." + f.name + "-web"}, &d)
	return d.Status
}

func (f *fleet) sync(want v1alpha1.Sync, message string) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("sync is %s with %q", want, message), func() bool {
		s := f.status()
		return s.Sync == want && strings.Contains(s.Message, message)
	})
}

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

func (f *fleet) field(gvr schema.GroupVersionResource, path ...string) string {
	u, err := f.dynamic.Resource(gvr).Namespace(f.name).Get(f.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	return fmt.Sprint(v)
}

func (f *fleet) text() string { return f.field(configMaps, "data", "text") }

// A commit changes what the API server runs; nothing else is written.
func TestPushDelivers(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	before := f.field(deployments, "metadata", "resourceVersion")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\nvalues: {text: bye}\n")
	f.commit("another text")
	f.eventually("the push arrives", func() bool { return f.text() == "bye" })
	if after := f.field(deployments, "metadata", "resourceVersion"); after != before {
		t.Error("an object that did not change was written")
	}
}

// Drift comes back within seconds, without a commit or a poll.
func TestDriftRestored(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	_, err := f.dynamic.Resource(deployments).Namespace(f.name).Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"spec":{"replicas":7}}`), metav1.PatchOptions{FieldManager: "kubectl"}, "scale")
	if err != nil {
		t.Fatal(err)
	}
	f.eventually("the scale is restored", func() bool { return f.field(deployments, "spec", "replicas") == "2" })
	if err := f.dynamic.Resource(configMaps).Namespace(f.name).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the deleted object is created anew", func() bool { return f.text() == "hello" })
	f.eventually("drift is counted", func() bool { d := f.status().LastDiff; return d != nil })
}

// A broken file blocks what it names, and says file and line; git mends it.
func TestBrokenFileBlocks(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\nvalue: {text: bye}\n")
	f.commit("a typo")
	f.sync(v1alpha1.SyncBlocked, "clusters/"+f.name+"/"+f.name+"-web.yaml:4")
	if f.text() != "hello" {
		t.Errorf("the text is %q: a broken file changed the cluster", f.text())
	}
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\nvalues: {text: bye}\n")
	f.commit("mended")
	f.eventually("the mended file is delivered", func() bool { return f.text() == "bye" })
	f.sync(v1alpha1.SyncSynced, "")
}

// A push without a signature of a trusted key changes nothing. The log and an event report it.
// The same change is delivered after it is signed.
func TestUnsignedPushChangesNothing(t *testing.T) {
	f := newFleet(t)
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("needs ssh-keygen, for git to sign with")
	}
	key := filepath.Join(t.TempDir(), "id")
	if out, err := exec.CommandContext(t.Context(), keygen, "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	f.trusted = []string{filepath.Join(filepath.Dir(key), "trusted")}
	if err := os.WriteFile(f.trusted[0], append([]byte("alice@example.com "), public...), 0o600); err != nil {
		t.Fatal(err)
	}
	sign := func(args ...string) {
		f.git(append([]string{"-c", "gpg.format=ssh", "-c", "user.signingkey=" + key}, args...)...)
	}
	sign("commit", "-q", "--amend", "-S", "-m", "signed")
	sign("tag", "-f", "-s", "-m", "a version", f.name+"-web/v1.0.0")
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")

	f.write("clusters/CLUSTER/CLUSTER-web.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\nvalues: {text: bye}\n")
	f.commit("unsigned")
	head, err := exec.CommandContext(t.Context(), "git", "-C", f.folder, "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	told := "commit " + strings.TrimSpace(string(head)) + " is not to be trusted: it is not signed"
	f.eventually("an event says why", func() bool {
		events, err := f.dynamic.Resource(schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}).
			List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e unstructured.Unstructured) bool {
			note, _, _ := unstructured.NestedString(e.Object, "note")
			return strings.Contains(note, told)
		})
	})
	if f.text() != "hello" {
		t.Errorf("the text is %q: an unsigned push changed the cluster", f.text())
	}
	sign("commit", "-q", "--amend", "-S", "-m", "signed now")
	f.eventually("the signed push is delivered", func() bool { return f.text() == "bye" })
}

// A tag that moves is an error, and nothing follows it.
func TestMovedTagBlocks(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.write("components/CLUSTER-web/template/templates/web.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: moved}\n")
	f.commit("no new version")
	f.git("tag", "-f", f.name+"-web/v1.0.0")
	f.sync(v1alpha1.SyncBlocked, "moved")
	if f.text() != "hello" {
		t.Errorf("the text is %q: a moved tag changed the cluster", f.text())
	}
}

// What leaves git stays in the cluster and is called orphaned, also by a
// controller that never knew it otherwise.
func TestOrphan(t *testing.T) {
	f := newFleet(t)
	stop := f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.git("rm", "-q", "clusters/"+f.name+"/"+f.name+"-web.yaml")
	f.commit("gone")
	f.sync(v1alpha1.SyncOrphaned, "left in place")
	stop()
	d := &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: f.name + "." + f.name + "-web"}}
	if err := f.hub.Delete(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	f.start(nil)
	f.sync(v1alpha1.SyncOrphaned, "left in place")
	if f.text() != "hello" {
		t.Errorf("the text is %q: an orphan was touched", f.text())
	}
}

// Paused means: observe, write nothing.
func TestPaused(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\npaused: true\nvalues: {text: bye}\n")
	f.commit("paused")
	f.sync(v1alpha1.SyncPaused, "1 to update")
	if f.text() != "hello" {
		t.Errorf("the text is %q: a paused component was written", f.text())
	}
}

// A cluster that can't be reached is retried, and catches up.
func TestUnreachableClusterCatchesUp(t *testing.T) {
	f := newFleet(t)
	up := make(chan struct{})
	f.start(func(context.Context, v1alpha1.Connection) (*rest.Config, error) {
		select {
		case <-up:
			return server, nil
		default:
			return &rest.Config{Host: "https://127.0.0.1:1"}, nil
		}
	})
	f.sync(v1alpha1.SyncUnreachable, "refused")
	close(up)
	f.sync(v1alpha1.SyncSynced, "")
}

// A cluster forbids a request that Keelson needs. The status reports it, and Keelson tries again.
func TestForbidden(t *testing.T) {
	f := newFleet(t)
	unprivileged := rest.CopyConfig(server)
	unprivileged.Impersonate.UserName = "unprivileged"
	allowed := make(chan struct{})
	f.start(func(context.Context, v1alpha1.Connection) (*rest.Config, error) {
		select {
		case <-allowed:
			return server, nil
		default:
			return unprivileged, nil
		}
	})
	f.sync(v1alpha1.SyncFailed, `User "unprivileged" cannot get resource "secrets"`)
	close(allowed)
	f.sync(v1alpha1.SyncSynced, "")
}

// What stands in a Secret is in no log, status or event either, wherever the
// chart puts it besides, and however it is quoted.
func TestDataOfSecrets(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	const password = `parakeet "of" git \ 0123`
	f.write("components/CLUSTER-web/template/templates/more.yaml", `
apiVersion: v1
kind: Secret
metadata: {name: more}
stringData: {password: {{ .Values.password | quote }}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: more, labels: {x: {{ printf "the password is %s" .Values.password | quote }}, z: {{ b64enc .Values.password | printf "or %s" | quote }}}}
`)
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.1\nvalues: {text: hello, password: '"+password+"'}\n")
	f.commit("a label that is none")
	f.git("tag", f.name+"-web/v1.0.1")
	f.sync(v1alpha1.SyncFailed, `Invalid value: "the password is ***"`)
	f.tellsNot("parakeet", base64.StdEncoding.EncodeToString([]byte(password)))
}

// tellsNot looks for texts in all that the controller says.
func (f *fleet) tellsNot(texts ...string) {
	f.t.Helper()
	var events corev1.EventList
	if err := f.hub.List(f.t.Context(), &events); err != nil {
		f.t.Fatal(err)
	}
	for what, seen := range map[string]string{"log": f.log.String(), "status": fmt.Sprint(f.status()), "event": fmt.Sprint(events)} {
		for _, text := range texts {
			if strings.Contains(seen, text) {
				f.t.Errorf("a %s tells %s:\n%s", what, text, seen)
			}
		}
	}
}

// A decrypted value reaches the cluster, and no log, status or event.
func TestEncryptedValues(t *testing.T) {
	f := newFleet(t)
	sealed, err := os.ReadFile("testdata/sealed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", string(sealed))
	f.commit("encrypted")
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	if got, want := f.text(), "SENTINEL is no label"; got != want {
		t.Errorf("the text is %q, want %q", got, want)
	}
	if want := "is encrypted, and the chart puts it in clear text into ConfigMap"; !strings.Contains(f.log.String(), want) {
		t.Errorf("the log does not say %q", want)
	}

	t.Log("an API server that refuses a value quotes it")
	f.write("components/CLUSTER-web/template/templates/more.yaml",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more, labels: {x: {{ .Values.text | quote }}}}\n")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", strings.Replace(string(sealed), "v1.0.0", "v1.0.1", 1))
	f.commit("a label that is none")
	f.git("tag", f.name+"-web/v1.0.1")
	f.sync(v1alpha1.SyncFailed, `Invalid value: "***"`)

	t.Log("as a chart that fails does")
	f.write("components/CLUSTER-web/template/templates/more.yaml", `{{ fail (printf "not %s" .Values.text) }}`)
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", strings.Replace(string(sealed), "v1.0.0", "v1.0.2", 1))
	f.commit("a chart that fails")
	f.git("tag", f.name+"-web/v1.0.2")
	f.sync(v1alpha1.SyncBlocked, "not ***")

	t.Log("a file that was tampered with")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", strings.Replace(string(sealed), "mac: ENC", "mac: ENX", 1))
	f.commit("tampered")
	f.sync(v1alpha1.SyncBlocked, "MAC does not match")
	if got, want := f.text(), "SENTINEL is no label"; got != want {
		t.Errorf("the text is %q, want %q: a file that can't be trusted changed the cluster", got, want)
	}

	f.tellsNot("SENTINEL")
}
