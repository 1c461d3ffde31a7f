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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/harness"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
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
	set, err := binaries.Find()
	if err != nil {
		t.Fatal(err)
	}
	e := &env{set: set, lab: &cluster.Lab{
		Dir: filepath.Join(t.TempDir(), "clusters"),
		Say: func(line string) { t.Log(line) },
	}}
	t.Cleanup(func() { e.down(t) })
	if err := e.lab.Up(t.Context(), name, cluster.Change{Nodes: new(nodes)}, set); err != nil {
		t.Fatal(err)
	}
	e.admin, e.keelson = e.client(t, cluster.Admin), e.client(t, cluster.Keelson)

	t.Run("Workloads", e.workloads)
	t.Run("InPlace", e.inPlace)
	t.Run("Crash", e.crash)
	t.Run("Audit", e.audit)
	t.Run("Outage", e.outage)
	t.Run("Restart", e.restart)
	t.Run("Nodes", e.nodes)
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
		t.Fatal(err)
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

func (e *env) client(t *testing.T, user string) kubernetes.Interface {
	t.Helper()
	config, err := harness.Config(e.lab, name, user)
	if err != nil {
		t.Fatal(err)
	}
	config.UserAgent = "lab-e2e"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (e *env) status(t *testing.T) cluster.Status {
	t.Helper()
	all, err := e.lab.Status(t.Context(), 0)
	if err != nil || len(all) != 1 {
		t.Fatalf("status of %d clusters: %v", len(all), err)
	}
	return all[0]
}

// eventually waits until a condition returns nil. Its error says what is missing.
func eventually(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		problem := condition(ctx)
		if problem == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after a minute: %v", problem)
		case <-tick.C:
		}
	}
}

func podSpec(image string) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}}
}

func template(app string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	labels := map[string]string{"app": app}
	return &metav1.LabelSelector{MatchLabels: labels},
		corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec("example.org/" + app + ":v1")}
}

func (e *env) workloads(t *testing.T) {
	ctx, none := t.Context(), metav1.CreateOptions{}
	apps := e.admin.AppsV1()

	selector, pods := template("deployment")
	if _, err := apps.Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "deployment"},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(3)), Selector: selector, Template: pods},
	}, none); err != nil {
		t.Fatal(err)
	}
	selector, pods = template("daemonset")
	if _, err := apps.DaemonSets(namespace).Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "daemonset"},
		Spec:       appsv1.DaemonSetSpec{Selector: selector, Template: pods},
	}, none); err != nil {
		t.Fatal(err)
	}
	selector, pods = template("statefulset")
	if _, err := apps.StatefulSets(namespace).Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "statefulset"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(2)), Selector: selector, Template: pods,
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}},
		},
	}, none); err != nil {
		t.Fatal(err)
	}
	_, pods = template("job")
	pods.Spec.RestartPolicy = corev1.RestartPolicyNever
	if _, err := e.admin.BatchV1().Jobs(namespace).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec:       batchv1.JobSpec{Template: pods},
	}, none); err != nil {
		t.Fatal(err)
	}

	get := metav1.GetOptions{}
	eventually(t, func(ctx context.Context) error {
		d, err := apps.Deployments(namespace).Get(ctx, "deployment", get)
		return enough("deployment", err, d.Status.AvailableReplicas, 3)
	})
	eventually(t, func(ctx context.Context) error {
		d, err := apps.DaemonSets(namespace).Get(ctx, "daemonset", get)
		return enough("daemonset", err, d.Status.NumberAvailable, nodes)
	})
	eventually(t, func(ctx context.Context) error {
		s, err := apps.StatefulSets(namespace).Get(ctx, "statefulset", get)
		return enough("statefulset", err, s.Status.AvailableReplicas, 2)
	})
	eventually(t, func(ctx context.Context) error {
		j, err := e.admin.BatchV1().Jobs(namespace).Get(ctx, "job", get)
		return enough("job", err, j.Status.Succeeded, 1)
	})
	if err := apps.Deployments(namespace).Delete(ctx, "deployment", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		left, err := e.admin.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=deployment"})
		return enough("pods of a deleted deployment", err, int32(len(left.Items)), 0)
	})
}

func enough(what string, err error, got, want int32) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if got != want {
		return fmt.Errorf("%s: %d, want %d", what, got, want)
	}
	return nil
}

const gate = corev1.PodConditionType("example.org/gate")

// podState holds the fields that show an in-place update.
type podState struct {
	image, imageID, containerID string
	restarts                    int32
	ready, gate                 corev1.ConditionStatus // empty: no such condition
}

func (e *env) pod(ctx context.Context, pod string) (podState, error) {
	p, err := e.admin.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return podState{}, err
	}
	var s podState
	for _, c := range p.Status.Conditions {
		switch c.Type {
		case corev1.PodReady:
			s.ready = c.Status
		case gate:
			s.gate = c.Status
		default:
		}
	}
	if len(p.Status.ContainerStatuses) == 1 {
		c := p.Status.ContainerStatuses[0]
		s.image, s.imageID, s.containerID, s.restarts = c.Image, c.ImageID, c.ContainerID, c.RestartCount
	}
	return s, nil
}

