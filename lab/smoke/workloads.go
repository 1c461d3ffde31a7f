package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/process"
)

const (
	// workloads is the component that ships with Keelson. Its Deployment has the same name.
	workloads          = "workload-controllers"
	workloadsNamespace = "keelson-system"
	proxy              = "asi-proxy"
	proxySet           = "asi-proxy-ds-1"
	proxyNamespace     = "kube-system"
	// proxyNodes is the number of nodes of the testing cluster. The proxy runs on all of them.
	proxyNodes = 5
)

// startWorkloads starts a keelson workloads process beside a cluster. The nodes are simulated, so
// the pods of workload-controllers run nothing, and this process does their work. It has the rights
// of their ServiceAccount. It starts before Keelson applies the CRDs that it needs. It serves no
// webhooks, because no API server reaches it, and it is the only replica.
func (s *scene) startWorkloads(name string) error {
	path, err := s.lab.Kubeconfig(name, cluster.Admin)
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:" + workloadsNamespace + ":" + workloads
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:serviceaccounts:" + workloadsNamespace, "system:authenticated"}
	}
	own := filepath.Join(s.folder, name+"-workloads.yaml")
	if err := clientcmd.WriteToFile(*config, own); err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	child, err := process.StartChild(process.Spec{
		Path: s.keelson, Log: filepath.Join(s.folder, name+"-workloads.log"),
		Args: []string{"workloads", "--kubeconfig", own, "--lead=false", "--listen", ""},
	}, nil)
	if err != nil {
		return err
	}
	s.workloads = append(s.workloads, child)
	return nil
}

// stopWorkloads ends the processes. A process that ended earlier is an error.
func (s *scene) stopWorkloads() error {
	var errs []error
	for _, child := range s.workloads {
		errs = append(errs, child.Stop(30*time.Second))
	}
	s.workloads = nil
	return errors.Join(errs...)
}

