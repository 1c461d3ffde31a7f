package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const (
	// workloads is the component that ships with Keelson. Its Deployment has the same name.
	workloads          = "workload-controllers"
	workloadsNamespace = "keelson-system"
)

// ownComponent rolls out a version of workload-controllers, Keelson's own component, like any other
// component. Diff and preview show the change, it goes stage by stage, and the managed pods stay
// unchanged.
func ownComponent(ctx context.Context, r *run) string {
	const (
		old, next = "v0.1.0", "v0.1.1"
		folder    = "components/" + workloads + "/"
	)
	before := proxies(ctx, r)
	r.repo.replace(folder+"images.yaml", `tag: \S+`, "tag: "+next)
	r.repo.replace(folder+"template/Chart.yaml", `(?m)^version: .*`, "version: 0.1.1")
	r.repo.replace(folder+"template/Chart.yaml", `(?m)^appVersion: .*`, "appVersion: "+next)
	r.repo.replace(folder+"component.yaml", `(?m)^namespace: .*`, "${0}\npipeline: "+staged)
	r.repo.release(ctx, workloads, next)
	r.repo.replace("layers/10-defaults.yaml", `(?m)^(  `+workloads+`:\n    version: ).*`, "${1}"+next)
	base := r.repo.head(ctx)
	r.repo.git(ctx, "commit", "-qam", "run "+workloads+" "+next)
	shown := shownBeforePush(ctx, r, base, old, next)
	from := r.marks()
	r.repo.push(ctx, "and nothing else")
	r.at(ctx, workloads, next, r.clusters...)
	r.converged(ctx)
	n := inStages(r, from)
	for name, pod := range proxies(ctx, r) {
		if was, ok := before[name]; !ok || pod.UID != was.UID || pod.Spec.Containers[0].Image != was.Spec.Containers[0].Image {
			must.Failf("the controllers were replaced, and pod %s with them", name)
		}
	}
	return fmt.Sprintf("%s\n%d patches a cluster, of its objects alone, each cluster when the one before had baked; the pods of %s stayed", shown, n, proxy)
}

// shownBeforePush checks the output of diff and preview for a commit after base that is not pushed
// yet. Both end with exit code 1, since something differs.
func shownBeforePush(ctx context.Context, r *run, base, old, next string) string {
	local := func(args ...string) string {
		return r.cli.expect(ctx, 1, append(args, "--repo", string(r.repo.Clone), "--kubeconfig", r.kubeconfig(), "--context", hub)...)
	}
	diff := local("diff", production, workloads)
	first, _, _ := strings.Cut(diff, "\n")
	image := "+ghcr.io/keelson-io/keelson:" + next
	if !strings.Contains(first, old+" → "+next) || !strings.Contains(strings.ReplaceAll(diff, "registry.us.example.com/ghcr", "ghcr.io"), image) {
		must.Failf("keelson diff doesn't show %s:\n%s", image, diff)
	}
	preview := local("preview", base, "main")
	for _, want := range []string{workloads, "testing", "canary", "production"} {
		if !strings.Contains(preview, want) {
			must.Failf("keelson preview doesn't name %s:\n%s", want, preview)
		}
	}
	return "keelson diff " + production + ": " + first
}

// inStages fails unless each cluster got the same number of patches of the controllers' objects.
// The first patch must come at least 2 s after the last one of the previous cluster. It returns
// that number.
func inStages(r *run, from marks) int {
	var before []audit.Event
	for i, c := range r.clusters {
		writes := r.writes(c, from)
		if len(writes) == 0 || !allOf(writes, func(e audit.Event) bool { return strings.Contains(e.Resource.Name, workloads) }) {
			must.Failf("%s: %d writes, not of %s alone: %v", c, len(writes), workloads, writes)
		}
		if i > 0 {
			if gap := writes[0].Received.Sub(before[len(before)-1].Time); gap < 2*time.Second || len(writes) != len(before) {
				must.Failf("%s: %d writes, %s after the %d of the cluster before it, which bakes for 2s", c, len(writes), gap, len(before))
			}
		}
		before = writes
	}
	return len(before)
}
