package renderer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// TestFidelity compares with Helm's own install action, as helm template runs
// it, on public charts: what users know of their charts must stay true.
func TestFidelity(t *testing.T) {
	t.Parallel()
	charts := filepath.Join("..", "..", "shared", "charts")
	if _, err := os.Stat(charts); err != nil {
		t.Skip("no public charts here")
	}
	cases := []struct{ chart, name, values string }{
		{"alertmanager", "defaults", ``},
		{"alertmanager", "everything", `
replicaCount: 3
ingress: {enabled: true, hosts: [{host: a.example, paths: [{path: /, pathType: Prefix}]}]}
podDisruptionBudget: {maxUnavailable: 1}
autoscaling: {enabled: true}
persistence: {enabled: false}
config: {global: {resolve_timeout: 5m}, templates: null}
configmapReload: {enabled: true}
extraObjects: []
`},
		{"coredns", "defaults", ``},
		{"coredns", "autoscaled", `
replicaCount: 2
isClusterService: true
service: {clusterIP: 10.0.0.10}
autoscaler: {enabled: true, coresPerReplica: 128}
prometheus: {service: {enabled: true}, monitor: {enabled: true}}
podDisruptionBudget: {maxUnavailable: 1}
tolerations: [{key: a, operator: Exists}]
livenessProbe: {enabled: false}
deployment: {skipConfig: false}
resources: null
`},
		{"kube-state-metrics", "defaults", ``},
		{"kube-state-metrics", "sharded", `
replicas: 3
autosharding: {enabled: true}
rbac: {useClusterRole: true}
prometheus: {monitor: {enabled: true}}
podDisruptionBudget: {minAvailable: 1}
networkPolicy: {enabled: true}
collectors: [pods, nodes, services]
`},
		{"metrics-server", "defaults", ``},
		{"metrics-server", "production", `
replicas: 2
podDisruptionBudget: {enabled: true, minAvailable: 1}
serviceMonitor: {enabled: true}
addonResizer: {enabled: true}
tls: {type: helm}
apiService: {insecureSkipTLSVerify: false}
`},
		{"prometheus-node-exporter", "defaults", ``},
		{"prometheus-node-exporter", "monitored", `
prometheus: {monitor: {enabled: true}}
networkPolicy: {enabled: true}
kubeRBACProxy: {enabled: true}
hostNetwork: false
extraArgs: ["--collector.diskstats"]
tolerations: []
`},
	}
	for _, tc := range cases {
		t.Run(tc.chart+"/"+tc.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(charts, tc.chart)
			var values map[string]any
			if err := yaml.Unmarshal([]byte(tc.values), &values); err != nil {
				t.Fatal(err)
			}
			caps := renderer.DefaultCapabilities()
			// Helm always offers its defaults and more on top; Keelson offers
			// what the cluster serves. Offer the same to both.
			caps.APIVersions = append(caps.APIVersions, chartutil.DefaultVersionSet...)
			caps.APIVersions = append(caps.APIVersions, "monitoring.coreos.com/v1")

			got, err := renderer.New().Render(t.Context(), renderer.Request{
				Version:      readVersion(t, dir, tc.chart),
				Values:       registry.ValuesFrom(values),
				Capabilities: caps,
			})
			if err != nil {
				t.Fatal(err)
			}
			want, hooks := helmTemplate(t, dir, tc.chart, values, caps)
			// Certificates that a chart makes up can't be the same twice.
			opts := cmp.Options{cmp.FilterPath(func(p cmp.Path) bool {
				return strings.Contains(tc.values, "type: helm") && generated(p)
			}, cmp.Ignore())}
			if d := cmp.Diff(want, plain(got.Objects), opts); d != "" {
				t.Errorf("objects differ from helm template (-helm +keelson):\n%s", d)
			}
			if d := cmp.Diff(hooks, plain(got.Hooks), opts); d != "" {
				t.Errorf("hooks differ from helm template (-helm +keelson):\n%s", d)
			}
			for _, o := range got.Objects {
				if o.Source.Line == 0 {
					t.Logf("no line: %s %s", o.Source, o.Content["kind"])
				}
			}
		})
	}
}

func generated(p cmp.Path) bool {
	for _, step := range p {
		if m, ok := step.(cmp.MapIndex); ok {
			switch m.Key().String() {
			case "tls.crt", "tls.key", "ca.crt", "caBundle":
				return true
			}
		}
	}
	return false
}

// plain takes off what Keelson adds, to compare with Helm.
func plain(objects []*renderer.Object) []map[string]any {
	var out []map[string]any
	for _, o := range objects {
		c := (&unstructured.Unstructured{Object: o.Content}).DeepCopy()
		labels := c.GetLabels()
		delete(labels, v1alpha1.LabelComponent)
		if len(labels) == 0 {
			labels = nil
		}
		c.SetLabels(labels)
		c.SetNamespace("")
		out = append(out, c.Object)
	}
	return out
}

// helmTemplate is what `helm template --include-crds` gives.
func helmTemplate(t *testing.T, dir, name string, values map[string]any, caps renderer.Capabilities) (objects, hooks []map[string]any) {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	kube, err := chartutil.ParseKubeVersion(caps.KubeVersion)
	if err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	install.ClientOnly, install.DryRun, install.DryRunOption = true, true, "client"
	install.Replace, install.IncludeCRDs = true, true
	install.ReleaseName, install.Namespace = name, "test"
	install.KubeVersion, install.APIVersions = kube, caps.APIVersions
	rel, err := install.RunWithContext(t.Context(), c, copyValues(t, values))
	if err != nil {
		t.Fatal(err)
	}
	objects = parse(t, rel.Manifest)
	for _, h := range rel.Hooks {
		if !strings.Contains(h.Manifest, "helm.sh/hook: test") && !strings.Contains(h.Manifest, `"helm.sh/hook": test`) {
			hooks = append(hooks, parse(t, h.Manifest)...)
		}
	}
	return objects, hooks
}

// parse reads manifests as the Kubernetes clients do.
func parse(t *testing.T, manifest string) []map[string]any {
	t.Helper()
	var out []map[string]any
	d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(manifest)), 4096)
	for {
		var u unstructured.Unstructured
		switch err := d.Decode(&u.Object); {
		case errors.Is(err, io.EOF):
			return out
		case err != nil:
			t.Fatal(err)
		case len(u.Object) == 0:
			continue
		}
		data, err := json.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		if err := u.UnmarshalJSON(data); err != nil { // numbers
			t.Fatal(err)
		}
		u.SetNamespace("")
		if labels := u.GetLabels(); len(labels) == 0 {
			u.SetLabels(nil)
		}
		out = append(out, u.Object)
	}
}

func copyValues(t *testing.T, values map[string]any) map[string]any {
	t.Helper()
	data, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// readVersion makes a version of a chart's folder.
func readVersion(t testing.TB, dir, name string) *registry.Version {
	t.Helper()
	v := &registry.Version{
		Component: name, Name: "v1.0.0", Tree: "tree-of-" + name,
		Spec: v1alpha1.Component{Namespace: "test", Determinism: v1alpha1.DeterminismReport},
	}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		v.Chart = append(v.Chart, registry.File{Name: filepath.ToSlash(rel), Data: data})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == workerArg { // a Pool of a test started this
		if err := renderer.Work(os.Stdin, os.NewFile(3, "answers")); err != nil {
			log.Fatal(err) //nolint:forbidigo // the end of a process
		}
		os.Exit(0)
	}
	log.SetOutput(io.Discard) // Helm logs warnings about values
	os.Exit(m.Run())
}