func (e *env) awaitPod(t *testing.T, pod string, is func(podState) bool) (s podState) {
	t.Helper()
	eventually(t, func(ctx context.Context) (err error) {
		if s, err = e.pod(ctx, pod); err != nil {
			return err
		}
		if !is(s) {
			return fmt.Errorf("pod %s is %+v", pod, s)
		}
		return nil
	})
	return s
}

func (e *env) patchPod(t *testing.T, pod, patch string, subresource ...string) {
	t.Helper()
	_, err := e.admin.CoreV1().Pods(namespace).Patch(t.Context(), pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
	if err != nil {
		t.Fatal(err)
	}
}

// A changed image restarts the container, and only the owner of a gate opens it.
func (e *env) inPlace(t *testing.T) {
	spec := podSpec("example.org/app:v1")
	spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
	if _, err := e.admin.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gated"}, Spec: spec,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	first := e.awaitPod(t, "gated", func(s podState) bool { return s.image == "example.org/app:v1" && s.containerID != "" })
	if first.ready != corev1.ConditionFalse || first.gate != "" {
		t.Errorf("before its gate is open: %+v", first)
	}

	e.patchPod(t, "gated", `{"status":{"conditions":[{"type":"example.org/gate","status":"True"}]}}`, "status")
	e.awaitPod(t, "gated", func(s podState) bool { return s.ready == corev1.ConditionTrue })
	e.patchPod(t, "gated", `{"status":{"conditions":[{"type":"example.org/gate","status":"False"}]}}`, "status")
	e.awaitPod(t, "gated", func(s podState) bool { return s.ready == corev1.ConditionFalse })

	e.patchPod(t, "gated", `{"spec":{"containers":[{"name":"main","image":"example.org/app:v2"}]}}`)
	second := e.awaitPod(t, "gated", func(s podState) bool { return s.image == "example.org/app:v2" && s.restarts == 1 })
	if second.imageID == first.imageID || second.containerID == first.containerID || second.gate != corev1.ConditionFalse || second.ready != corev1.ConditionFalse {
		t.Errorf("after the change of the image: %+v, before: %+v", second, first)
	}
}

func (e *env) crash(t *testing.T) {
	if _, err := e.admin.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "crash"}, Spec: podSpec("example.org/app:v1-crash"),
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		p, err := e.admin.CoreV1().Pods(namespace).Get(ctx, "crash", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Waiting == nil {
			return errors.New("its container is not waiting")
		}
		if why := p.Status.ContainerStatuses[0].State.Waiting.Reason; why != "CrashLoopBackOff" {
			return errors.New(why)
		}
		return nil
	})
	e.patchPod(t, "crash", `{"spec":{"containers":[{"name":"main","image":"example.org/app:v2"}]}}`)
	e.awaitPod(t, "crash", func(s podState) bool { return s.ready == corev1.ConditionTrue })
}

// The audit log names the users, and contains the objects that Keelson sent, but no secret.
func (e *env) audit(t *testing.T) {
	ctx := t.Context()
	path, err := e.lab.AuditLog(name)
	if err != nil {
		t.Fatal(err)
	}
	since, err := audit.End(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.keelson.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "config"}, Data: map[string]string{"key": "value"},
	}, metav1.CreateOptions{FieldManager: "keelson"}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.keelson.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"key": "hidden"},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	watch, err := e.keelson.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()

	// The API server writes an entry before it answers; for a watch, at its start.
	events, _, err := audit.Read(path, since)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]audit.Event{}
	for _, event := range events {
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
	if err := e.lab.Stop(t.Context(), name, binaries.APIServer); err != nil {
		t.Fatal(err)
	}
	if got := e.status(t).State; got != cluster.Degraded {
		t.Errorf("state %s without an API server, want %s", got, cluster.Degraded)
	}
	if _, err := e.admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a stopped API server answers")
	}
	if err := e.lab.Start(t.Context(), name, binaries.APIServer); err != nil {
		t.Fatal(err)
	}
	after := e.status(t)
	if after.State != cluster.Running || after.APIServer != before.APIServer {
		t.Errorf("%s at %s, want it running at %s", after.State, after.APIServer, before.APIServer)
	}
	if _, err := e.keelson.CoreV1().ConfigMaps(namespace).Get(t.Context(), "config", metav1.GetOptions{}); err != nil {
		t.Errorf("what was written before: %v", err)
	}
}

// up after a crash starts the missing processes and leaves the rest unchanged.
func (e *env) restart(t *testing.T) {
	before := pids(e.status(t))
	victim, err := process.Identify(before[binaries.ControllerManager])
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(context.Context) error {
		if alive, err := victim.Alive(); err != nil || alive {
			return fmt.Errorf("alive %t, %w", alive, err)
		}
		return nil
	})
	for range 2 { // the second call has nothing to do
		if err := e.lab.Up(t.Context(), name, cluster.Change{}, e.set); err != nil {
			t.Fatal(err)
		}
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
		if err := e.lab.Up(t.Context(), name, cluster.Change{Nodes: new(want)}, e.set); err != nil {
			t.Fatal(err)
		}
		list, err := e.admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != want {
			t.Fatalf("%d nodes (%v), want %d", len(list.Items), err, want)
		}
	}
	if _, err := e.admin.CoreV1().Nodes().Get(t.Context(), name+"-node-0", metav1.GetOptions{}); apierrors.IsNotFound(err) {
		t.Error("the first node was removed, not the last")
	}
}
