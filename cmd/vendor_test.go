//go:build !race

package cmd_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// chartShop is a chart repository on loopback, whose charts a test changes.
type chartShop struct {
	t     *testing.T
	url   string
	host  string
	files map[string][]byte
}

func newChartShop(t *testing.T) *chartShop {
	t.Helper()
	s := &chartShop{t: t, files: map[string][]byte{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, ok := s.files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(server.Close)
	s.url, s.host = server.URL, strings.TrimPrefix(server.URL, "http://")
	return s
}

// sell puts versions of the chart cache up, in place of those before.
func (s *chartShop) sell(versions ...string) {
	s.t.Helper()
	index := "apiVersion: v1\nentries:\n  cache:\n"
	for _, v := range versions {
		index += fmt.Sprintf("  - {name: cache, version: %s, urls: [cache-%s.tgz]}\n", v, v)
		s.files["/cache-"+v+".tgz"] = chartTgz(s.t, "cache", v, "replicas: "+v[:1]+"\n")
	}
	s.files["/index.yaml"] = []byte(index)
}

func chartTgz(t *testing.T, name, version, values string) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	w := tar.NewWriter(zipped)
	for _, f := range [][2]string{
		{"Chart.yaml", "apiVersion: v2\nname: " + name + "\nversion: " + version + "\n"},
		{"values.yaml", values},
		{"templates/config.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cache}\ndata: {replicas: {{ .Values.replicas | quote }}}\n"},
	} {
		if err := w.WriteHeader(&tar.Header{Name: name + "/" + f[0], Mode: 0o644, Size: int64(len(f[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// vendor runs the command with the shop's host allowed.
func (s *chartShop) vendor(f *fleet, args ...string) result {
	s.t.Helper()
	return f.keelson(append([]string{"vendor", "--plain-http", s.host}, args...)...)
}

// snapshot is every file of a component with its content.
func (f *fleet) snapshot(component string) map[string]string {
	f.t.Helper()
	out := map[string]string{}
	root := filepath.Join(f.dir, "components", component)
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		out[filepath.ToSlash(name)] = string(data)
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// TestVendor goes the way of a chart: brought, delivered, checked, upgraded.
func TestVendor(t *testing.T) {
	t.Parallel()
	f, shop := newFleet(t, ""), newChartShop(t)
	shop.sell("1.0.0", "1.1.0", "2.0.0")
	f.write("components/cache/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: cache\n")

	shop.vendor(f, "cache", "--chart", "cache", "--chart-repo", shop.url, "--version", "~1.0").want(t, 0).says(t, "1.0.0", "written", shop.url)
	tgz := shop.files["/cache-1.0.0.tgz"]
	want := map[string]string{
		"component.yaml":                 "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: cache\n",
		"template/Chart.yaml":            "apiVersion: v2\nname: cache\nversion: 1.0.0\n",
		"template/values.yaml":           "replicas: 1\n",
		"template/templates/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cache}\ndata: {replicas: {{ .Values.replicas | quote }}}\n",
		"chart.yaml": `# Written by keelson vendor, and checked by keelson vendor --check.
apiVersion: keelson.io/v1alpha1
kind: ChartSource
url: ` + shop.url + `
name: cache
version: 1.0.0
constraint: ~1.0
digest: sha256:` + fmt.Sprintf("%x", sha256.Sum256(tgz)) + `
files: ` + sumOf("Chart.yaml", "apiVersion: v2\nname: cache\nversion: 1.0.0\n",
			"templates/config.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cache}\ndata: {replicas: {{ .Values.replicas | quote }}}\n",
			"values.yaml", "replicas: 1\n") + "\n",
	}
	if diff := cmp.Diff(want, f.snapshot("cache")); diff != "" {
		t.Fatalf("in git (-want +got):\n%s", diff)
	}
	f.edit("layers/10-base.yaml", "components:", "components:\n  cache:\n    version: HEAD")
	f.commit()
	f.keelson("validate").want(t, 0)
	f.keelson("render", "test", "cache").want(t, 0).says(t, `replicas: "1"`)

	shop.vendor(f, "--check").want(t, 0).says(t, "pinned")
	shop.vendor(f).want(t, 0).says(t, "pinned")

	shop.sell("1.0.0", "1.0.7", "1.1.0", "2.0.0")
	shop.vendor(f, "--upgrade").want(t, 0).says(t, "1.0.0 → 1.0.7", "written")
	shop.vendor(f, "cache", "--version", "2.0.0").want(t, 0).says(t, "1.0.7 → 2.0.0", "written")
	f.edit("components/cache/chart.yaml", "version: 2.0.0", "version: 2.0.0 # reviewed")
	shop.vendor(f, "--check").want(t, 0)
}

// sumOf is the sum of files as sha256sum would print it, name and content in turn.
func sumOf(files ...string) string {
	var list strings.Builder
	for i := 0; i < len(files); i += 2 {
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256([]byte(files[i+1])), files[i])
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(list.String())))
}

// TestVendorKeeps holds what vendor doesn't touch, and what it says about it.
func TestVendorKeeps(t *testing.T) {
	t.Parallel()
	const v1, v2 = "1.0.0", "1.1.0"
	cases := map[string]struct {
		why    string
		packed bool
		change func(*fleet, *chartShop)
		args   []string
		code   int
		says   []string
		// changes: the files are not as they were before the command.
		changes bool
	}{
		"CheckChanged": {
			why:    "A hand-made change shows in CI.",
			change: func(f *fleet, _ *chartShop) { f.edit("components/cache/template/values.yaml", "1", "7") },
			args:   []string{"--check"}, code: 1, says: []string{"differs", "changed components/cache/template/values.yaml"},
		},
		"CheckExtra": {
			why:    "Also one that only adds.",
			change: func(f *fleet, _ *chartShop) { f.write("components/cache/template/templates/more.yaml", "x: y\n") },
			args:   []string{"--check"}, code: 1, says: []string{"extra components/cache/template/templates/more.yaml"},
		},
		"CheckSum": {
			why: "A changed file and a changed sum are found by comparing with the published chart.",
			change: func(f *fleet, _ *chartShop) {
				f.edit("components/cache/template/values.yaml", "1", "7")
				f.edit("components/cache/chart.yaml", "files: sha256:", "files: sha256:0000")
				f.edit("components/cache/chart.yaml", sumSuffix(f), "")
			},
			args: []string{"--check"}, code: 1, says: []string{"changed components/cache/template/values.yaml", "changed components/cache/chart.yaml"},
		},
		"Restore": {
			why: "Deleted files are restored.",
			change: func(f *fleet, _ *chartShop) {
				f.git("rm", "-rfq", "--cached", "components/cache/template")
				removeAll(f, "template")
			},
			code: 0, says: []string{"written"}, changes: true,
		},
		"RestoreChanged": {
			why:    "Changed files are not overwritten.",
			change: func(f *fleet, _ *chartShop) { f.edit("components/cache/template/values.yaml", "1", "7") },
			code:   2, says: []string{"template/values.yaml (changed)", "--force overwrites it"},
		},
		"UpgradeChanged": {
			why:    "An upgrade does not overwrite changed files, either.",
			change: func(f *fleet, _ *chartShop) { f.edit("components/cache/template/values.yaml", "1", "7") },
			args:   []string{"--upgrade"}, code: 2, says: []string{"template/values.yaml (changed)"},
		},
		"UpgradeForced": {
			why:    "With --force, an upgrade overwrites changed files.",
			change: func(f *fleet, _ *chartShop) { f.edit("components/cache/template/values.yaml", "1", "7") },
			args:   []string{"--upgrade", "--force"}, code: 0, says: []string{"1.0.0 → 1.1.0"}, changes: true,
		},
		"UnknownChange": {
			why: "Without the old chart, Keelson finds that files changed, but not which ones.",
			change: func(f *fleet, s *chartShop) {
				f.edit("components/cache/template/values.yaml", "1", "7")
				delete(s.files, "/cache-"+v1+".tgz")
			},
			args: []string{"--upgrade"}, code: 2, says: []string{"which files differ is not known"},
		},
		"Moved": {
			why: "A version was published a second time.",
			change: func(f *fleet, s *chartShop) {
				s.files["/cache-"+v1+".tgz"] = chartTgz(f.t, "cache", v1, "evil: true\n")
			},
			args: []string{"--check"}, code: 2, says: []string{"published a second time"},
		},
		"MovedAsked": {
			why: "Also when it is asked for by name.",
			change: func(f *fleet, s *chartShop) {
				s.files["/cache-"+v1+".tgz"] = chartTgz(f.t, "cache", v1, "evil: true\n")
			},
			args: []string{"cache", "--version", v1}, code: 2, says: []string{"published a second time", "--force takes it"},
		},
		"Gone": {
			why:    "A repository that is away is trouble, and no difference.",
			change: func(_ *fleet, s *chartShop) { s.files = map[string][]byte{} },
			args:   []string{"--check"}, code: 2, says: []string{"404"},
		},
		"Broken": {
			why:    "A chart.yaml with a mistake is told with its place.",
			change: func(f *fleet, _ *chartShop) { f.edit("components/cache/chart.yaml", "version:", "vresion:") },
			args:   []string{"--check"}, code: 2, says: []string{`components/cache/chart.yaml:6:1: unknown key "vresion"`},
		},
		"PackedSame": {
			why: "A packed chart is checked as well.", packed: true, change: func(*fleet, *chartShop) {},
			args: []string{"--check"}, code: 0, says: []string{"pinned"},
		},
		"PackedNote": {
			why: "Notes beside it are the user's.", packed: true,
			change: func(f *fleet, _ *chartShop) { f.write("components/cache/template/README.md", "ours\n") },
			args:   []string{"--check"}, code: 0, says: []string{"pinned"},
		},
		"PackedUpgrade": {
			why: "It stays packed, and the notes stay.", packed: true,
			change: func(f *fleet, _ *chartShop) { f.write("components/cache/template/README.md", "ours\n") },
			args:   []string{"--upgrade"}, code: 0, says: []string{"1.0.0 → 1.1.0"}, changes: true,
		},
		"PackedChanged": {
			why: "Another file under its name.", packed: true,
			change: func(f *fleet, _ *chartShop) { f.write("components/cache/template/cache-1.0.0.tgz", "x") },
			args:   []string{"--upgrade"}, code: 2, says: []string{"template/cache-1.0.0.tgz (changed)"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Log(c.why)
			f, shop := newFleet(t, ""), newChartShop(t)
			shop.sell(v1)
			args := []string{"cache", "--chart", "cache", "--chart-repo", shop.url, "--version", "^1"}
			if c.packed {
				args = append(args, "--packed")
			}
			shop.vendor(f, args...).want(t, 0).says(t, "component.yaml is missing")
			shop.sell(v1, v2)
			f.commit()
			c.change(f, shop)
			before := f.snapshot("cache")
			shop.vendor(f, c.args...).want(t, c.code).says(t, c.says...)
			after := f.snapshot("cache")
			diff := cmp.Diff(before, after)
			if (diff != "") != c.changes {
				t.Errorf("changed: %t; want %t (-before +after):\n%s", diff != "", c.changes, diff)
			}
			if c.changes && c.packed && (after["template/README.md"] != "ours\n" || after["template/cache-1.1.0.tgz"] == "" || after["template/cache-1.0.0.tgz"] != "") {
				t.Errorf("files are not those of the upgrade: %v", keysOf(after))
			}
		})
	}
}

// sumSuffix is the end of the sum in chart.yaml, so that it can be cut to length.
func sumSuffix(f *fleet) string {
	for line := range strings.Lines(f.snapshot("cache")["chart.yaml"]) {
		if strings.HasPrefix(line, "files: ") {
			return line[len(line)-5 : len(line)-1]
		}
	}
	return ""
}

func removeAll(f *fleet, name string) {
	f.t.Helper()
	if err := os.RemoveAll(filepath.Join(f.dir, "components", "cache", name)); err != nil {
		f.t.Fatal(err)
	}
}

func keysOf(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}

// TestVendorOwnFiles holds that a component's own chart is not taken for an old one.
func TestVendorOwnFiles(t *testing.T) {
	t.Parallel()
	f, shop := newFleet(t, ""), newChartShop(t)
	shop.sell("1.0.0")
	before := f.snapshot("web")
	args := []string{"web", "--chart", "cache", "--chart-repo", shop.url}
	shop.vendor(f, args...).want(t, 2).says(t, "template/Chart.yaml", "--force overwrites it")
	if diff := cmp.Diff(before, f.snapshot("web")); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
	shop.vendor(f, append(args, "--force")...).want(t, 0)
	if after := f.snapshot("web"); after["template/Chart.yaml"] != "apiVersion: v2\nname: cache\nversion: 1.0.0\n" {
		t.Errorf("not replaced: %v", keysOf(after))
	}
	shop.vendor(f, "gadgets").want(t, 2).says(t, "components/gadgets has no chart.yaml")
}

// TestVendorLocal brings a folder, and notices changes without it.
func TestVendorLocal(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.write("charts/lib/Chart.yaml", "apiVersion: v2\nname: lib\nversion: 1.0.0\n")
	f.write("charts/lib/.gitignore", "*.lock\n")
	f.write("charts/lib/Chart.lock", "dependencies: []\n")
	f.keelson("vendor", "lib", "--chart", filepath.Join(f.dir, "charts/lib")).want(t, 0).
		says(t, "file:charts/lib", "components/lib/template/Chart.lock", "git add -f")
	removeAll(f, "../../charts")
	f.keelson("vendor", "--check").want(t, 0).says(t, "pinned")
	f.keelson("vendor", "--upgrade").want(t, 0).says(t, "pinned")
	f.keelson("vendor", "lib", "--version", "2.0.0").want(t, 2).says(t, "where there are no versions")
	f.edit("components/lib/template/Chart.yaml", "1.0.0", "1.0.1")
	f.keelson("vendor", "--check").want(t, 1).says(t, "differs")
	f.keelson("vendor").want(t, 2).says(t, "bring it again with --chart")
}

func TestVendorJSON(t *testing.T) {
	t.Parallel()
	f, shop := newFleet(t, ""), newChartShop(t)
	if got := f.keelson("vendor", "-o", "json").want(t, 0).out; got != "[]\n" {
		t.Errorf("without charts: %q", got)
	}
	f.keelson("vendor").want(t, 0).says(t, "no component has a chart.yaml")
	shop.sell("1.0.0")
	shop.vendor(f, "cache", "--chart", "cache", "--chart-repo", shop.url).want(t, 0)
	f.edit("components/cache/template/values.yaml", "1", "7")
	f.write("components/gone/chart.yaml", strings.ReplaceAll(f.snapshot("cache")["chart.yaml"], "name: cache", "name: gone"))
	var got []map[string]any
	decode(t, shop.vendor(f, "--check", "-o", "json").want(t, 2).out, &got)
	if len(got) != 2 || got[0]["state"] != "differs" || got[1]["state"] != "failed" || got[1]["error"] == "" {
		t.Fatalf("got %v", got)
	}
	if diff := cmp.Diff([]any{map[string]any{"file": "template/values.yaml", "state": "changed"}}, got[0]["differences"]); diff != "" {
		t.Error(diff)
	}
}

// TestVendorUsage tells what contradicts itself before anything is asked for.
func TestVendorUsage(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	for want, args := range map[string][]string{
		"name it":                        {"--chart", "oci://x/y"},
		"--check changes nothing":        {"web", "--check", "--upgrade"},
		"--chart-repo needs the chart's": {"web", "--chart-repo", "https://x"},
		"chart.yaml remembers it":        {"web", "--packed"},
		"leave --revision out":           {"--revision", "main"},
		`name "../web" must be`:          {"../web", "--chart", "oci://x.example/y"},
		"without TLS":                    {"web", "--chart", "y", "--chart-repo", "http://127.0.0.1:1"},
	} {
		f.keelson(append([]string{"vendor"}, args...)...).want(t, 2).says(t, want)
	}
	keelson(t, "vendor", "--repo", t.TempDir()).want(t, 2).says(t, "has no folder components")
	f.write("components/cache/chart.yaml", "")
	r := f.keelson("__complete", "vendor", "").want(t, 0)
	r.says(t, "cache").saysNot(t, "web")
	f.keelson("__complete", "vendor", "--chart", "x", "").want(t, 0).says(t, "cache", "web", "gadgets")
}