// checkPartition rolls a version of asi-proxy out to the five nodes of testing, by four pushes of
// its meta-config.
func (s *smoke) checkPartition(ctx context.Context) (string, error) {
	const next = "v1.1.0"
	before, err := s.proxies(ctx)
	if err != nil {
		return "", err
	}
	if len(before) != proxyNodes {
		return "", fmt.Errorf("%s has %d pods of %s, and not %d", testing, len(before), proxy, proxyNodes)
	}
	if err := s.repo.replace("components/asi-proxy/images.yaml", `tag: \S+`, "tag: "+next); err != nil {
		return "", err
	}
	if err := s.repo.push(ctx, proxy+" "+next); err != nil {
		return "", err
	}
	if err := s.repo.tag(ctx, proxy, next); err != nil {
		return "", err
	}
	if err := s.repo.setVersion(testing, proxy, next); err != nil {
		return "", err
	}
	var lines []string
	for _, partition := range []int{proxyNodes, 4, 2, 0} {
		line, err := s.step(ctx, partition, before)
		if err != nil {
			return "", fmt.Errorf("partition %d: %w", partition, err)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n") + "\nthe same pods, one restart each; by the audit logs each push was one patch of that DaemonSet, and nothing else on any cluster", nil
}

// step pushes a partition. It checks that the update reaches the partition, stops there, and
// changes nothing else.
func (s *smoke) step(ctx context.Context, partition int, before map[string]corev1.Pod) (string, error) {
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	if err := s.repo.setValue(testing, proxy, "partition", partition); err != nil {
		return "", err
	}
	pushed := time.Now()
	if err := s.repo.push(ctx, fmt.Sprintf("testing: %s at partition %d", proxy, partition)); err != nil {
		return "", err
	}
	stands := func(ctx context.Context) error { return s.checkPods(ctx, partition, before) }
	if err := until(ctx, stands); err != nil {
		return "", err
	}
	took := time.Since(pushed).Round(10 * time.Millisecond)
	if err := pause(ctx, 2*time.Second); err != nil {
		return "", err
	}
	if err := stands(ctx); err != nil {
		return "", fmt.Errorf("it was there, and went on: %w", err)
	}
	for _, c := range s.scene.clusters {
		events, err := s.scene.since(c, marks)
		if err != nil {
			return "", err
		}
		writes := objectWrites(events)
		ours := func(e audit.Event) bool { return e.Resource.Group == "apps.kruise.io" && e.Resource.Name == proxySet }
		if want := map[bool]int{true: 1}[c == testing]; len(writes) != want || !allOf(writes, ours) {
			return "", fmt.Errorf("%s: %d writes, want %d of %s: %v", c, len(writes), want, proxySet, writes)
		}
	}
	says, err := s.workloadStatus(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("partition %d: %s, %s after the push", partition, says, took), nil
}

func allOf(events []audit.Event, is func(audit.Event) bool) bool {
	return !slices.ContainsFunc(events, func(e audit.Event) bool { return !is(e) })
}

// checkPods fails unless Keelson reports the component as done, the pods of the partition are
// unchanged, and all other pods were updated in place.
func (s *smoke) checkPods(ctx context.Context, partition int, before map[string]corev1.Pod) error {
	d, err := s.scene.dynamic(testing)
	if err != nil {
		return err
	}
	set, err := d.Resource(schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1", Resource: "daemonsets"}).
		Namespace(proxyNamespace).Get(ctx, proxySet, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read %s: %w", proxySet, err)
	}
	if is, _, _ := unstructured.NestedInt64(set.Object, "spec", "updateStrategy", "rollingUpdate", "partition"); is != int64(partition) {
		return fmt.Errorf("the cluster has partition %d", is)
	}
	pods, err := s.proxies(ctx)
	if err != nil {
		return err
	}
	old := 0
	for name, pod := range pods {
		was, ok := before[name]
		switch {
		case !ok || pod.UID != was.UID:
			return fmt.Errorf("pod %s was made anew", name)
		case pod.Spec.Containers[0].Image == was.Spec.Containers[0].Image:
			old++
		case pod.Status.ContainerStatuses[0].RestartCount != was.Status.ContainerStatuses[0].RestartCount+1:
			return fmt.Errorf("the container of pod %s started %d times again", name, pod.Status.ContainerStatuses[0].RestartCount)
		}
	}
	if old != partition || len(pods) != len(before) {
		return fmt.Errorf("%d of %d pods are as before", old, len(pods))
	}
	all, err := s.scene.deliveries(ctx)
	if err != nil {
		return err
	}
	if is := all[testing+"."+proxy]; is.sync != "Synced" || is.health != "Healthy" {
		return fmt.Errorf("%s", is)
	}
	says, err := s.workloadStatus(ctx)
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%d of %d pods updated: partition %d", proxyNodes-partition, proxyNodes, partition); partition > 0 && !strings.Contains(says, want) {
		return fmt.Errorf("keelson workload status says %q, and not %q", says, want)
	}
	return nil
}

// workloadStatus returns the first line of keelson workload status for the proxy's DaemonSet.
func (s *smoke) workloadStatus(ctx context.Context) (string, error) {
	c := exec.CommandContext(ctx, s.binary, "workload", "status", "daemonset/"+proxySet, "-n", proxyNamespace, "--kubeconfig", s.scene.kubeconfig(), "--context", testing)
	out, err := c.Output()
	line, _, _ := strings.Cut(string(out), "\n")
	if err != nil {
		return "", fmt.Errorf("keelson workload status: %w: %s%s", err, line, stderrOf(err))
	}
	return line, nil
}

// proxies returns the proxy's pods on testing, by name.
func (s *smoke) proxies(ctx context.Context) (map[string]corev1.Pod, error) {
	config, err := s.scene.admin(testing)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", testing, err)
	}
	list, err := client.CoreV1().Pods(proxyNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + proxy})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", proxy, err)
	}
	out := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		out[pod.Name] = pod
	}
	return out, nil
}

