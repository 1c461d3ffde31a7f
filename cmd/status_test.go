package cmd_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd"
)

// statusTime is the time at which the tests look at the hub.
func statusTime() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func deliveries() []v1alpha1.DeliveryStatus {
	synced, healthy := v1alpha1.SyncSynced, v1alpha1.HealthHealthy
	return []v1alpha1.DeliveryStatus{
		{
			Cluster: "prod-hz-01", Component: "coredns", Version: "v1.12.0", AppliedVersion: "v1.11.0", Sync: v1alpha1.SyncHeld, Health: healthy,
			Message: "1 change is held, see below", Held: []v1alpha1.HeldChange{{
				Object: "Deployment.apps kube-system/coredns", Path: ".spec.selector.matchLabels.app",
				Rule: "workload-selector", Because: "a selector can't change: the object would have to be made anew",
			}},
		},
		{Cluster: "prod-hz-01", Component: "metrics-server", Version: "v0.8.0", AppliedVersion: "v0.8.0", Sync: synced, Health: healthy},
		{Cluster: "test-01", Component: "coredns", Version: "v1.12.0", AppliedVersion: "v1.12.0", Sync: synced, Health: healthy},
		{
			Cluster: "test-01", Component: "metrics-server", Version: "v0.8.0", Sync: synced, Health: v1alpha1.HealthDegraded,
			Pinned:  &v1alpha1.PinnedDelivery{Number: 3, Version: "v0.8.0", By: "tess@desk", Because: "INC-321"},
			Message: "Deployment.apps kube-system/metrics-server: \x1b[31mexceeded\nits progress deadline",
		},
	}
}

func TestStatus(t *testing.T) {
	c := liveAlone(t)
	hub := hubClient(t)
	ensureNamespace(t, c)
	w := world{now: statusTime()}
	status := func(w world, args ...string) result {
		t.Helper()
		return w.run(t, append([]string{"status", "--kubeconfig", kubeconfig, "--context", "prod"}, args...)...)
	}
	status(w).want(t, 0).says(t, "no deliveries yet\n")
	for i, d := range deliveries() {
		createDelivery(t, hub, d, statusTime().Add(-time.Duration(i*i*i+1)*time.Hour))
	}

	cases := map[string]struct {
		why  string
		w    world
		args []string
		want string
	}{
		"Plain": {
			why: "Without a terminal nothing is cut.",
			want: `CLUSTER     COMPONENT       VERSION          SYNC    HEALTH    AGE   MESSAGE
prod-hz-01  coredns         v1.11.0→v1.12.0  Held    Healthy   60m   1 change is held, see below
  ! Deployment.apps kube-system/coredns .spec.selector.matchLabels.app: rule workload-selector: a selector can't change: the object would have to be made anew
prod-hz-01  metrics-server  v0.8.0           Synced  Healthy   120m
test-01     coredns         v1.12.0          Synced  Healthy   9h
test-01     metrics-server  v0.8.0           Synced  Degraded  28h   Deployment.apps kube-system/metrics-server: ` + "\uFFFD" + `[31mexceeded its progress deadline
  ! pinned to 3, v0.8.0, by tess@desk: INC-321

4 deliveries: 3 Synced, 1 Held; 3 Healthy, 1 Degraded
`,
		},
		"Terminal": {
			why:  "On a terminal nothing is wider than it, and what is held can be read all the same.",
			w:    world{columns: 90},
			args: []string{"--color", "never"},
			want: `CLUSTER     COMPONENT       VERSION          SYNC    HEALTH    AGE   MESSAGE
prod-hz-01  coredns         v1.11.0→v1.12.0  Held    Healthy   60m   1 change is held, se…
  ! Deployment.apps kube-system/coredns .spec.selector.matchLabels.app: rule
    workload-selector: a selector can't change: the object would have to be made anew
prod-hz-01  metrics-server  v0.8.0           Synced  Healthy   120m
test-01     coredns         v1.12.0          Synced  Healthy   9h
test-01     metrics-server  v0.8.0           Synced  Degraded  28h   Deployment.apps kube…
  ! pinned to 3, v0.8.0, by tess@desk: INC-321

4 deliveries: 3 Synced, 1 Held; 3 Healthy, 1 Degraded
`,
		},
		"Matrix": {
			why:  "The fleet at one look.",
			args: []string{"--matrix"},
			want: `COMPONENT       prod-hz-01         test-01
coredns         ! v1.11.0→v1.12.0  ✓ v1.12.0
metrics-server  ✓ v0.8.0           ✗ v0.8.0

4 deliveries: 3 Synced, 1 Held; 3 Healthy, 1 Degraded
`,
		},
		"Problems": {
			why:  "In a large fleet only these rows matter; the counts are of all.",
			args: []string{"--problems", "test-01"},
			want: `CLUSTER  COMPONENT       VERSION  SYNC    HEALTH    AGE  MESSAGE
test-01  metrics-server  v0.8.0   Synced  Degraded  28h  Deployment.apps kube-system/metrics-server: ` + "\uFFFD" + `[31mexceeded its progress deadline
  ! pinned to 3, v0.8.0, by tess@desk: INC-321

2 deliveries: 2 Synced; 1 Healthy, 1 Degraded
`,
		},
	}
	for name, k := range cases {
		k.w.now = statusTime()
		if diff := cmp.Diff(k.want, status(k.w, k.args...).want(t, 0).out); diff != "" {
			t.Errorf("%s: %s\n%s", name, k.why, diff)
		}
	}

	status(w, "--fail").want(t, 1)
	status(w, "--fail", "prod-hz-02").want(t, 2).says(t, `the hub knows no cluster "prod-hz-02"`)
	status(w, "-w", "-o", "json").want(t, 2).says(t, "--watch and --matrix print text")
	status(world{columns: 90}).want(t, 0).says(t, "\x1b[33mHeld\x1b[0m", "\x1b[31mDegraded\x1b[0m").saysNot(t, "\x1b[31mexceeded")
	var list v1alpha1.DeliveryList
	decode(t, status(w, "-o", "json", "prod-hz-01").want(t, 0).out, &list)
	if list.Kind != "DeliveryList" || len(list.Items) != 2 || list.Items[0].Kind != "Delivery" ||
		list.Items[0].Status.Held[0].Rule != "workload-selector" {
		t.Errorf("got %+v", list)
	}
	watchStatus(t, hub)
}

