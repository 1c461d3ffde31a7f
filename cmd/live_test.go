package cmd_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
)

// live skips without a real API server, and returns a client of it.
func live(t *testing.T) kubernetes.Interface {
	t.Helper()
	apiservertest.Need(t, server)
	t.Parallel()
	return liveAlone(t)
}

// liveAlone is live for a test that looks at all there is: it runs before those that run
// in parallel.
func liveAlone(t *testing.T) kubernetes.Interface {
	t.Helper()
	apiservertest.Need(t, server)
	c, err := kubernetes.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// runDeployments does for a namespace's Deployments what Kubernetes' own
// controllers would, until the test ends.
func runDeployments(t *testing.T, c kubernetes.Interface, namespace string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			list, err := c.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
			for i := 0; err == nil && i < len(list.Items); i++ {
				d := &list.Items[i]
				if d.Status.ObservedGeneration == d.Generation {
					continue
				}
				n := *d.Spec.Replicas
				d.Status.ObservedGeneration, d.Status.Replicas, d.Status.UpdatedReplicas = d.Generation, n, n
				d.Status.ReadyReplicas, d.Status.AvailableReplicas = n, n
				d.Status.Conditions = []appsv1.DeploymentCondition{
					{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
					{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
				}
				_, _ = c.AppsV1().Deployments(namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
}

type diffJSON struct {
	Objects []struct {
		APIVersion, Kind, Namespace, Name, Op, State string
		Fields                                       []struct {
			Path, Action, Rule string
			Live, Target       any
		}
	}
}

// TestApply follows a cluster through its life. Nothing that is printed on the
// way holds the data of a Secret.
func TestApply(t *testing.T) {
	c := live(t)
	f := newFleet(t, "apply")
	runDeployments(t, c, "webapply")
	quiet := func(r result) result {
		t.Helper()
		return r.saysNot(t, "hunter2", "aHVudGVyMg")
	}

	t.Log("a component whose kinds come with another can't be compared yet")
	quiet(f.keelson("diff", "prod", "gadgets")).want(t, 1).says(t,
		"create CustomResourceDefinition.apiextensions.k8s.io gadgets.demo.example", "prod: 1 of 1 component differs: 2 to create\n")
	quiet(f.keelson("diff", "prod")).want(t, 2).says(t, "web can't be compared before what it depends on is applied: ", "Gadget.demo.example web")

	t.Log("it asks, or needs --yes")
	quiet(f.keelson("apply", "prod")).want(t, 2).says(t, "there is no terminal to ask whether to write", "give --yes")
	quiet(f.in(world{in: "no\n"}, "apply", "prod")).want(t, 2).says(t,
		"gadgets v1.0.0: 2 to create", "web v1.0.0: its kinds come with", "Apply this to prod? [y/N]", "nothing was applied")
	quiet(f.keelson("apply", "prod", "--dry-run", "gadgets")).want(t, 1).says(t, "2 to create")
	quiet(f.keelson("history", "prod", "web")).want(t, 0).says(t, "nothing was delivered to prod yet")
	quiet(f.keelson("apply", "prod", "web", "--yes")).want(t, 1).says(t,
		"web v1.0.0 waiting: it depends on gadgets, which is not as git says (2 to create): apply that, too")

	t.Log("the dependency goes first")
	got := quiet(f.in(world{in: "y\n"}, "apply", "prod", "--timeout", "3m")).want(t, 0).says(t,
		"  Deployment.apps web/web created\n", "  Secret web/web created\n", "gadgets v1.0.0 synced\n", "web v1.0.0 synced\n")
	if strings.Index(got.out, "gadgetsapply v1.0.0 synced") > strings.Index(got.out, "Deployment.apps") {
		t.Errorf("web came first:\n%s", got.out)
	}

	t.Log("settled")
	quiet(f.keelson("diff", "prod")).want(t, 0).says(t, "prod: 2 components in sync\n")
	quiet(f.keelson("diff", "prod", "-o", "patch")).want(t, 0).saysNot(t, "kind")
	quiet(f.keelson("apply", "prod")).want(t, 0).says(t, "web v1.0.0 synced (3 unchanged)\n")
	var diff diffJSON
	decode(t, quiet(f.keelson("diff", "prod", "-o", "json")).want(t, 0).out, &diff)
	if len(diff.Objects) != 5 {
		t.Errorf("got %d objects of both components, want 5", len(diff.Objects))
	}

	t.Log("drift")
	scale := []byte(`{"spec":{"replicas":9}}`)
	if _, err := c.AppsV1().Deployments("webapply").Patch(t.Context(), "webapply", types.MergePatchType, scale,
		metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
		t.Fatal(err)
	}
	secret := []byte(`{"stringData":{"password":"drifted"}}`)
	if _, err := c.CoreV1().Secrets("webapply").Patch(t.Context(), "webapply", types.MergePatchType, secret,
		metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
		t.Fatal(err)
	}
	decode(t, quiet(f.keelson("diff", "prod", "web", "-o", "json")).want(t, 1).out, &diff)
	fields := map[string]any{}
	for _, o := range diff.Objects {
		for _, field := range o.Fields {
			fields[o.Kind+field.Path+" "+field.Action] = field.Live
		}
	}
	if fields["Deployment.spec.replicas restore"] != 9.0 {
		t.Errorf("got %v", fields)
	}
	quiet(f.in(world{columns: 80}, "diff", "prod", "web")).want(t, 1).says(t, "\x1b[31m-9", "\x1b[32m+3").saysNot(t, "drifted")
	quiet(f.keelson("diff", "prod", "-o", "markdown")).want(t, 1).
		says(t, "`prod`: 2 to update\n", "## `web ", "### update `Deployment.apps web/web`", "-9\n+3\n").saysNot(t, "gadgets v")
	quiet(f.keelson("diff", "prod", "web", "-o", "patch")).want(t, 1).says(t,
		"---\n# update Deployment.apps web/web: apply --server-side --field-manager=keelson --force-conflicts\n",
		"replicas: 3", "resourceVersion:", "password: '***'")
	quiet(f.keelson("apply", "prod", "--yes")).want(t, 0).says(t, "Deployment.apps web/web restored")

	t.Log("a new version")
	f.edit("components/gadgets/template/templates/config.yaml", `size: "1"`, `size: "2"`)
	f.edit("layers/10-base.yaml", "gadgets:\n    version: v1.0.0", "gadgets:\n    version: v1.1.0")
	f.commit()
	f.tag("gadgets/v1.1.0")
	quiet(f.keelson("apply", "prod", "--yes")).want(t, 0).says(t, "gadgets v1.0.0 → v1.1.0", "ConfigMap gadgets/gadgets configured")

	t.Log("history")
	quiet(f.keelson("history", "prod", "gadgets")).want(t, 0).says(t, "COMPONENT", "2       2026-03-01T12:00:00Z  v1.1.0", "1       2026-03-01T12:00:00Z  v1.0.0")
	var history []struct {
		Component, Version string
		Number, Updated    int
	}
	decode(t, quiet(f.keelson("history", "prod", "gadgets", "-o", "json")).want(t, 0).out, &history)
	if len(history) != 2 || history[0].Component != "gadgetsapply" || history[0].Version != "v1.1.0" || history[0].Number != 2 || history[0].Updated != 1 {
		t.Errorf("got %+v", history)
	}
	f.keelson("history", "prod", "nope").want(t, 2).says(t, `neither git nor cluster prod knows a component "nope"`)

	t.Log("no longer in git")
	f.edit("components/web/component.yaml", "dependsOn: [gadgets]", "")
	f.edit("layers/10-base.yaml", "  gadgets:\n    version: v1.1.0\n", "")
	f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: v1.1.0")
	f.commit()
	f.tag("web/v1.1.0")
	f.keelson("diff", "prod").says(t, "gadgets is no longer in git for prod; its objects were left in place")
}

// What a rule holds stands on top, with its reason, and the rest of the object
// does not move.
func TestApplyHeld(t *testing.T) {
	c := live(t)
	f := newFleet(t, "held")
	runDeployments(t, c, "webheld")
	f.keelson("apply", "prod", "--yes", "--timeout", "3m").want(t, 0)
	f.edit("clusters/prod/web.yaml", "replicas: 3", "replicas: 4\n  app: other")
	f.commit()
	f.keelson("diff", "prod", "web").want(t, 1).says(t, "HELD Deployment.apps web/web", "! rule ")
	f.keelson("apply", "prod", "--yes", "--timeout", "1m").want(t, 1).says(t,
		"  held Deployment.apps web/web .spec.selector", ": rule ", "web v1.0.0 held: 1 held")
	d, err := c.AppsV1().Deployments("webheld").Get(t.Context(), "webheld", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 3 {
		t.Errorf("got %v replicas (%v), want 3 as before", d.Spec.Replicas, err)
	}
}

// A chart's hooks run with an upgrade, and diff says which.
func TestApplyHooks(t *testing.T) {
	live(t)
	f := newFleet(t, "hooked")
	f.write("components/gadgets/template/templates/hook.yaml", `
apiVersion: v1
kind: ConfigMap
metadata:
  name: before
  annotations: {helm.sh/hook: "pre-install,pre-upgrade", helm.sh/hook-delete-policy: "before-hook-creation,hook-succeeded"}
`)
	f.commit()
	f.tag("gadgets/v1.1.0")
	f.keelson("apply", "prod", "gadgets", "--yes").want(t, 0)
	f.edit("layers/10-base.yaml", "gadgets:\n    version: v1.0.0", "gadgets:\n    version: v1.1.0")
	f.commit()
	f.keelson("diff", "prod", "gadgets").says(t, "> hook pre-upgrade ConfigMap gadgets/before")
	f.keelson("apply", "prod", "gadgets", "--yes").want(t, 0).says(t, "ConfigMap gadgets/before hook pre-upgrade created", "gadgets v1.0.0 → v1.1.0 synced")
	f.keelson("diff", "prod", "gadgets").want(t, 0)
}

// Without Kubernetes' controllers a Deployment never becomes healthy. Apply stops waiting after its
// timeout. Components that depend on the Deployment wait.
func TestApplyUnhealthy(t *testing.T) {
	live(t)
	f := newFleet(t, "sick")
	f.keelson("apply", "prod", "--yes", "--timeout", "1s").want(t, 1).says(t,
		"web v1.0.0 not healthy: not after 1s: Deployment.apps web/web: ", "web: waiting for Deployment.apps")
	f.keelson("apply", "prod", "--yes", "--no-wait").want(t, 0).says(t, "web v1.0.0 synced")

	f.edit("clusters/prod/cluster.yaml", "connection:", "paused: true\nconnection:")
	f.edit("clusters/prod/web.yaml", "replicas: 3", "replicas: 4")
	f.commit()
	f.keelson("apply", "prod", "--yes", "--timeout", "1m").want(t, 1).says(t, "gadgets v1.0.0 (paused) synced", "web v1.0.0 (paused) paused: 1 to update")
}

// A freeze holds for whoever applies by hand, too, unless they say that they mean it; and
// what it is not for is applied.
func TestApplyFrozen(t *testing.T) {
	live(t)
	f := newFleet(t, "frozen")
	f.write("freezes/fair.yaml", freezeFile)
	f.commit()
	f.keelson("apply", "prod", "--yes", "--no-wait").want(t, 1).says(t,
		"gadgets v1.0.0 synced", "web v1.0.0 frozen: the fair (freezes/fair.yaml): ")
	f.keelson("diff", "prod", "gadgets").want(t, 0)
	f.keelson("diff", "prod", "web").want(t, 1)
	f.in(world{now: time.Date(2026, 3, 1, 17, 59, 59, 0, time.UTC)}, "apply", "prod", "--yes", "--no-wait").want(t, 1).says(t, "frozen")
	f.keelson("apply", "prod", "--yes", "--no-wait", "--despite-freeze").want(t, 0).says(t, "web v1.0.0 synced")
	f.keelson("apply", "prod", "--yes", "--no-wait").want(t, 0)
	f.edit("clusters/prod/web.yaml", "replicas: 3", "replicas: 4")
	f.commit()
	f.keelson("apply", "prod", "--yes", "--no-wait").want(t, 1).says(t, "frozen: the fair")
	f.in(world{now: time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC)}, "apply", "prod", "--yes", "--no-wait").want(t, 0).says(t, "web v1.0.0 synced")
}

// A connection by Secret is read from the hub.
func TestConnectionBySecret(t *testing.T) {
	c := live(t)
	f := newFleet(t, "secret")
	f.keelson("history", "test").want(t, 2).says(t, `cluster test: read Secret keelson-system/test in the hub: `, "not found")
	content, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	ensureNamespace(t, c)
	if _, err := c.CoreV1().Secrets(v1alpha1.Namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "test"}, Data: map[string][]byte{"kubeconfig": content},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.keelson("render", "test", "web", "--live").want(t, 0).says(t, "example.com/kubernetes: v1.")
	f.keelson("diff", "test", "gadgets").want(t, 1)
}

// Right after apply, diff finds nothing: a cluster of the example fleet, on the
// newest and on the oldest Kubernetes that Keelson is tested with.
func TestDiffAfterApply(t *testing.T) {
	t.Parallel()
	const cluster = "prod-us-01"
	apiservertest.Each(t, versions, func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		f := newExample(t)
		var err error
		if f.kubeconfig, err = writeKubeconfig(start(t), t.TempDir(), cluster); err != nil {
			t.Fatal(err)
		}
		f.keelson("diff", cluster, "coredns").want(t, 1)
		f.keelson("apply", cluster, "--yes", "--no-wait").want(t, 0)
		f.keelson("diff", cluster).want(t, 0).says(t, cluster+": 10 components in sync\n")
		f.ofAnother(cluster, "canary-eu-01")
	})
}

// ofAnother has the context of a cluster lead to the API server of another one, as a
// kubeconfig that was written anew may: every command says so, and changes nothing.
func (f *fleet) ofAnother(cluster, other string) {
	f.t.Helper()
	content := strings.ReplaceAll(readFile(f.t, f.kubeconfig), cluster, other)
	before := f.kubeconfig
	f.kubeconfig = filepath.Join(f.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(f.kubeconfig, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
	for _, args := range [][]string{
		{"diff", other},
		{"apply", other, "--yes", "--no-wait"},
		{"history", other},
		{"history", other, "coredns"},
		{"rollback", other, "coredns", "--yes"},
		{"rbac", other},
	} {
		f.keelson(args...).want(f.t, 2).says(f.t, "its connection leads to the API server of cluster "+cluster, "Mend the connection of "+other, "kubectl -n keelson-system patch secret mask-key ")
	}
	f.kubeconfig = before
	f.keelson("diff", cluster).want(f.t, 0)
}

// newExample is the example fleet, with the tags that its charts name, without some
// clusters.
func newExample(t *testing.T, without ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: filepath.Join(t.TempDir(), "fleet"), rename: strings.NewReplacer()}
	const shipped = "components/workload-controllers" // what the example's README has copied, too
	for from, to := range map[string]string{"../examples/fleet": f.dir, "../" + shipped: filepath.Join(f.dir, shipped)} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	for _, cluster := range without {
		if err := os.RemoveAll(filepath.Join(f.dir, "clusters", cluster)); err != nil {
			t.Fatal(err)
		}
	}
	f.git("init", "-q", "-b", "main")
	f.commit()
	charts, err := filepath.Glob(filepath.Join(f.dir, "components", "*", "template", "Chart.yaml"))
	if err != nil || len(charts) == 0 {
		t.Fatalf("%d charts, error %v", len(charts), err)
	}
	for _, file := range charts {
		var chart struct{ Version string }
		if err := yaml.Unmarshal([]byte(readFile(t, file)), &chart); err != nil {
			t.Fatal(err)
		}
		f.tag(filepath.Base(filepath.Dir(filepath.Dir(file))) + "/v" + chart.Version)
	}
	return f
}

// ensureNamespace has the hub have Keelson's own.
func ensureNamespace(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	_, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
