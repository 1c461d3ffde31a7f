package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const (
	proxy          = "asi-proxy"
	proxySet       = "asi-proxy-ds-1"
	proxyNamespace = "kube-system"
	// proxyNodes is the number of nodes of the testing cluster. The proxy runs on all of them.
	proxyNodes = 5
)

// partition rolls a version of asi-proxy out to the five nodes of testing, by four pushes of its
// meta-config.
func partition(ctx context.Context, r *run) string {
	const next = "v1.1.0"
	before := proxies(ctx, r)
	if len(before) != proxyNodes {
		must.Failf("%s has %d pods of %s, and not %d", testing, len(before), proxy, proxyNodes)
	}
	r.repo.replace("components/asi-proxy/images.yaml", `tag: \S+`, "tag: "+next)
	r.repo.release(ctx, proxy, next)
	r.repo.setVersion(testing, proxy, next)
	var lines []string
	for _, partition := range []int{proxyNodes, 4, 2, 0} {
		lines = append(lines, pushPartition(ctx, r, partition, before))
	}
	return strings.Join(lines, "\n") + "\nthe same pods, one restart each; by the audit logs each push was one patch of that DaemonSet, and nothing else on any cluster"
}

// pushPartition pushes a partition. It checks that the update reaches the partition, stops there,
// and changes nothing else.
func pushPartition(ctx context.Context, r *run, partition int, before map[string]corev1.Pod) string {
	from := r.marks()
	r.repo.setValue(testing, proxy, "partition", partition)
	pushed := time.Now()
	r.repo.push(ctx, fmt.Sprintf("testing: %s at partition %d", proxy, partition))
	until(ctx, func(ctx context.Context) { stands(ctx, r, partition, before) })
	took := time.Since(pushed).Round(10 * time.Millisecond)
	must.Sleep(ctx, 2*time.Second)
	if err := must.Try(func() { stands(ctx, r, partition, before) }); err != nil {
		must.Failf("it was at partition %d, and went on: %w", partition, err)
	}
	for _, c := range r.clusters {
		writes := r.writes(c, from)
		ours := func(e audit.Event) bool { return e.Resource.Group == "apps.kruise.io" && e.Resource.Name == proxySet }
		if want := map[bool]int{true: 1}[c == testing]; len(writes) != want || !allOf(writes, ours) {
			must.Failf("partition %d: %s: %d writes, want %d of %s: %v", partition, c, len(writes), want, proxySet, writes)
		}
	}
	return fmt.Sprintf("partition %d: %s, %s after the push", partition, workloadStatus(ctx, r), took)
}

func allOf(events []audit.Event, is func(audit.Event) bool) bool {
	return !slices.ContainsFunc(events, func(e audit.Event) bool { return !is(e) })
}

// stands fails unless Keelson reports the component as done, the pods of the partition are
// unchanged, and all other pods were updated in place.
func stands(ctx context.Context, r *run, partition int, before map[string]corev1.Pod) {
	sets := r.admin(testing).Resource(harness.Resource("apps.kruise.io/v1beta1/daemonsets")).Namespace(proxyNamespace)
	set := must.Get(sets.Get(ctx, proxySet, metav1.GetOptions{}))
	if is, _, _ := unstructured.NestedInt64(set.Object, "spec", "updateStrategy", "rollingUpdate", "partition"); is != int64(partition) {
		must.Failf("the cluster has partition %d", is)
	}
	pods := proxies(ctx, r)
	old := 0
	for name, pod := range pods {
		was, ok := before[name]
		switch {
		case !ok || pod.UID != was.UID:
			must.Failf("pod %s was made anew", name)
		case pod.Spec.Containers[0].Image == was.Spec.Containers[0].Image:
			old++
		case pod.Status.ContainerStatuses[0].RestartCount != was.Status.ContainerStatuses[0].RestartCount+1:
			must.Failf("the container of pod %s started %d times again", name, pod.Status.ContainerStatuses[0].RestartCount)
		}
	}
	if old != partition || len(pods) != len(before) {
		must.Failf("%d of %d pods are as before", old, len(pods))
	}
	if is := r.deliveries(ctx)[testing+"."+proxy]; is.Sync != "Synced" || is.Health != "Healthy" {
		must.Failf("%s", is)
	}
	says := workloadStatus(ctx, r)
	if want := fmt.Sprintf("%d of %d pods updated: partition %d", proxyNodes-partition, proxyNodes, partition); partition > 0 && !strings.Contains(says, want) {
		must.Failf("keelson workload status says %q, and not %q", says, want)
	}
}

// workloadStatus returns the first line of keelson workload status for the proxy's DaemonSet.
func workloadStatus(ctx context.Context, r *run) string {
	out := r.cli.expect(ctx, 0, "workload", "status", "daemonset/"+proxySet, "-n", proxyNamespace, "--kubeconfig", r.kubeconfig(), "--context", testing)
	line, _, _ := strings.Cut(out, "\n")
	return line
}

// proxies returns the proxy's pods on testing, by name.
func proxies(ctx context.Context, r *run) map[string]corev1.Pod {
	out := map[string]corev1.Pod{}
	for _, pod := range must.Get(r.typed(testing).CoreV1().Pods(proxyNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + proxy})).Items {
		out[pod.Name] = pod
	}
	return out
}
