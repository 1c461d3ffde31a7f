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
)

// copies gives a number of components one folder, with the entries in template/.
func (g *gitRepo) copies(names int, template ...treeEntry) {
	g.t.Helper()
	folder := g.rawTree(
		treeEntry{"100644", "component.yaml", g.blob([]byte("apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: x\n"))},
		treeEntry{"40000", "template", g.rawTree(template...)},
	)
	for i := range names {
		g.graft(fmt.Sprintf("components/c%03d", i), folder)
	}
}

// What all versions hold together is a property of the fleet: it is the same
// problem for whoever loads it, now or for the first time, and it is gone when
// the fleet is smaller.
func TestBudgetOfVersions(t *testing.T) {
	t.Parallel()
	const want = "the versions in use hold more than 500000 files and folders or 1024 MiB in all"
	zeros := tgz(t, 8, 5<<20)
	cases := map[string]struct {
		why string
		// few and many components, of which many are too many.
		few, many int
		write     func(g *gitRepo, names int)
	}{
		"Files": {"Files are counted for each component, also those that are the same.", 20, 30, func(g *gitRepo, names int) {
			g.copies(names,
				treeEntry{"100644", "Chart.yaml", g.blob([]byte("apiVersion: v2\nname: x\nversion: 1.0.0\n"))},
				treeEntry{"40000", "files", g.many(9, "100644", g.blob(make([]byte, 5<<20)))})
		}},
		"Unpacked": {"So is what a packed chart holds, 40 MiB in 40 KB here.", 25, 30, func(g *gitRepo, names int) {
			g.copies(names, treeEntry{"100644", "x.tgz", g.blob(zeros)})
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGitRepo(t)
			g.writeFleet()
			cache := t.TempDir()
			r := open2(t, g.path, cache)
			for step, names := range []int{c.few, c.many, c.few, c.many, c.many, c.few} {
				g.remove("components")
				for path, content := range baseFleet(t) {
					if strings.HasPrefix(path, "components/") {
						g.write(path, content)
					}
				}
				c.write(g, names)
				g.write("README.md", fmt.Sprint(step))
				g.commit()
				fatal(t, r.Fetch(t.Context()))
				got := load(t, r, "").Problems
				if d := cmp.Diff(load(t, open2(t, g.path, cache), "").Problems, got); d != "" {
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
		_, err := io.Copy(w, io.LimitReader(endless(0), size))
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
	named := func(n int, suffix string, e treeEntry) func(g *gitRepo) []treeEntry {
		return func(*gitRepo) []treeEntry {
			var out []treeEntry
			for i := range n {
				out = append(out, treeEntry{e.mode, fmt.Sprintf("n%06d%s", i, suffix), e.hash})
			}
			return out
		}
	}
	cases := map[string]struct {
		why    string
		change func(g *gitRepo)
		want   string
	}{
		"ManyLayers": {"One layer under a hundred thousand names.", func(g *gitRepo) {
			e := treeEntry{"100644", "", g.blob([]byte(layer + "  coredns: {values: {a: 1}}\n"))}
			g.graft("layers", g.rawTree(named(90_000, ".yaml", e)(g)...))
		}, "layers: layers/ holds more than 1000 files"},
		"LargeLayers": {"Fewer, and each half a megabyte.", func(g *gitRepo) {
			e := treeEntry{"100644", "", g.blob([]byte(layer + big.String()))}
			g.graft("layers", g.rawTree(named(900, ".yaml", e)(g)...))
		}, "layers: the files in layers/ are larger than 16 MiB in all"},
		"ManyApprovals": {"They are compared with each cluster.", func(g *gitRepo) {
			e := treeEntry{"100644", "", g.blob([]byte(approvals.String()))}
			g.graft("approvals", g.rawTree(named(900, ".yaml", e)(g)...))
		}, "approvals: the files in approvals/ are larger than 16 MiB in all"},
		"Product": {"20,000 components on each of 90,000 clusters.", func(g *gitRepo) {
			g.write("layers/big.yaml", layer+big.String())
			c := g.rawTree(treeEntry{"100644", "cluster.yaml", g.blob([]byte(baseFleet(g.t)["clusters/a/cluster.yaml"]))})
			g.remove("clusters")
			g.graft("clusters", g.rawTree(named(90_000, "", treeEntry{"40000", "", c})(g)...))
		}, "speak of more than 400000 components, counted on each cluster"},
		"Guesses": {"What is meant by 5000 names is not guessed among 20,000.", func(g *gitRepo) {
			g.write("approvals/all.yaml", approvals.String())
			c := g.rawTree(treeEntry{"100644", "cluster.yaml", g.blob([]byte(baseFleet(g.t)["clusters/a/cluster.yaml"]))})
			g.remove("clusters")
			g.graft("clusters", g.rawTree(named(20_000, "", treeEntry{"40000", "", c})(g)...))
		}, `there is no cluster "no4999", so this approves nothing`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g := newGitRepo(t)
			g.writeFleet()
			c.change(g)
			g.commit()
			cache := t.TempDir()
			bounded(t, func() {
				r, err := registry.Open(t.Context(), registry.Options{URL: g.path, CacheDir: cache})
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
