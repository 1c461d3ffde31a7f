package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const (
	ferryName = "ferry"
	staged    = "staged" // name of the pipeline
	// approvals is the file of approvals in git.
	approvals = "approvals/smoke.yaml"
)

// ferry is a component with one Deployment. It has a pipeline: testing, canary, production.
type ferry struct {
	scene *scene
	repo  *repository
	cli   *cli
}

const ferryDeployment = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: ferry
spec:
  replicas: 1
  progressDeadlineSeconds: 10
  selector:
    matchLabels: {app: ferry}
  template:
    metadata:
      labels: {app: ferry}
    spec:
      containers:
      - name: ferry
        image: {{ .Values.images.ferry.ref }}SUFFIX
`

// add adds the ferry and its pipeline to the fleet.
func (f *ferry) add(ctx context.Context) {
	f.pipeline("")
	f.repo.write("components/ferry/component.yaml", apiVersion+"kind: Component\nnamespace: ferry\npipeline: "+staged+"\n")
	f.repo.write("components/ferry/template/Chart.yaml", "apiVersion: v2\nname: ferry\nversion: 1.0.0\n")
	// Values of later versions exist from the start, so that a rollout changes only the version.
	f.repo.write("components/ferry/template/values.yaml", "suffix: \"\"\n")
	f.repo.setValue(canary, ferryName, "suffix", "-crash")
	f.rollOut(ctx, "v1.0.0", "")
}

// pipeline writes the ferry's pipeline, with additional lines for its last stage.
func (f *ferry) pipeline(last string) {
	var pipeline strings.Builder
	pipeline.WriteString(apiVersion + "kind: Pipeline\ndescription: what the smoke looks at\nstages:\n")
	for _, stage := range []string{"testing", "canary", "production"} {
		fmt.Fprintf(&pipeline, "- name: %[1]s\n  clusterSelector: {matchLabels: {stage: %[1]s}}\n  bake: 2s\n", stage)
	}
	f.repo.write("pipelines/"+staged+".yaml", pipeline.String()+last)
}

// rollOut publishes a version and sets it on every cluster. suffix is the end of the image's tag.
func (f *ferry) rollOut(ctx context.Context, version, suffix string) {
	f.repo.write("components/ferry/images.yaml", apiVersion+"kind: Images\nimages:\n  ferry: {repository: registry.example.com/ferry, tag: "+version+"}\n")
	f.repo.write("components/ferry/template/templates/deployment.yaml", strings.ReplaceAll(ferryDeployment, "SUFFIX", suffix))
	f.repo.release(ctx, ferryName, version)
	f.runVersion(ctx, version)
}

// runVersion sets a version on every cluster.
func (f *ferry) runVersion(ctx context.Context, version string) {
	for _, c := range f.scene.clusters {
		f.repo.setVersion(c, ferryName, version)
	}
	f.repo.push(ctx, "run "+ferryName+" "+version)
}

// at waits until the given clusters run a version.
func (f *ferry) at(ctx context.Context, version string, clusters ...string) {
	f.scene.at(ctx, ferryName, version, clusters...)
}

// writes returns the writes in the ferry's namespace on a cluster, without Jobs of its checks.
func (f *ferry) writes(cluster string, from marks) []audit.Event {
	return slices.DeleteFunc(f.scene.writes(cluster, from), func(e audit.Event) bool {
		return e.Resource.Namespace != ferryName || e.Resource.Resource == "jobs"
	})
}

// untouched fails if production was written since the marks.
func (f *ferry) untouched(from marks, why string) {
	if writes := f.writes(production, from); len(writes) > 0 {
		must.Failf("production was written to %s: %s", why, writes[0])
	}
}

// status waits until the Rollout is in a phase for a reason that contains of ("": any reason). It
// returns phase and reason.
func (f *ferry) status(ctx context.Context, phase, of string) string {
	rollouts := f.scene.admin(hub).Resource(harness.Resource("keelson.io/v1alpha1/rollouts")).Namespace("keelson-system")
	because := ""
	until(ctx, func(ctx context.Context) {
		u := must.Get(rollouts.Get(ctx, ferryName, metav1.GetOptions{}))
		is, _, _ := unstructured.NestedString(u.Object, "status", "phase")
		because, _, _ = unstructured.NestedString(u.Object, "status", "because")
		if is != phase || !strings.Contains(because, of) {
			must.Failf("the Rollout is %s (%s), not %s", is, because, phase)
		}
	})
	return phase + ": " + because
}

// explained returns the sentence that explains why a cluster does not have the new version yet.
func (f *ferry) explained(ctx context.Context, cluster string) string {
	return f.cli.run(ctx, 0, "rollout", "explain", ferryName, cluster)
}

// resume resumes the rollout.
func (f *ferry) resume(ctx context.Context, reason string) {
	f.cli.try(ctx, "rollout", "resume", ferryName, "--reason", reason)
}
