package cmd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	pipelineFile = `apiVersion: keelson.io/v1alpha1
kind: Pipeline
stages:
- name: testing
  clusterSelector: {matchLabels: {stage: testing}}
  bake: 1h
- name: production
  clusterSelector: {}
  silence: 10m
  before:
  - {name: healthy, cel: delivery.health == "Healthy"}
- name: spare
  clusterSelector: {matchLabels: {stage: spare}}
`
	freezeFile = `apiVersion: keelson.io/v1alpha1
kind: Freeze
clusterSelector: {matchLabels: {stage: production}}
components: [web]
until: 2026-03-01T18:00:00Z
reason: the fair
`
)

// staged is a fleet whose components go by a pipeline.
func staged(t *testing.T) *fleet {
	t.Helper()
	f := newFleet(t, "")
	f.kubeconfig = ""
	f.edit("fleet.yaml", "name: test", "name: test\npipeline: standard")
	f.write("pipelines/standard.yaml", pipelineFile)
	f.commit()
	return f
}

// TestValidateRollouts: what only compiling finds has file and line, too; what may be
// meant so is a warning.
func TestValidateRollouts(t *testing.T) {
	t.Parallel()
	f := staged(t)
	f.keelson("validate").want(t, 0).says(t, "warning: pipelines/standard.yaml:12:3: stage spare is for no cluster", "no problems")
	f.edit("pipelines/standard.yaml", `cel: delivery.health == "Healthy"`, `cel: delivery.health = "Healthy"`)
	f.write("freezes/fair.yaml", strings.Replace(freezeFile, "production", "prodution", 1))
	f.commit()
	f.keelson("validate").want(t, 1).says(t,
		"pipelines/standard.yaml:11:26: cel: line 1, column 17: Syntax error", "1 problem", "warning: freezes/fair.yaml: it is for no cluster").
		saysNot(t, "(on ")
	f.edit("pipelines/standard.yaml", `cel: delivery.health = "Healthy"`, `cel: cluster.labels.region == "eu"`)
	f.commit()
	f.keelson("validate").want(t, 0).says(t, "warning: pipelines/standard.yaml:11:26: on prod it has no answer: cel: no such key: region")
	f.edit("pipelines/standard.yaml", `cel: cluster.labels.region == "eu"`, "job: {template: jobs/smoke.yaml}")
	f.write("jobs/smoke.yaml", "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}\n")
	f.commit()
	f.keelson("validate").want(t, 0).says(t, "no problems")
	f.edit("jobs/smoke.yaml", "image: a", "imaeg: a")
	f.commit()
	f.keelson("validate").want(t, 1).says(t, `jobs/smoke.yaml:3:71: not a Job: unknown field "spec.template.spec.containers[0].imaeg"`, "1 problem")
	f.edit("pipelines/standard.yaml", "job: {template: jobs/smoke.yaml}", `cel: "true"`)
	f.edit("pipelines/standard.yaml", "clusterSelector: {}", "clusterSelector: {matchLabels: {stage: canary}}")
	f.commit()
	f.keelson("validate").want(t, 1).says(t, "pipelines/standard.yaml:1:1: pipeline standard has no stage for cluster prod (its last stage can select the remaining clusters")
}

// TestExplainRollout: how changes come to a component is a thing that stands in git, so
// explain says where.
func TestExplainRollout(t *testing.T) {
	t.Parallel()
	f := staged(t)
	f.write("freezes/fair.yaml", freezeFile)
	f.commit()
	f.keelson("explain", "test", "web").want(t, 0).says(t,
		"pipeline   standard ", "fleet.yaml:4:11\n", "stage      testing ", "pipelines/standard.yaml:4:3\n").saysNot(t, "frozen")
	f.keelson("explain", "prod", "web").want(t, 0).says(t, "stage      production ", "frozen     the fair ", "freezes/fair.yaml\n")
	f.in(world{now: time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC)}, "explain", "prod", "web").want(t, 0).saysNot(t, "frozen")

	var out struct{ Pipeline, Stage, Frozen struct{ Is string } }
	decode(t, f.keelson("explain", "prod", "web", "-o", "json").want(t, 0).out, &out)
	if out.Pipeline.Is != "standard" || out.Stage.Is != "production" || out.Frozen.Is != "the fair" {
		t.Errorf("%+v", out)
	}
}

// TestPreviewEstimate: when a change would be where, in each format.
func TestPreviewEstimate(t *testing.T) {
	t.Parallel()
	f := staged(t)
	f.write("freezes/fair.yaml", freezeFile)
	f.commit()
	f.edit("layers/10-base.yaml", "replicas: 2", "replicas: 4")
	f.edit("clusters/prod/web.yaml", "replicas: 3", "replicas: 5")
	got := f.keelson("preview", "HEAD", "--worktree", "--cluster-takes", "5m").want(t, 1).out
	_, got, _ = strings.Cut(got, "if it begins")
	want := ` at 2026-03-01 12:00 UTC, a cluster takes 5m0s, and nothing fails:
web by pipeline standard: complete at 2026-03-01 18:05 UTC at the earliest
  testing: 1 cluster (test); 2026-03-01 12:00 UTC to 2026-03-01 13:05 UTC
  production: 1 cluster (prod); 2026-03-01 18:00 UTC to 2026-03-01 18:05 UTC; checks before it: healthy

1 component changes on 2 clusters: 2 objects updated
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	f.keelson("preview", "HEAD", "--worktree", "-o", "markdown").want(t, 1).says(t,
		"### When clusters get the changes", "- `web by pipeline standard`: `complete at 2026-03-01 18:01 UTC at the earliest`\n  - `testing: 1 cluster (test);")
	var out struct {
		Estimate struct {
			ClusterTakes string
			Rollouts     []struct {
				Components []string
				Ends       time.Time
				Stages     []struct{ Clusters []string }
			}
		}
	}
	decode(t, f.keelson("preview", "HEAD", "--worktree", "-o", "json").want(t, 1).out, &out)
	if r := out.Estimate.Rollouts; len(r) != 1 || len(r[0].Stages) != 2 || r[0].Ends.IsZero() || out.Estimate.ClusterTakes != "1m0s" {
		t.Errorf("%+v", out)
	}
	f.keelson("preview", "HEAD", "--cluster-takes", "-1s").want(t, 2).says(t, "--cluster-takes")
}
