package main

import (
	"context"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// The Probe of this program is called workloads. probes is the namespace of the objects that it
// creates.
const (
	probes    = "keelson-probes"
	probeFile = "probes/workloads.yaml"
)

// blackBox adds a black-box test of production to the pipeline. A rollout passes with a working
// image, and pauses with an image that crashes.
func blackBox(ctx context.Context, r *run) string {
	admin := r.typed(production)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: probes}}
	if _, err := admin.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		must.Do(err)
	}
	writeProbe(r, "v3")
	r.ferry.pipeline("  after: [{name: sound, probe: {name: workloads}}]\n")
	r.ferry.rollOut(ctx, "v1.5.0", "")
	r.ferry.at(ctx, "v1.5.0", production)
	r.ferry.status(ctx, "Complete", "")
	passed := r.cli.run(ctx, 0, "probe", "show", "workloads", production)
	nothingLeft(ctx, admin)

	writeProbe(r, "crash")
	r.ferry.rollOut(ctx, "v1.5.1", "")
	because := r.ferry.status(ctx, "Paused", "check sound failed")
	if says := regexp.MustCompile(production + `: .*web/upgrade.*CrashLoopBackOff`); !says.MatchString(because) {
		must.Failf("it does not say what failed: %s", because)
	}
	nothingLeft(ctx, admin)
	removeProbe(ctx, r)
	return passed + "\n" + because + "\nnothing is left in its namespace"
}

// writeProbe writes a Probe with a StatefulSet, a DaemonSet, a Job and a Deployment. The Deployment
// is upgraded to an image with the given tag.
func writeProbe(r *run, tag string) {
	r.repo.write(probeFile, apiVersion+`kind: Probe
clusterSelector: {matchLabels: {stage: production}}
namespace: `+probes+`
timeout: 15s
images:
  old: {repository: registry.example.com/pause, tag: v1}
  new: {repository: registry.example.com/pause, tag: v2}
  odd: {repository: registry.example.com/pause, tag: `+tag+`}
subjects:
- {name: web, deployment: {image: old, upgradeTo: odd, replicas: 2}}
- {name: db, statefulSet: {image: old, upgradeTo: new}}
- {name: agent, daemonSet: {image: old, upgradeTo: new, nodeSelector: {kubernetes.io/hostname: `+production+`-node-1}}}
- {name: job, job: {image: old, upgradeTo: new}}
`)
}

// removeProbe removes the Probe from git, and resumes the rollout that it paused.
func removeProbe(ctx context.Context, r *run) {
	r.repo.remove(probeFile)
	r.ferry.pipeline("")
	r.repo.push(ctx, "no probe")
	until(ctx, func(ctx context.Context) {
		r.ferry.resume(ctx, "the probe is gone")
		if out, _ := r.cli.try(ctx, "rollout", "list"); !strings.Contains(out, "Complete") {
			must.Failf("%s", out)
		}
	})
	// A running test ends before the Probe disappears.
	until(ctx, func(ctx context.Context) {
		if out := r.cli.run(ctx, 0, "probe", "list", "-o", "json"); strings.Contains(out, `"workloads"`) {
			must.Failf("keelson probe list: %s", out)
		}
	})
}

// nothingLeft waits until the Probe's namespace contains no pods, Deployments and Jobs.
func nothingLeft(ctx context.Context, admin kubernetes.Interface) {
	until(ctx, func(ctx context.Context) {
		pods := must.Get(admin.CoreV1().Pods(probes).List(ctx, metav1.ListOptions{}))
		deployments := must.Get(admin.AppsV1().Deployments(probes).List(ctx, metav1.ListOptions{}))
		jobs := must.Get(admin.BatchV1().Jobs(probes).List(ctx, metav1.ListOptions{}))
		if n := len(pods.Items) + len(deployments.Items) + len(jobs.Items); n > 0 {
			must.Failf("%d objects of a probe are left in %s", n, probes)
		}
	})
}
