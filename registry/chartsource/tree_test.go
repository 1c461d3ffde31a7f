package chartsource_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/archive"
	"github.com/keelson-io/keelson/registry/chartsource"
)

func openTree(t *testing.T, dir string) *chartsource.Tree {
	t.Helper()
	tree, err := chartsource.OpenTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree
}

// files are all below a folder, with their content.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		out[filepath.ToSlash(rel)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func newChart() *chartsource.Chart {
	return &chartsource.Chart{
		Source: v1alpha1.ChartSource{URL: "oci://registry.example/web", Name: "web", Version: "1.0.0", Digest: archive.Digest(nil)},
		Files:  []archive.File{{Name: "Chart.yaml", Data: []byte("new")}, {Name: "templates/a.yaml", Data: []byte("new")}},
	}
}

// TestWriteFails holds that a write that fails leaves everything as it was.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why     string
		prepare func(t *testing.T, component string)
		chart   func(*chartsource.Chart)
	}{
		"LastRename": {
			why: "template/ is in place already when chart.yaml can't be replaced.",
			prepare: func(t *testing.T, component string) {
				t.Helper()
				writeFile(t, filepath.Join(component, "chart.yaml/in-the-way"), []byte("x"))
			},
		},
		"FileAndFolder": {
			why: "Two files of which one is the other's folder.",
			chart: func(c *chartsource.Chart) {
				c.Files = append(c.Files, archive.File{Name: "templates", Data: []byte("x")})
			},
		},
		"Climbs": {
			why:   "Names are checked where archives are read, and once more by the folder itself.",
			chart: func(c *chartsource.Chart) { c.Files[1].Name = "../../../../escaped" },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Log(tc.why)
			dir := t.TempDir()
			root := filepath.Join(dir, "fleet")
			component := filepath.Join(root, "components/web")
			writeFile(t, filepath.Join(component, "template/Chart.yaml"), []byte("old"))
			if tc.prepare != nil {
				tc.prepare(t, component)
			}
			chart := newChart()
			if tc.chart != nil {
				tc.chart(chart)
			}
			before := files(t, dir)
			if err := openTree(t, root).Write(&chartsource.Component{Name: "web"}, chart, false); err == nil {
				t.Error("no error")
			}
			if diff := cmp.Diff(before, files(t, dir)); diff != "" {
				t.Errorf("changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestLinks holds that nothing is read or written through a symbolic link.
func TestLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	writeFile(t, filepath.Join(outside, "template/Chart.yaml"), []byte("outside"))
	components := filepath.Join(dir, "fleet/components")
	writeFile(t, filepath.Join(components, "inside/template/values.yaml"), []byte("x"))
	for link, to := range map[string]string{
		"folder": outside, "template/template": filepath.Join(outside, "template"), "file/template/Chart.yaml": filepath.Join(outside, "template/Chart.yaml"),
	} {
		at := filepath.Join(components, link)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, at); err != nil {
			t.Fatal(err)
		}
	}
	tree := openTree(t, filepath.Join(dir, "fleet"))
	for name, fails := range map[string]string{"folder": "escapes", "template": "is no folder", "file": "is no plain file"} {
		if _, err := tree.Component(name); err == nil || !strings.Contains(err.Error(), fails) {
			t.Errorf("component %s: error %v; want %q", name, err, fails)
		}
	}
	before := files(t, outside)
	if err := tree.Write(&chartsource.Component{Name: "folder"}, newChart(), false); err == nil {
		t.Error("written through a link")
	}
	if diff := cmp.Diff(before, files(t, outside)); diff != "" {
		t.Errorf("changed outside:\n%s", diff)
	}
}

// TestIgnored names the files that git would leave out.
func TestIgnored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, data := range map[string]string{
		".gitignore":                                        "# comment\n*.tgz\n/bin\n",
		"components/web/template/.gitignore":                "charts/\n!charts/keep\n",
		"components/web/template/templates/.gitignore":      "local-*\n!local-kept.yaml\n",
		"components/web/template/templates/local-a.yaml":    "x",
		"components/web/template/templates/local-kept.yaml": "x",
		"components/web/template/local-b.yaml":              "x",
		"components/web/template/bin/x":                     "x",
		"components/web/template/charts/sub/Chart.yaml":     "x",
		"components/web/template/web-1.0.0.tgz":             "x",
	} {
		writeFile(t, filepath.Join(dir, name), []byte(data))
	}
	tree := openTree(t, dir)
	c, err := tree.Component("web")
	if err != nil {
		t.Fatal(err)
	}
	got, err := tree.Ignored(c)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"components/web/template/charts/sub/Chart.yaml", "components/web/template/templates/local-a.yaml", "components/web/template/web-1.0.0.tgz",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzChartFiles reads charts whose Chart.yaml, lock and index anybody may have
// written: whatever they say, nothing panics, and no request leaves without TLS.
func FuzzChartFiles(f *testing.F) {
	f.Add([]byte("apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies: [{name: a, version: 1.x, repository: 'http://127.0.0.1:1'}]"), []byte("dependencies: [{name: a, version: 1.0.0}]"))
	f.Add([]byte("name: [web"), []byte(nil))
	f.Fuzz(func(t *testing.T, chart, lock []byte) {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "Chart.yaml"), chart)
		writeFile(t, filepath.Join(dir, "Chart.lock"), lock)
		c, err := chartsource.New(chartsource.Options{Root: dir, Transport: refuse{t}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Resolve(t.Context(), chartsource.Wanted{Chart: dir})
		if (got == nil) == (err == nil) {
			t.Errorf("got %v and error %v", got, err)
		}
	})
}