// watchStatus changes a delivery while a watch runs.
func watchStatus(t *testing.T, hub client.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var out, err buffer
	done := make(chan int)
	go func() {
		done <- cmd.Run(ctx, cmd.Env{
			In: strings.NewReader(""), Out: &out, Err: &err, Now: statusTime, Columns: func(io.Writer) int { return 0 },
		}, []string{"status", "--watch", "--kubeconfig", kubeconfig})
	}()
	waitFor(t, func() bool { return strings.Contains(out.String(), "4 deliveries") })
	d := v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "test-01.metrics-server"}}
	if err := hub.Get(ctx, client.ObjectKeyFromObject(&d), &d); err != nil {
		t.Fatal(err)
	}
	d.Status.Health, d.Status.Message = v1alpha1.HealthHealthy, ""
	if err := hub.Status().Update(ctx, &d); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		return strings.Contains(out.String(), "2026-03-01T12:00:00Z test-01 metrics-server v0.8.0 Synced Healthy\n")
	})
	cancel()
	if code := <-done; code != 0 || err.String() != "" {
		t.Errorf("exit code %d, stderr %q", code, err.String())
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	deadline, tick := time.NewTimer(3*time.Minute), time.NewTicker(20*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline.C:
			t.Fatal("it did not happen")
		case <-tick.C:
		}
	}
}

func hubClient(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	hub, err := client.New(server, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return hub
}

func createDelivery(t *testing.T, hub client.Client, status v1alpha1.DeliveryStatus, since time.Time) {
	t.Helper()
	d := &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{
		Namespace: v1alpha1.Namespace, Name: status.Cluster + "." + status.Component,
		Labels: map[string]string{v1alpha1.LabelCluster: status.Cluster, v1alpha1.LabelComponent: status.Component},
	}}
	if err := hub.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: "Test", LastTransitionTime: metav1.NewTime(since),
	}}
	d.Status = status
	if err := hub.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}