// checkOwn rolls out a version of workload-controllers, Keelson's own component, like any other
// component. Diff and preview show the change, it goes stage by stage, and the managed pods stay
// unchanged.
func (s *smoke) checkOwn(ctx context.Context) (string, error) {
	const (
		old, next = "v0.1.0", "v0.1.1"
		folder    = "components/" + workloads + "/"
		layer     = "layers/10-defaults.yaml"
	)
	before, err := s.proxies(ctx)
	if err != nil {
		return "", err
	}
	for _, e := range [][3]string{
		{folder + "images.yaml", `tag: \S+`, "tag: " + next},
		{folder + "template/Chart.yaml", `(?m)^version: .*`, "version: 0.1.1"},
		{folder + "template/Chart.yaml", `(?m)^appVersion: .*`, "appVersion: " + next},
		{folder + "component.yaml", `(?m)^namespace: .*`, "${0}\npipeline: " + staged},
	} {
		if err := s.repo.replace(e[0], e[1], e[2]); err != nil {
			return "", err
		}
	}
	if err := s.repo.push(ctx, workloads+" "+next); err != nil {
		return "", err
	}
	if err := s.repo.tag(ctx, workloads, next); err != nil {
		return "", err
	}
	if err := s.repo.replace(layer, `(?m)^(  `+workloads+`:\n    version: ).*`, "${1}"+next); err != nil {
		return "", err
	}
	base, err := s.repo.head(ctx)
	if err != nil {
		return "", err
	}
	if _, err := s.repo.git(ctx, "commit", "-qam", "run "+workloads+" "+next); err != nil {
		return "", err
	}
	shown, err := s.shown(ctx, base, old, next)
	if err != nil {
		return "", err
	}
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	if err := s.repo.push(ctx, "and nothing else"); err != nil {
		return "", err
	}
	if err := s.at(ctx, workloads, next, s.scene.clusters...); err != nil {
		return "", err
	}
	if err := s.converged(ctx); err != nil {
		return "", err
	}
	n, err := s.inStages(marks)
	if err != nil {
		return "", err
	}
	after, err := s.proxies(ctx)
	if err != nil {
		return "", err
	}
	for name, pod := range after {
		if was, ok := before[name]; !ok || pod.UID != was.UID || pod.Spec.Containers[0].Image != was.Spec.Containers[0].Image {
			return "", fmt.Errorf("the controllers were replaced, and pod %s with them", name)
		}
	}
	return fmt.Sprintf("%s\n%d patches a cluster, of its objects alone, each cluster when the one before had baked; the pods of %s stayed", shown, n, proxy), nil
}

// shown checks the output of diff and preview for a commit after base that is not pushed yet.
func (s *smoke) shown(ctx context.Context, base, old, next string) (string, error) {
	local := func(args ...string) (string, error) {
		c := exec.CommandContext(ctx, s.binary, append(args, "--repo", s.repo.work, "--kubeconfig", s.scene.kubeconfig(), "--context", hub)...)
		out, err := c.Output()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
			return "", fmt.Errorf("keelson %s: want exit code 1, something differs: %w\n%s%s", args[0], err, out, stderrOf(err))
		}
		return string(out), nil
	}
	diff, err := local("diff", production, workloads)
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(diff, "\n")
	image := "+ghcr.io/keelson-io/keelson:" + next
	if !strings.Contains(first, old+" → "+next) || !strings.Contains(strings.ReplaceAll(diff, "registry.us.example.com/ghcr", "ghcr.io"), image) {
		return "", fmt.Errorf("keelson diff doesn't show %s:\n%s", image, diff)
	}
	preview, err := local("preview", base, "main")
	if err != nil {
		return "", err
	}
	for _, want := range []string{workloads, "testing", "canary", "production"} {
		if !strings.Contains(preview, want) {
			return "", fmt.Errorf("keelson preview doesn't name %s:\n%s", want, preview)
		}
	}
	return "keelson diff " + production + ": " + first, nil
}

func stderrOf(err error) []byte {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.Stderr
	}
	return nil
}

// inStages fails unless each cluster got the same number of patches of the controllers' objects.
// The first patch must come at least 2 s after the last one of the previous cluster. It returns
// that number.
func (s *smoke) inStages(marks map[string]int64) (int, error) {
	var before []audit.Event
	for i, c := range s.scene.clusters {
		events, err := s.scene.since(c, marks)
		if err != nil {
			return 0, err
		}
		writes := objectWrites(events)
		if len(writes) == 0 || !allOf(writes, func(e audit.Event) bool { return strings.Contains(e.Resource.Name, workloads) }) {
			return 0, fmt.Errorf("%s: %d writes, not of %s alone: %v", c, len(writes), workloads, writes)
		}
		if i > 0 {
			if gap := writes[0].Received.Sub(before[len(before)-1].Time); gap < 2*time.Second || len(writes) != len(before) {
				return 0, fmt.Errorf("%s: %d writes, %s after the %d of the cluster before it, which bakes for 2s", c, len(writes), gap, len(before))
			}
		}
		before = writes
	}
	return len(before), nil
}
