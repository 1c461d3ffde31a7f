// Package e2e_test tests a real cluster from lab up to lab down. It needs the built programs, and
// runs only if KUBEBUILDER_ASSETS is set.
package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

const (
	name      = "e2e"
	namespace = "default"
	nodes     = 3
)

// env is the running cluster.
type env struct {
	lab            *cluster.Lab
	set            binaries.Set
	admin, keelson kubernetes.Interface
}

func TestCluster(t *testing.T) {
	if testing.Short() || os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("runs a cluster: needs KUBEBUILDER_ASSETS, which make test sets, and no -short")
	}
	must.Test(t, func() {
		e := &env{set: must.Get(binaries.Find()), lab: &cluster.Lab{
			Dir: filepath.Join(t.TempDir(), "clusters"),
			Say: func(line string) { t.Log(line) },
		}}
		t.Cleanup(func() { e.down(t) })
		must.Do(e.lab.Up(t.Context(), name, cluster.Change{Nodes: new(nodes)}, e.set))
		e.admin, e.keelson = e.client(cluster.Admin), e.client(cluster.Keelson)
		for _, one := range []struct {
			name string
			test func(*testing.T)
		}{
			{"Workloads", e.workloads}, {"Crash", e.crash}, {"Audit", e.audit}, {"Outage", e.outage}, {"Restart", e.restart}, {"Nodes", e.nodes},
		} {
			t.Run(one.name, func(t *testing.T) { must.Test(t, func() { one.test(t) }) })
		}
	})
}

// down removes the cluster and checks that nothing is left.
func (e *env) down(t *testing.T) {
	// Cleanup runs after the end of the test's own context.
	if err := e.lab.Down(context.WithoutCancel(t.Context()), name); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(e.lab.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", e.lab.Dir, err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Error(err)
	}
	for _, line := range lines {
		data, err := os.ReadFile(line)
		if err == nil && strings.Contains(string(data), e.lab.Dir) {
			t.Errorf("a process is left: %s", strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), e.lab.Dir) {
		t.Errorf("a mount is left (%v):\n%s", err, mounts)
	}
}

func (e *env) client(user string) kubernetes.Interface {
	config := must.Get(harness.Config(e.lab, name, user))
	config.UserAgent = "lab-e2e"
	return must.Get(kubernetes.NewForConfig(config))
}

func (e *env) status(t *testing.T) cluster.Status {
	all := must.Get(e.lab.Status(t.Context(), 0))
	if len(all) != 1 {
		must.Failf("status of %d clusters", len(all))
	}
	return all[0]
}

// eventually waits until a condition does not fail.
func eventually(t *testing.T, condition func(context.Context)) {
	must.Limits{Patience: time.Minute, Every: 50 * time.Millisecond}.Until(t.Context(), condition)
}

// workload is a workload of a kind, with the rest of its spec and the restart policy of its pods.
const workload = `{kind: %[1]s, apiVersion: %[2]s, metadata: {name: workload}, spec: {%[3]s, template: {
  metadata: {labels: {app: %[1]s}}, spec: {restartPolicy: %[4]s, containers: [{name: main, image: "example.org/app:v1"}]}}}}`

func (e *env) workloads(t *testing.T) {
	admin := must.Get(harness.Admin(e.lab, name))
	for _, w := range []struct {
		kind, resource, spec, restart, field string
		want                                 int64
	}{
		{"Deployment", "apps/v1/deployments", "replicas: 3, selector: {matchLabels: {app: Deployment}}", "Always", "availableReplicas", 3},
		{"DaemonSet", "apps/v1/daemonsets", "selector: {matchLabels: {app: DaemonSet}}", "Always", "numberAvailable", nodes},
		{"StatefulSet", "apps/v1/statefulsets", `replicas: 2, selector: {matchLabels: {app: StatefulSet}}, volumeClaimTemplates: [
    {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]`, "Always", "availableReplicas", 2},
		{"Job", "batch/v1/jobs", "completions: 1", "Never", "succeeded", 1},
	} {
		gvr := harness.Resource(w.resource)
		objects := admin.Resource(gvr).Namespace(namespace)
		made := must.Get(harness.Object(fmt.Sprintf(workload, w.kind, gvr.GroupVersion(), w.spec, w.restart)))
		must.Get(objects.Create(t.Context(), made, metav1.CreateOptions{}))
		eventually(t, func(ctx context.Context) {
			live := must.Get(objects.Get(ctx, "workload", metav1.GetOptions{}))
			if n, _, _ := unstructured.NestedInt64(live.Object, "status", w.field); n != w.want {
				must.Failf("%s: %s is %d, want %d", w.kind, w.field, n, w.want)
			}
		})
	}
	must.Do(e.admin.AppsV1().Deployments(namespace).Delete(t.Context(), "workload", metav1.DeleteOptions{}))
	eventually(t, func(ctx context.Context) {
		if left := must.Get(e.admin.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=Deployment"})); len(left.Items) > 0 {
			must.Failf("%d pods of a deleted Deployment", len(left.Items))
		}
	})
}

// crash waits until a pod with a tag that crashes is in CrashLoopBackOff, and cures it by another image.
func (e *env) crash(t *testing.T) {
	pods := e.admin.CoreV1().Pods(namespace)
	must.Get(pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "crash"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.org/app:v1-crash"}}},
	}, metav1.CreateOptions{}))
	eventually(t, func(ctx context.Context) {
		is := must.Get(pods.Get(ctx, "crash", metav1.GetOptions{})).Status.ContainerStatuses
		if len(is) == 0 || is[0].State.Waiting == nil || is[0].State.Waiting.Reason != "CrashLoopBackOff" {
			must.Failf("its container does not wait in CrashLoopBackOff: %+v", is)
		}
	})
	patch := []byte(`{"spec":{"containers":[{"name":"main","image":"example.org/app:v2"}]}}`)
	must.Get(pods.Patch(t.Context(), "crash", types.StrategicMergePatchType, patch, metav1.PatchOptions{}))
	eventually(t, func(ctx context.Context) {
		is := must.Get(pods.Get(ctx, "crash", metav1.GetOptions{})).Status.Conditions
		if !slices.ContainsFunc(is, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
			must.Failf("it is not ready: %+v", is)
		}
	})
}

