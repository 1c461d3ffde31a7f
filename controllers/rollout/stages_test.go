package rollout_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

// fleetOf reads a work tree of the given files, in which the component dns is at HEAD
// on each of the clusters, whose labels are given.
func fleetOf(t *testing.T, clusters map[string]string, files map[string]string) *registry.Fleet {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{
		"fleet.yaml":                         "apiVersion: keelson.io/v1alpha1\nkind: Fleet\nname: test\npipeline: standard\n",
		"components/dns/component.yaml":      "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: kube-system\n",
		"components/dns/template/Chart.yaml": "apiVersion: v2\nname: dns\nversion: 1.0.0\n",
	}
	for name, labels := range clusters {
		all["clusters/"+name+"/cluster.yaml"] = "apiVersion: keelson.io/v1alpha1\nkind: Cluster\nlabels: " + labels + "\nconnection: {context: " + name + "}\n"
		all["clusters/"+name+"/dns.yaml"] = "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: HEAD\n"
	}
	maps.Copy(all, files)
	for name, text := range all {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "a"}} {
		if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", root}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: root, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	f, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

const standard = `apiVersion: keelson.io/v1alpha1
kind: Pipeline
stages:
- name: testing
  clusterSelector: {matchLabels: {stage: testing}}
- name: production
  clusterSelector: {}
  order: importance
  maxConcurrent: 50%
  maxUnavailable: 1
  silence: 1m
  bake: 2m
  timeout: 3m
  onFailure: rollback
  windows: [{cron: 0 9 * * *, duration: 1h}]
  before: [{name: b, cel: "true"}]
  after: [{name: a, approval: {}}]
`

// TestStages: clusters are in the first stage that is for them, ordered by number, then
// word, then those without the label; a cluster that can't be read holds the first one.
func TestStages(t *testing.T) {
	t.Parallel()
	f := fleetOf(t, map[string]string{
		"test": "{stage: testing, importance: \"1\"}",
		"ten":  "{importance: \"10\"}", "nine": "{importance: \"9\"}", "also-nine": "{importance: \"9\"}",
		"word": "{importance: low}", "another-word": "{importance: high}", "none": "{}",
	}, map[string]string{
		"pipelines/standard.yaml":     standard,
		"clusters/wreck/cluster.yaml": "labels: [",
		"clusters/other/cluster.yaml": "apiVersion: keelson.io/v1alpha1\nkind: Cluster\nconnection: {context: other}\n", // without dns
	})
	got, err := rollout.Stages(f, "dns")
	if err != nil {
		t.Fatal(err)
	}
	want := []rollout.Stage{{
		Name: "testing", Clusters: []string{"test", "wreck"}, MaxConcurrent: 1, MaxUnavailable: 1, Timeout: time.Hour,
	}, {
		Name: "production", Clusters: []string{"also-nine", "nine", "ten", "another-word", "word", "none"},
		MaxConcurrent: 3, MaxUnavailable: 1, Silence: time.Minute, Bake: 2 * time.Minute, Timeout: 3 * time.Minute,
		Rollback: true, Before: []string{"b"}, After: []string{"a"},
	}}
	if len(got) == 2 && len(got[1].Windows) == 1 {
		got[1].Windows = nil
	} else {
		t.Error("no window")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
}

// TestNoStages: no pipeline is another thing than one that can't be read.
func TestNoStages(t *testing.T) {
	t.Parallel()
	clusters := map[string]string{"a": "{}"}
	fleet := "apiVersion: keelson.io/v1alpha1\nkind: Fleet\nname: test\n"
	f := fleetOf(t, clusters, map[string]string{"pipelines/standard.yaml": standard, "fleet.yaml": fleet})
	if got, err := rollout.Stages(f, "dns"); got != nil || err != nil {
		t.Errorf("without a pipeline: %v, %v", got, err)
	}
	f = fleetOf(t, clusters, map[string]string{"pipelines/standard.yaml": standard + "bake: 1h\n"})
	if got, err := rollout.Stages(f, "dns"); len(got) > 0 || err == nil || !strings.Contains(err.Error(), "pipelines/standard.yaml:") {
		t.Errorf("with a broken one: %v, %v", got, err)
	}
	f = fleetOf(t, clusters, map[string]string{"components/dns/component.yaml": "[", "pipelines/standard.yaml": standard})
	if got, err := rollout.Stages(f, "dns"); len(got) > 0 || err == nil {
		t.Errorf("where it can't be known which: %v, %v", got, err)
	}
}
