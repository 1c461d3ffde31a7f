//go:build !race

package registry_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// copies gives a number of components one folder, with the entries in template/.
func copies(g *gittest.Repo, names int, template ...gittest.TreeEntry) {
	g.T.Helper()
	folder := g.RawTree(
		gittest.TreeEntry{Mode: "100644", Name: "component.yaml", Hash: g.Blob([]byte("apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: x\n"))},
		gittest.TreeEntry{Mode: "40000", Name: "template", Hash: g.RawTree(template...)},
	)
	for i := range names {
		g.Graft(fmt.Sprintf("components/c%03d", i), folder)
	}
}

// What all versions hold together is a property of the fleet: it is the same
// problem for whoever loads it, now or for the first time, and it is gone when
// the fleet is smaller.
func TestLimitsOfVersions(t *testing.T) {
	t.Parallel()
	const want = "the versions in use hold more than 500000 files and folders or 1024 MiB in all"
	zeros := tgz(t, 8, 5<<20)
	cases := map[string]struct {
		why string
		// few and many components, of which many are too many.
		few, many int
		write     func(g *gittest.Repo, names int)
	}{
		"Files": {"Files are counted for each component, also those that are the same.", 20, 30, func(g *gittest.Repo, names int) {
			copies(g, names,
				gittest.TreeEntry{Mode: "100644", Name: "Chart.yaml", Hash: g.Blob([]byte("apiVersion: v2\nname: x\nversion: 1.0.0\n"))},
				gittest.TreeEntry{Mode: "40000", Name: "files", Hash: g.Many(9, "100644", g.Blob(make([]byte, 5<<20)))})
		}},
		"Unpacked": {"So is what a packed chart holds, 40 MiB in 40 KB here.", 25, 30, func(g *gittest.Repo, names int) {
			copies(g, names, gittest.TreeEntry{Mode: "100644", Name: "x.tgz", Hash: g.Blob(zeros)})
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gittest.NewRepo(t)
			writeFleet(g)
			cache := t.TempDir()
			r := open2(t, g.Path, cache)
			for step, names := range []int{c.few, c.many, c.few, c.many, c.many, c.few} {
				g.Remove("components")
				for path, content := range baseFleet(t) {
					if strings.HasPrefix(path, "components/") {
						g.Write(path, content)
					}
				}
				c.write(g, names)
				g.Write("README.md", fmt.Sprint(step))
				g.Commit()
				fatal(t, r.Git().Fetch(t.Context()))
				got := load(t, r, "").Problems
				if d := cmp.Diff(load(t, open2(t, g.Path, cache), "").Problems, got); d != "" {
					t.Fatalf("%s step %d (-fresh +incremental):\n%s", c.why, step, d)
				}
				switch {
				case names == c.few && len(got) > 0:
					t.Fatalf("%s step %d, %d components: %v", c.why, step, names, got[0])
				case names == c.many && (len(got) == 0 || got[0].Message != want):
					t.Fatalf("%s step %d, %d components: %v, want %q", c.why, step, names, got, want)
				}
			}
		})
	}
}

// tgz packs a chart with a number of files of zeros.
func tgz(t testing.TB, files int, size int64) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	w := tar.NewWriter(zipped)
	chart := "apiVersion: v2\nname: x\nversion: 1.0.0\n"
	fatal(t, w.WriteHeader(&tar.Header{Name: "x/Chart.yaml", Mode: 0o644, Size: int64(len(chart))}))
	_, err := io.WriteString(w, chart)
	fatal(t, err)
	for i := range files {
		fatal(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("x/files/%d", i), Mode: 0o644, Size: size}))
		_, err := io.Copy(w, io.LimitReader(gittest.Endless(0), size))
		fatal(t, err)
	}
	fatal(t, errors.Join(w.Close(), zipped.Close()))
	return b.Bytes()
}

