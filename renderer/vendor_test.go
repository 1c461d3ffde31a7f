package renderer_test

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ociserver "github.com/google/go-containerregistry/pkg/registry"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	helmregistry "helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/repo"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/archive"
	"github.com/keelson-io/keelson/registry/chartsource"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/charttest"
)

// TestVendoredIsHelms packs charts with helm package, publishes them with helm
// push and helm repo index, and brings them back with keelson vendor: the same
// bytes as helm pull gives, and the same objects as helm template, packed and
// unpacked.
func TestVendoredIsHelms(t *testing.T) {
	t.Parallel()
	registryHost := strings.TrimPrefix(listen(t, ociserver.New(ociserver.Logger(log.New(io.Discard, "", 0)))), "http://")
	helm, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP(), helmregistry.ClientOptWriter(io.Discard),
		helmregistry.ClientOptCredentialsFile(filepath.Join(t.TempDir(), "config.json")))
	if err != nil {
		t.Fatal(err)
	}
	shop := t.TempDir()
	shopURL := listen(t, http.FileServer(http.Dir(shop)))
	packages := map[string]string{}
	for _, c := range chartsToVendor(t) {
		file, err := chartutil.Save(c, shop)
		if err != nil {
			t.Fatal(err)
		}
		packages[c.Name()] = file
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := helm.Push(data, registryHost+"/charts/"+c.Name()+":"+strings.ReplaceAll(c.Metadata.Version, "+", "_")); err != nil {
			t.Fatal(err)
		}
	}
	index, err := repo.IndexDirectory(shop, shopURL)
	if err != nil {
		t.Fatal(err)
	}
	if err := index.WriteFile(filepath.Join(shop, "index.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := chartsource.New(chartsource.Options{
		PlainHTTP: []string{registryHost, strings.TrimPrefix(shopURL, "http://")}, Root: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range packages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pulled := packedChart(t, file)
			for where, want := range map[string]chartsource.Wanted{
				"registry":   {Chart: "oci://" + registryHost + "/charts/" + name},
				"repository": {Chart: name, Repository: shopURL},
			} {
				got, err := client.Resolve(t.Context(), want)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got.Archive, pulled) {
					t.Errorf("the %s gave other bytes than helm package", where)
				}
				for form, v := range map[string]*registry.Version{"unpacked": vendoredVersion(name, got.Files, ""), "packed": unpackedVersion(t, name, filepath.Base(file), got.Archive)} {
					compareWithHelm(t, form+" of the "+where, file, v)
				}
			}
		})
	}
}

func listen(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func packedChart(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// compareWithHelm compares with helm template on the chart's own values.
func compareWithHelm(t *testing.T, what, chartPath string, v *registry.Version) {
	t.Helper()
	caps := renderer.DefaultCapabilities()
	caps.APIVersions = append(caps.APIVersions, chartutil.DefaultVersionSet...)
	got, err := renderer.New().Render(t.Context(), renderer.Request{Version: v, Capabilities: caps})
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	want, hooks := helmTemplate(t, chartPath, v.Component, nil, caps)
	if d := cmp.Diff(want, plain(got.Objects)); d != "" {
		t.Errorf("%s: objects differ from helm template (-helm +keelson):\n%s", what, d)
	}
	if d := cmp.Diff(hooks, plain(got.Hooks)); d != "" {
		t.Errorf("%s: hooks differ from helm template (-helm +keelson):\n%s", what, d)
	}
}

func vendoredVersion(name string, files []archive.File, packed string) *registry.Version {
	v := &registry.Version{Component: name, Name: "v1.0.0", Spec: v1alpha1.Component{Namespace: "test"}, Archive: packed}
	for _, f := range files {
		v.Chart = append(v.Chart, registry.File(f))
	}
	return v
}

func unpackedVersion(t *testing.T, name, packed string, data []byte) *registry.Version {
	t.Helper()
	_, files, err := archive.Unpack(data, registry.ChartLimits())
	if err != nil {
		t.Fatal(err)
	}
	return vendoredVersion(name, files, packed)
}

// TestPositionsInArchive holds that an error names the file in the .tgz.
func TestPositionsInArchive(t *testing.T) {
	t.Parallel()
	v := &registry.Version{
		Component: "web", Name: "v1.0.0", Archive: "web-1.2.3.tgz", Spec: v1alpha1.Component{Namespace: "test"},
		Chart: []registry.File{
			{Name: ".helmignore", Data: []byte("templates/\n")}, // helm package has left out what it names
			{Name: "Chart.yaml", Data: []byte("apiVersion: v2\nname: web\nversion: 1.2.3\n")},
			{Name: "templates/x.yaml", Data: []byte("a: b\n{{ fail \"no\" }}\n")},
		},
	}
	_, err := renderer.New().Render(t.Context(), renderer.Request{Version: v, Capabilities: renderer.DefaultCapabilities()})
	if want := "components/web/template/web-1.2.3.tgz/templates/x.yaml@web/v1.0.0:2"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v; want %s", err, want)
	}
}

// chartsToVendor are the one that helm create makes, some of TestFidelity, and the public
// ones.
func chartsToVendor(t *testing.T) []*chart.Chart {
	t.Helper()
	var out []*chart.Chart
	load := func(dir, name string) {
		c, err := loader.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if name != "" {
			c.Metadata.Name = name
		}
		out = append(out, c)
	}
	made, err := chartutil.Create("starter", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	load(made, "")
	for _, name := range []string{"crds", "files", "helmignore", "hooks", "lists", "named-templates", "subcharts"} {
		load(readFidelityCase(t, "testdata/fidelity/"+name+".txtar").dir, name)
	}
	for _, dir := range charttest.Public(t) {
		load(dir, "")
	}
	return out
}
