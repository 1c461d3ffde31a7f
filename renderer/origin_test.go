package renderer_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
)

// originFleet has a mistake in a layer, one in a cluster's file, one that the
// cluster's file makes by leaving something out, and one in the chart itself.
const originFleet = `
-- fleet.yaml --
apiVersion: keelson.io/v1alpha1
kind: Fleet
name: test
-- components/demo/component.yaml --
apiVersion: keelson.io/v1alpha1
kind: Component
namespace: demo
-- components/demo/template/Chart.yaml --
apiVersion: v2
name: demo
version: 1.0.0
-- components/demo/template/values.yaml --
image: {}

level: loud
service:
  port: 80
-- components/demo/template/values.schema.json --
{"properties": {
  "replicas": {"type": "integer"},
  "level": {"enum": ["info"]},
  "service": {"required": ["name"]},
  "tolerations": {"items": {"type": "object"}}
}, "required": ["replicas"]}
-- components/demo/template/templates/cm.yaml --
-- layers/10-all.yaml --
apiVersion: keelson.io/v1alpha1
kind: Layer
clusterSelector: {}
components:
  demo:
    version: v1.0.0
    values:
      replicas: many
      service:
        port: 8080
-- clusters/one/cluster.yaml --
apiVersion: keelson.io/v1alpha1
kind: Cluster
connection: {context: one}
-- clusters/one/demo.yaml --
apiVersion: keelson.io/v1alpha1
kind: MetaConfig
values:
  tolerations:
  - {key: a}
  - b
`

// TestSchemaOrigins: each refused value is reported where its author wrote it.
func TestSchemaOrigins(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here")
	}
	fleet := loadFleet(t, originFleet)
	if err := fleet.Problems.Err(); err != nil {
		t.Fatal(err)
	}
	d := fleet.Cluster("one").Delivery("demo")
	_, err := renderer.New().Render(t.Context(), renderer.Request{
		Version: d.Version, Values: d.Values, Capabilities: renderer.DefaultCapabilities(),
	})
	var e *renderer.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an *Error", err)
	}
	want := `4 values are not as the chart's schema wants them:
  components/demo/template/values.yaml@demo/v1.0.0:3: level: value must be 'info'
  layers/10-all.yaml:8:7: replicas: got string, want integer
  layers/10-all.yaml:9:7: service: needs name
  clusters/one/demo.yaml:6:5: tolerations.1: got string, want object`
	if d := cmp.Diff(want, e.Message); d != "" {
		t.Errorf("message (-want +got):\n%s", d)
	}
}

func loadFleet(t *testing.T, archive string) *registry.Fleet {
	t.Helper()
	dir := t.TempDir()
	for _, f := range txtar.Parse([]byte(archive)).Files {
		name := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{"init -q -b main", "add -A", "commit -q -m fleet", "tag demo/v1.0.0"} {
		cmd := exec.CommandContext(t.Context(), "git", strings.Fields(args)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull,
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args, err, out)
		}
	}
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: dir, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return fleet
}