// The files of layers/, of approvals/ and of clusters/ multiply with each other.
func TestHostileMultiplication(t *testing.T) {
	layer := "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {}\ncomponents:\n"
	var big strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&big, "  c%d: {version: v1.0.0}\n", i)
	}
	var approvals strings.Builder
	approvals.WriteString("apiVersion: keelson.io/v1alpha1\nkind: Approvals\napprovals:\n")
	for i := range 5000 {
		fmt.Fprintf(&approvals, "- {cluster: no%d, component: x, object: ConfigMap a/b, hash: \"%s\", because: x}\n", i, strings.Repeat("0", 32))
	}
	named := func(n int, suffix string, e gittest.TreeEntry) func(g *gittest.Repo) []gittest.TreeEntry {
		return func(*gittest.Repo) []gittest.TreeEntry {
			var out []gittest.TreeEntry
			for i := range n {
				out = append(out, gittest.TreeEntry{Mode: e.Mode, Name: fmt.Sprintf("n%06d%s", i, suffix), Hash: e.Hash})
			}
			return out
		}
	}
	cases := map[string]struct {
		why    string
		change func(g *gittest.Repo)
		want   string
	}{
		"ManyLayers": {"One layer under a hundred thousand names.", func(g *gittest.Repo) {
			e := gittest.TreeEntry{Mode: "100644", Name: "", Hash: g.Blob([]byte(layer + "  coredns: {values: {a: 1}}\n"))}
			g.Graft("layers", g.RawTree(named(90_000, ".yaml", e)(g)...))
		}, "layers: layers/ holds more than 1000 files"},
		"LargeLayers": {"Fewer, and each half a megabyte.", func(g *gittest.Repo) {
			e := gittest.TreeEntry{Mode: "100644", Name: "", Hash: g.Blob([]byte(layer + big.String()))}
			g.Graft("layers", g.RawTree(named(900, ".yaml", e)(g)...))
		}, "layers: the files in layers/ are larger than 16 MiB in all"},
		"ManyApprovals": {"They are compared with each cluster.", func(g *gittest.Repo) {
			e := gittest.TreeEntry{Mode: "100644", Name: "", Hash: g.Blob([]byte(approvals.String()))}
			g.Graft("approvals", g.RawTree(named(900, ".yaml", e)(g)...))
		}, "approvals: the files in approvals/ are larger than 16 MiB in all"},
		"Product": {"20,000 components on each of 90,000 clusters.", func(g *gittest.Repo) {
			g.Write("layers/big.yaml", layer+big.String())
			c := g.RawTree(gittest.TreeEntry{Mode: "100644", Name: "cluster.yaml", Hash: g.Blob([]byte(baseFleet(g.T)["clusters/a/cluster.yaml"]))})
			g.Remove("clusters")
			g.Graft("clusters", g.RawTree(named(90_000, "", gittest.TreeEntry{Mode: "40000", Name: "", Hash: c})(g)...))
		}, "speak of more than 400000 components, counted on each cluster"},
		"Guesses": {"What is meant by 5000 names is not guessed among 20,000.", func(g *gittest.Repo) {
			g.Write("approvals/all.yaml", approvals.String())
			c := g.RawTree(gittest.TreeEntry{Mode: "100644", Name: "cluster.yaml", Hash: g.Blob([]byte(baseFleet(g.T)["clusters/a/cluster.yaml"]))})
			g.Remove("clusters")
			g.Graft("clusters", g.RawTree(named(20_000, "", gittest.TreeEntry{Mode: "40000", Name: "", Hash: c})(g)...))
		}, `there is no cluster "no4999", so this approves nothing`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g := gittest.NewRepo(t)
			writeFleet(g)
			c.change(g)
			g.Commit()
			cache := t.TempDir()
			gittest.Bounded(t, func() {
				r, err := registry.Open(t.Context(), gitrepo.Options{URL: g.Path, CacheDir: cache})
				fatal(t, err)
				f, err := r.Load(t.Context(), "")
				said := fmt.Sprint(err)
				if err == nil {
					said = f.Problems.Error()
				}
				if !strings.Contains(said, c.want) {
					t.Errorf("%s: %.500s\nwant %q", c.why, said, c.want)
				}
			})
		})
	}
}
