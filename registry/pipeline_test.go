package registry_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// TestSharedPipelines: a pipeline or freeze that says the same is the same, and one that
// says something else changes no delivery: what is wanted is another thing than when.
func TestSharedPipelines(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	g.Write("fleet.yaml", baseFleet(t)["fleet.yaml"]+"pipeline: standard\n")
	g.Write("pipelines/standard.yaml", pipelineText+"- {name: others, clusterSelector: {}}\n")
	g.Write("checks/job.yaml", jobText)
	g.Write("freezes/now.yaml", freezeText)
	g.Commit()
	r := open(t, g.Path)
	next := func(path, content string) *registry.Fleet {
		t.Helper()
		g.Write(path, content)
		g.Commit()
		if err := r.Git().Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		f := load(t, r, "")
		if err := f.Problems.Err(); err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := next("README.md", "a")
	second := next("README.md", "b")
	if first.PipelineOf("coredns") == nil || first.PipelineOf("coredns") != second.PipelineOf("coredns") || first.Freezes[0] != second.Freezes[0] {
		t.Error("a note makes other pipelines or freezes")
	}
	if third := next("pipelines/standard.yaml", pipelineText+"- {name: others, clusterSelector: {}, bake: 1h}\n"); third.PipelineOf("coredns") == second.PipelineOf("coredns") ||
		third.Cluster("a") != second.Cluster("a") || third.Cluster("b") != second.Cluster("b") {
		t.Error("another pipeline is the same, or makes other clusters")
	}
	before := load(t, r, "").Pipeline("standard")
	if after := next("checks/job.yaml", strings.Replace(jobText, "a:v1", "a:v2", 1)).Pipeline("standard"); after == before ||
		!strings.Contains(after.Jobs["checks/job.yaml"], "a:v2") {
		t.Errorf("another Job is the same: %v", after.Jobs)
	}
}

// TestStageApproval: a line lets one change through, by its hash, of one component, in one
// stage.
func TestStageApproval(t *testing.T) {
	t.Parallel()
	const hash = "0123456789abcdef0123456789abcdef"
	g := gittest.NewRepo(t)
	writeFleet(g)
	g.Write("fleet.yaml", baseFleet(t)["fleet.yaml"]+"pipeline: standard\n")
	g.Write("pipelines/standard.yaml", pipelineText+"- {name: others, clusterSelector: {}}\n")
	g.Write("checks/job.yaml", jobText)
	g.Write("approvals/x.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Approvals\napprovals:\n"+
		"- {component: coredns, stage: others, hash: "+hash+", because: CHG-1}\n")
	g.Commit()
	f := load(t, open(t, g.Path), "")
	if err := f.Problems.Err(); err != nil {
		t.Fatal(err)
	}
	if a := f.StageApproval("coredns", "others", hash); a == nil || a.Because != "CHG-1" {
		t.Errorf("got %v", a)
	}
	for _, other := range [][3]string{{"dns", "others", hash}, {"coredns", "testing", hash}, {"coredns", "others", strings.Repeat("0", 32)}, {"coredns", "others", ""}} {
		if a := f.StageApproval(other[0], other[1], other[2]); a != nil {
			t.Errorf("%v is approved by %v", other, a)
		}
	}
	for _, d := range f.Cluster("a").Deliveries {
		if len(d.Approvals) > 0 {
			t.Errorf("it approves objects of %s", d.Component)
		}
	}
}

// TestNames: what placeholders stand for, and which text is another one on each cluster.
func TestNames(t *testing.T) {
	t.Parallel()
	n := registry.Names{Component: "coredns", Pipeline: "standard", Stage: "canary", Cluster: "b", Clusters: []string{"a", "b"}}
	if got := n.Expand(`$(component) $(pipeline) $(stage) {cluster=~"$(clusters)"} $(cluster) $cluster $(`); got != `coredns standard canary {cluster=~"a|b"} b $cluster $(` {
		t.Error(got)
	}
	if registry.PerCluster("$(clusters)") || !registry.PerCluster("https://$(cluster).example") {
		t.Error("which is asked for each cluster")
	}
}

// TestParseJob: what a Job says when its placeholders are replaced is looked at again, by
// who runs it.
func TestParseJob(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: batch/v1\nkind: Job\nmetadata: {labels: {app: $(component)-$(cluster)}}\n" +
		"spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a, args: [\"$(clusters)\"]}]}}}\n"
	job, err := registry.ParseJob(registry.Names{Component: "web", Cluster: "prod-1", Clusters: []string{"prod-1", "prod-2"}}.Expand(text))
	if err != nil || job.Labels["app"] != "web-prod-1" || job.Spec.Template.Spec.Containers[0].Args[0] != "prod-1|prod-2" {
		t.Errorf("%+v, %v", job, err)
	}
	for text, want := range map[string]string{
		"{":                              "not valid YAML",
		"kind: Job":                      "it holds apiVersion null",
		text + "status: {}":              "has no status of its own",
		text + "---\n" + text:            "more than one YAML document",
		text + strings.Repeat("#\n", 10): "",
	} {
		if _, err := registry.ParseJob(text); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	large := registry.DecodeAny([]byte(text + strings.Repeat("#\n", 32<<10)))
	if !slices.ContainsFunc(large, func(p yamlfile.Problem) bool {
		return strings.Contains(p.Message, "a Job of a check has at most 65536")
	}) {
		t.Errorf("a large one: %v", large)
	}
}

const pipelineText = `apiVersion: keelson.io/v1alpha1
kind: Pipeline
stages:
- name: testing
  clusterSelector: {matchLabels: {stage: testing}}
  after: [{name: smoke, job: {template: checks/job.yaml}}]
`

const jobText = `apiVersion: batch/v1
kind: Job
spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a:v1}]}}}
`

const freezeText = `apiVersion: keelson.io/v1alpha1
kind: Freeze
clusterSelector: {matchLabels: {stage: production}}
components: [coredns]
reason: x
`