// The audit log names the users, and contains the objects that Keelson sent, but no secret.
func (e *env) audit(t *testing.T) {
	ctx := t.Context()
	since := must.Get(harness.AuditEnd(e.lab, name))
	must.Get(e.keelson.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "config"}, Data: map[string]string{"key": "value"},
	}, metav1.CreateOptions{FieldManager: "keelson"}))
	must.Get(e.keelson.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"key": "hidden"},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))
	watch := must.Get(e.keelson.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{}))
	defer watch.Stop()

	// The API server writes an entry before it answers; for a watch, at its start.
	found := map[string]audit.Event{}
	for _, event := range must.Get(harness.Audit(e.lab, name, since)) {
		if event.User == cluster.Keelson {
			found[event.Verb+" "+event.Resource.Resource] = event
		}
	}
	var sent corev1.ConfigMap
	write := found["create configmaps"]
	if err := json.Unmarshal(write.Request, &sent); err != nil || sent.Data["key"] != "value" {
		t.Errorf("what was sent: %s (%v)", write.Request, err)
	}
	if write.Resource.Name != "config" || write.FieldManager != "keelson" || write.Code != 201 || write.UserAgent != "lab-e2e" || write.DryRun {
		t.Errorf("the write of a ConfigMap: %s", write)
	}
	if secret := found["create secrets"]; !secret.DryRun || secret.Request != nil || secret.Response != nil {
		t.Errorf("the dry run of a Secret: %s, with %q", secret, secret.Request)
	}
	if w := found["watch configmaps"]; !w.Watch() || w.Stage != audit.ResponseStarted {
		t.Errorf("the watch: %s at stage %q", w, w.Stage)
	}
}

// A stopped API server returns on the same port with the same data.
func (e *env) outage(t *testing.T) {
	before := e.status(t)
	must.Do(e.lab.Stop(t.Context(), name, binaries.APIServer))
	if got := e.status(t).State; got != cluster.Degraded {
		t.Errorf("state %s without an API server, want %s", got, cluster.Degraded)
	}
	if _, err := e.admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a stopped API server answers")
	}
	must.Do(e.lab.Start(t.Context(), name, binaries.APIServer))
	after := e.status(t)
	if after.State != cluster.Running || after.APIServer != before.APIServer {
		t.Errorf("%s at %s, want it running at %s", after.State, after.APIServer, before.APIServer)
	}
	must.Get(e.keelson.CoreV1().ConfigMaps(namespace).Get(t.Context(), "config", metav1.GetOptions{}))
}

// up after a crash starts the missing processes and leaves the rest unchanged.
func (e *env) restart(t *testing.T) {
	before := pids(e.status(t))
	victim := must.Get(process.Identify(before[binaries.ControllerManager]))
	must.Do(victim.Signal(syscall.SIGKILL))
	eventually(t, func(context.Context) {
		if must.Get(victim.Alive()) {
			must.Failf("it is alive")
		}
	})
	for range 2 { // the second call has nothing to do
		must.Do(e.lab.Up(t.Context(), name, cluster.Change{}, e.set))
	}
	after := pids(e.status(t))
	for component, pid := range after {
		if restarted := pid != before[component]; restarted != (component == binaries.ControllerManager) {
			t.Errorf("%s: pid %d, before %d", component, pid, before[component])
		}
	}
}

func pids(s cluster.Status) map[string]int {
	all := map[string]int{}
	for _, c := range s.Components {
		all[c.Name] = c.PID
	}
	return all
}

func (e *env) nodes(t *testing.T) {
	for _, want := range []int{nodes + 2, 1} {
		must.Do(e.lab.Up(t.Context(), name, cluster.Change{Nodes: new(want)}, e.set))
		if list := must.Get(e.admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})); len(list.Items) != want {
			must.Failf("%d nodes, want %d", len(list.Items), want)
		}
	}
	if _, err := e.admin.CoreV1().Nodes().Get(t.Context(), name+"-node-0", metav1.GetOptions{}); apierrors.IsNotFound(err) {
		t.Error("the first node was removed, not the last")
	}
}
