package renderer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/charttest"
)

// TestFidelity compares with helm template, object for object: what users know of
// their charts must stay true. The oracle is Helm's install action, as the helm
// command runs it, and with KEELSON_HELM that command itself (make fidelity).
//
// testdata/fidelity/*.txtar start with a sentence that says why, then hold
//
//	PATH, crlf PATH, bom PATH   a file of the chart, with these line ends or this mark
//	pack FILE.tgz FOLDER        packs a folder of the chart, and removes it
//	from FOLDER                 the chart instead, and an images.yaml beside it
//	public CHART                the chart instead, a public one: see package charttest
//	api VERSION                 that the cluster serves, besides Helm's defaults
//	values NAME                 a set of values; where NAME starts with fails, both must fail
//
// The chart's own values are one more set. Every public chart is a case of its own, too,
// with the values that its folder ci/ holds.
func TestFidelity(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/fidelity/*.txtar")
	if err != nil || len(cases) < 25 {
		t.Fatalf("%d cases, %v; want at least 25", len(cases), err)
	}
	pool := newPool(t, renderer.PoolOptions{})
	var charts, sets atomic.Int32
	t.Cleanup(func() { t.Logf("compared %d charts with %d sets of values", charts.Load(), sets.Load()) })
	compare := func(t *testing.T, c *fidelityCase) {
		t.Helper()
		charts.Add(1)
		c.pool = pool
		for name, values := range c.values {
			sets.Add(1)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c.compare(t, name, values)
			})
		}
	}
	for _, file := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			compare(t, readFidelityCase(t, file))
		})
	}
	for _, dir := range charttest.Public(t) {
		t.Run("charts/"+filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			compare(t, publicFidelityCase(t, dir))
		})
	}
}

// fidelityCase is a chart with sets of values.
type fidelityCase struct {
	pool   *renderer.Pool
	dir    string
	images map[string]v1alpha1.Image
	api    []string
	values map[string]string
	// mayFail: Helm may refuse the chart with these values. Keelson must refuse it then.
	mayFail bool
}

func readFidelityCase(t *testing.T, file string) *fidelityCase {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(a.Comment)) == "" {
		t.Error("the case does not say why it is there")
	}
	c := &fidelityCase{dir: filepath.Join(t.TempDir(), "web"), values: map[string]string{"defaults": ""}}
	for _, f := range a.Files {
		verb, rest, _ := strings.Cut(f.Name, " ")
		switch verb {
		case "from":
			c.from(t, rest)
		case "public":
			c.dir = charttest.Need(t, rest)
		case "api":
			c.api = append(c.api, rest)
		case "values":
			c.values[rest] = string(f.Data)
		case "pack":
			tgz, folder, _ := strings.Cut(rest, " ")
			packFolder(t, filepath.Join(c.dir, folder), filepath.Join(c.dir, tgz))
		case "crlf":
			writeChartFile(t, c.dir, rest, strings.ReplaceAll(string(f.Data), "\n", "\r\n"))
		case "bom":
			writeChartFile(t, c.dir, rest, "\xEF\xBB\xBF"+string(f.Data))
		default:
			writeChartFile(t, c.dir, f.Name, string(f.Data))
		}
	}
	if len(c.values) < 5 && !strings.HasPrefix(c.dir, os.TempDir()) {
		t.Errorf("%d sets of values for a chart that others use; want the defaults and four more", len(c.values))
	}
	return c
}

// publicFidelityCase is a public chart, with the sets of values that its authors test it
// with.
func publicFidelityCase(t *testing.T, dir string) *fidelityCase {
	t.Helper()
	c := &fidelityCase{dir: dir, mayFail: true, values: map[string]string{"defaults": ""}}
	files, err := filepath.Glob(filepath.Join(dir, "ci", "*values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c.values[filepath.Base(file)] = string(data)
	}
	return c
}

// from takes a chart's folder, or a component's.
func (c *fidelityCase) from(t *testing.T, dir string) {
	t.Helper()
	c.dir = dir
	data, err := os.ReadFile(filepath.Join(dir, "images.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(dir, "template")); err == nil {
			c.dir = filepath.Join(dir, "template")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var images v1alpha1.Images
	if err := yaml.UnmarshalStrict(data, &images); err != nil {
		t.Fatal(err)
	}
	c.dir, c.images = filepath.Join(dir, "template"), images.Images
}

func writeChartFile(t *testing.T, dir, name, data string) {
	t.Helper()
	file := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// packFolder packs a subchart as helm package does.
func packFolder(t *testing.T, folder, tgz string) {
	t.Helper()
	c, err := loader.LoadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	file, err := chartutil.Save(c, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	writeChartFile(t, filepath.Dir(tgz), filepath.Base(tgz), string(data))
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
}

// compare renders the chart's folder, and the chart as helm package packs it.
func (c *fidelityCase) compare(t *testing.T, name, text string) {
	t.Helper()
	var values map[string]any
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	caps := renderer.DefaultCapabilities()
	// Helm always offers its defaults and more on top; Keelson offers
	// what the cluster serves. Offer the same to both.
	caps.APIVersions = append(caps.APIVersions, chartutil.DefaultVersionSet...)
	caps.APIVersions = append(caps.APIVersions, "monitoring.coreos.com/v1")
	caps.APIVersions = append(caps.APIVersions, c.api...)

	folder := readVersion(t, c.dir, "web")
	folder.Images = c.images
	forms := map[string]*registry.Version{c.dir: folder}
	if loaded, err := loader.LoadDir(c.dir); err == nil {
		if tgz, err := chartutil.Save(loaded, t.TempDir()); err == nil { // Helm packs no broken chart
			packed := unpackedVersion(t, "web", filepath.Base(tgz), packedChart(t, tgz))
			packed.Images = c.images
			forms[tgz] = packed
		}
	}
	for form, v := range forms {
		// What a chart makes up is left out below; here Keelson shall not refuse it.
		v.Spec.Determinism = v1alpha1.DeterminismReport
		withImages := copyValues(t, values)
		if images := v.ImageValues(nil); len(images) > 0 {
			withImages = chartutil.MergeTables(images, withImages)
		}
		oracles := map[string]oracle{"the install action": helmAction}
		if helm := os.Getenv("KEELSON_HELM"); helm != "" {
			oracles[helm] = helmCommand(helm)
		}
		for who, ask := range oracles {
			objects, hooks, helmErr := ask(t, form, "web", withImages, caps)
			got, err := c.pool.Render(t.Context(), renderer.Request{Version: v, Values: registry.ValuesFrom(values), Capabilities: caps})
			wantErr := strings.HasPrefix(name, "fails") || c.mayFail && helmErr != nil
			if (helmErr != nil) != wantErr || (err != nil) != wantErr {
				t.Errorf("%s of %s: error %v; Keelson: %v; want one of both: %t", who, form, helmErr, err, wantErr)
				continue
			}
			if err != nil {
				continue
			}
			opts := cmp.Options{cmp.FilterPath(func(p cmp.Path) bool {
				// Certificates that a chart makes up can't be the same twice.
				return strings.Contains(text, "type: helm") && generated(p)
			}, cmp.Ignore())}
			if d := cmp.Diff(objects, plain(got.Objects), opts); d != "" {
				t.Errorf("objects differ from %s of %s (-helm +keelson):\n%s", who, filepath.Base(form), d)
			}
			if d := cmp.Diff(hooks, plain(got.Hooks), opts); d != "" {
				t.Errorf("hooks differ from %s of %s (-helm +keelson):\n%s", who, filepath.Base(form), d)
			}
		}
	}
}

// oracle gives the objects and hooks of a chart's folder or .tgz.
type oracle func(t *testing.T, chart, name string, values map[string]any, caps renderer.Capabilities) (objects, hooks []map[string]any, err error)

// helmCommand is the command helm template in a process.
func helmCommand(helm string) oracle {
	return func(t *testing.T, chart, name string, values map[string]any, caps renderer.Capabilities) (objects, hooks []map[string]any, err error) {
		t.Helper()
		data, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), helm, "template", name, chart, "--namespace", "test", "--include-crds",
			"--kube-version", caps.KubeVersion, "--api-versions", strings.Join(caps.APIVersions, ","), "--values", file)
		if _, ok := values["images"]; ok {
			cmd.Args = append(cmd.Args, "--skip-schema-validation") // no schema of a chart knows them
		}
		cmd.Env = []string{"HOME=" + t.TempDir()}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %s", err, stderr.Bytes())
		}
		for _, o := range parse(t, string(out)) {
			events, ok, err := unstructured.NestedString(o, "metadata", "annotations", "helm.sh/hook")
			switch {
			case !ok || err != nil:
				objects = append(objects, o)
			case events != "test" && events != "test-success":
				hooks = append(hooks, o)
			}
		}
		return once(objects), hooks, nil
	}
}

// once leaves out definitions that stand there a second time: helm template prints
// the crds/ of a subchart for each of its aliases, and helm install passes over them.
func once(objects []map[string]any) []map[string]any {
	var out []map[string]any
	for _, o := range objects {
		if o["kind"] != "CustomResourceDefinition" || !slices.ContainsFunc(out, func(other map[string]any) bool { return cmp.Equal(o, other) }) {
			out = append(out, o)
		}
	}
	return out
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
func helmTemplate(t *testing.T, chart, name string, values map[string]any, caps renderer.Capabilities) (objects, hooks []map[string]any) {
	t.Helper()
	objects, hooks, err := helmAction(t, chart, name, values, caps)
	if err != nil {
		t.Fatal(err)
	}
	return objects, hooks
}

// helmAction is what the command helm template runs.
func helmAction(t *testing.T, chart, name string, values map[string]any, caps renderer.Capabilities) (objects, hooks []map[string]any, err error) {
	t.Helper()
	c, err := loader.Load(chart)
	if err != nil {
		return nil, nil, err
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
	_, install.SkipSchemaValidation = values["images"] // which no schema of a chart knows
	rel, err := install.RunWithContext(t.Context(), c, copyValues(t, values))
	if err != nil {
		return nil, nil, err
	}
	objects = once(parse(t, rel.Manifest))
	for _, h := range rel.Hooks {
		if slices.ContainsFunc(h.Events, func(e release.HookEvent) bool { return e != release.HookTest }) {
			hooks = append(hooks, parse(t, h.Manifest)...)
		}
	}
	return objects, hooks, nil
}

// parse reads manifests as the Kubernetes clients do.
func parse(t *testing.T, manifest string) []map[string]any {
	t.Helper()
	var out []map[string]any
	d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(manifest)), 4096)
	for {
		var (
			raw json.RawMessage
			u   unstructured.Unstructured
		)
		switch err := d.Decode(&raw); {
		case errors.Is(err, io.EOF):
			return out
		case err != nil:
			t.Fatal(err)
		case len(raw) == 0 || string(raw) == "null":
			continue
		}
		if err := u.UnmarshalJSON(raw); err != nil { // with whole numbers as such
			t.Fatal(err)
		}
		if !u.IsList() {
			out = append(out, normal(&u))
			continue
		}
		// A List is its items, for kubectl and Helm's client, too.
		list, err := u.ToList()
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			out = append(out, normal(&list.Items[i]))
		}
	}
}

// normal is an object without what Keelson fills in.
func normal(u *unstructured.Unstructured) map[string]any {
	u.SetNamespace("")
	if labels := u.GetLabels(); len(labels) == 0 {
		u.SetLabels(nil)
	}
	return u.Object
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
	code := m.Run()
	if built.path != "" {
		_ = os.RemoveAll(filepath.Dir(built.path))
	}
	os.Exit(code)
}
