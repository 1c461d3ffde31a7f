package registry_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

var update = flag.Bool("update", false, "rewrite the expected results of the golden cases")

// TestGolden runs testdata/golden/*.txtar. Each starts with a sentence that
// says why, then lists files of a fleet repository and steps, in order:
//
//	base                   the files of testdata/base.txtar, tagged coredns/v1.0.0
//	tag NAME               commit what stands above, and tag it
//	annotate NAME          the same with an annotated tag
//	branch NAME, untag NAME, rm PATH, symlink PATH TARGET, submodule PATH
//	latin1 PATH, big PATH  a file that is not UTF-8, one of 2 MiB
//	pack FILE              pack all files beside it, and put FILE in their place
//	load                   commit, fetch and load, as an earlier run did
//
// What it expects comes last, rewritten by -update:
//
//	want problems          all problems, and what each cluster and delivery is blocked by
//	want deliveries        what runs where
//	want rollouts [TIME]   by which stage, and what is frozen at a time
//	want probes            which run where
//	want values CLUSTER COMPONENT
//	want explain CLUSTER COMPONENT [PATH]
func TestGolden(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/golden/*.txtar")
	if err != nil || len(cases) < 40 {
		t.Fatalf("%d golden cases, %v; want at least 40", len(cases), err)
	}
	for _, path := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			runGolden(t, path)
		})
	}
}

func runGolden(t *testing.T, path string) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(archive.Comment)) == "" {
		t.Error("the case does not say why it is there")
	}
	g := &golden{Repo: gittest.NewRepo(t), cache: t.TempDir()}
	changed := false
	for i, f := range archive.Files {
		verb, rest, _ := strings.Cut(f.Name, " ")
		if verb != "want" {
			g.step(f.Name, string(f.Data))
			continue
		}
		g.load()
		got := g.want(rest)
		if got != string(f.Data) {
			changed = true
			if !*update {
				t.Errorf("%s (-want +got):\n%s", f.Name, cmp.Diff(string(f.Data), got))
			}
			archive.Files[i].Data = []byte(got)
		}
	}
	if changed && *update {
		if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type golden struct {
	*gittest.Repo
	cache string
	repo  *registry.Repo
	dirty bool
	fleet *registry.Fleet
	err   error
}

func (g *golden) step(name, data string) {
	g.T.Helper()
	words := strings.Fields(name)
	g.dirty = true
	switch words[0] {
	case "base":
		writeFleet(g.Repo)
	case "tag":
		g.Commit()
		g.Tag(words[1])
	case "annotate":
		g.Annotate(words[1], g.Commit())
	case "branch":
		g.Ref("refs/heads/"+words[1], g.Commit())
	case "untag":
		g.DeleteTag(words[1])
	case "rm":
		g.Remove(words[1])
	case "symlink":
		g.Symlink(words[1], words[2])
	case "submodule":
		g.Submodule(words[1])
	case "latin1":
		g.Write(words[1], "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\nvalues:\n  name: caf\xe9\n")
	case "big":
		g.Write(words[1], strings.Repeat("# twelve chars\n", 2<<20/15))
	case "pack":
		g.pack(words[1])
	case "load":
		g.load()
	default:
		if len(words) > 1 {
			g.T.Fatalf("unknown step %q", name)
		}
		g.Write(name, data)
	}
}

// pack makes a chart's .tgz of the files in its folder.
func (g *golden) pack(file string) {
	g.T.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	w := tar.NewWriter(zipped)
	folder := path.Dir(file)
	for _, name := range slices.Sorted(maps.Keys(g.Files)) {
		rest, inside := strings.CutPrefix(name, folder+"/")
		if !inside {
			continue
		}
		raw, err := g.Storage.EncodedObject(plumbing.BlobObject, g.Files[name].Hash)
		if err != nil {
			g.T.Fatal(err)
		}
		r, err := raw.Reader()
		if err != nil {
			g.T.Fatal(err)
		}
		if err := w.WriteHeader(&tar.Header{Name: "chart/" + rest, Mode: 0o644, Size: raw.Size()}); err != nil {
			g.T.Fatal(err)
		}
		if _, err := io.Copy(w, r); err != nil {
			g.T.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		g.T.Fatal(err)
	}
	g.Remove(folder)
	g.Write(file, b.String())
}

// load commits, fetches and loads, unless nothing happened since.
func (g *golden) load() {
	g.T.Helper()
	if !g.dirty {
		return
	}
	g.dirty = false
	g.Commit()
	if g.repo == nil {
		g.repo, g.err = registry.Open(g.T.Context(), gitrepo.Options{URL: g.Path, CacheDir: g.cache})
	} else {
		g.err = g.repo.Git().Fetch(g.T.Context())
	}
	if g.err == nil {
		g.fleet, g.err = g.repo.Load(g.T.Context(), "")
	}
}

func (g *golden) want(what string) string {
	g.T.Helper()
	words := strings.Fields(what)
	if g.err != nil {
		return "error: " + strings.ReplaceAll(strings.ReplaceAll(g.err.Error(), g.Path, "REPO"), g.Last.String()[:12], "COMMIT") + "\n"
	}
	switch words[0] {
	case "problems":
		return g.hideHashes(showProblems(g.fleet))
	case "deliveries":
		return showDeliveries(g.fleet)
	case "probes":
		return showProbes(g.fleet)
	case "rollouts":
		return showRollouts(g.T, g.fleet, words[1:])
	case "promotions":
		return showPromotions(g.fleet, words[1:])
	case "notifications":
		return showNotifications(g.fleet)
	case "values":
		out, err := yaml.Marshal(g.delivery(words[1:]).Values.Map())
		if err != nil {
			g.T.Fatal(err)
		}
		return string(out)
	case "explain":
		path := ""
		if len(words) > 3 {
			path = words[3]
		}
		return g.hideHashes(showExplained(g.T, g.delivery(words[1:]), path))
	}
	g.T.Fatalf("unknown expectation %q", what)
	return ""
}

// hideHashes writes hashes by the order of their commits, so that a case does
// not depend on the base files.
func (g *golden) hideHashes(s string) string {
	h := g.Last
	for n := g.Commits; n > 0; n-- {
		s = strings.ReplaceAll(s, h.String(), fmt.Sprintf("COMMIT%d", n))
		s = strings.ReplaceAll(s, h.String()[:12], fmt.Sprintf("COMMIT%d", n))
		c := mustCommit(g.T, g.Storage, h)
		if len(c.ParentHashes) == 0 {
			break
		}
		h = c.ParentHashes[0]
	}
	return s
}

func (g *golden) delivery(words []string) *registry.Delivery {
	g.T.Helper()
	c := g.fleet.Cluster(words[0])
	if c == nil || c.Delivery(words[1]) == nil {
		g.T.Fatalf("no delivery %v", words)
	}
	return c.Delivery(words[1])
}

func showProblems(f *registry.Fleet) string {
	var b strings.Builder
	for _, p := range f.Problems {
		fmt.Fprintln(&b, p.Error())
	}
	for _, c := range f.Clusters {
		for _, p := range c.Problems {
			fmt.Fprintf(&b, "blocks %s: %s\n", c.Name, p.At)
		}
		for _, d := range c.Deliveries {
			for _, p := range d.Problems {
				fmt.Fprintf(&b, "blocks %s/%s: %s\n", c.Name, d.Component, p.At)
			}
		}
	}
	return b.String()
}

func showRollouts(t testing.TB, f *registry.Fleet, when []string) string {
	t.Helper()
	var b strings.Builder
	for _, c := range f.Clusters {
		for _, d := range c.Deliveries {
			fmt.Fprintf(&b, "%s/%s ", c.Name, d.Component)
			switch p := f.PipelineOf(d.Component); {
			case p == nil:
				b.WriteString("at once")
			case len(p.Problems) > 0:
				b.WriteString("by a broken pipeline " + p.Name)
			case p.StageOf(c.Spec.Labels) == nil:
				b.WriteString("by no stage of " + p.Name)
			default:
				b.WriteString("by " + p.Name + " in " + p.StageOf(c.Spec.Labels).Spec.Name)
			}
			for _, text := range when {
				now, err := time.Parse(time.RFC3339, text)
				if err != nil {
					t.Fatal(err)
				}
				reason, until := f.Frozen(c, d.Component, now)
				if reason == "" {
					reason = "not frozen"
				}
				b.WriteString("; " + reason)
				if !until.IsZero() {
					b.WriteString(" until " + until.UTC().Format(time.RFC3339))
				}
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// showPromotions lists where versions stand that are promoted, and which of some
// versions each stage takes.
func showPromotions(f *registry.Fleet, versions []string) string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, c := range f.Clusters {
		for _, d := range c.Deliveries {
			p := f.PipelineOf(d.Component)
			if p == nil || seen[d.Component] {
				continue
			}
			seen[d.Component] = true
			for _, s := range p.Stages {
				place := f.PlaceOf(d.Component, s)
				fmt.Fprintf(&b, "%s in %s: %s at %s", d.Component, s.Spec.Name, place.Version, place.At)
				if len(place.OwnVersions) > 0 {
					fmt.Fprintf(&b, ", not on %s", strings.Join(place.OwnVersions, ", "))
				}
				if s.Promotes(d.Component) {
					b.WriteString("; takes " + strings.Join(slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return !s.Takes(d.Component, v) }), " "))
				}
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "%s published: %s\n", d.Component, strings.Join(f.Published(d.Component), " "))
		}
	}
	return b.String()
}

func showProbes(f *registry.Fleet) string {
	var b strings.Builder
	for _, c := range f.Clusters {
		probes, known := f.Probed(c)
		if !known {
			fmt.Fprintf(&b, "%s: not known\n", c.Name)
		}
		for _, p := range probes {
			if len(p.Problems) > 0 {
				fmt.Fprintf(&b, "%s: %s is broken\n", c.Name, p.Name)
				continue
			}
			fmt.Fprintf(&b, "%s: %s every %s, %s a step, in %s:", c.Name, p.Name, p.Interval, p.Timeout, p.Spec.Namespace)
			for _, s := range p.Spec.Subjects {
				fmt.Fprintf(&b, " %s", s.Name)
				if s.Custom != nil {
					fmt.Fprintf(&b, " (%v)", p.Templates[s.Custom.Template]["kind"])
				}
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func showNotifications(f *registry.Fleet) string {
	var b strings.Builder
	for _, n := range f.Notifications {
		fmt.Fprintf(&b, "%s", n.Name)
		if len(n.Problems) > 0 {
			fmt.Fprintln(&b, " is broken")
			continue
		}
		fmt.Fprintf(&b, " every %s, of", n.Interval())
		for _, c := range f.Clusters {
			for _, d := range c.Deliveries {
				pipeline := ""
				if p := f.PipelineOf(d.Component); p != nil {
					pipeline = p.Name
				}
				if n.Selects(d.Component, pipeline, c.Spec.Labels) {
					fmt.Fprintf(&b, " %s/%s", c.Name, d.Component)
				}
			}
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

func showDeliveries(f *registry.Fleet) string {
	var b strings.Builder
	for _, c := range f.Clusters {
		for _, d := range c.Deliveries {
			state := ""
			switch {
			case d.Version == nil:
				state = " (no version)"
			case d.Version.Name != d.VersionName:
				state = " (reads " + d.Version.Name + ")"
			}
			if d.Absent {
				state += " absent at " + d.AbsentAt.String()
			}
			if d.Paused {
				state += " paused"
			}
			if len(d.Problems) > 0 {
				state += " blocked"
			}
			fmt.Fprintf(&b, "%s/%s %s at %s%s\n", c.Name, d.Component, d.VersionName, d.VersionAt, state)
			for _, a := range d.Approvals {
				fmt.Fprintf(&b, "    approved: %s %s\n", a.Object, a.Hash)
			}
		}
	}
	return b.String()
}

func showExplained(t testing.TB, d *registry.Delivery, path string) string {
	t.Helper()
	list, err := d.Explain(path)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var b strings.Builder
	for _, e := range list {
		word := ""
		if e.Deleted {
			word = " (deleted)"
		}
		fmt.Fprintf(&b, "%s = %s%s  %s\n", e.Path, asJSON(t, e.Value), word, e.At)
		for _, o := range e.Overrides {
			fmt.Fprintf(&b, "    over %s  %s\n", asJSON(t, o.Value), o.At)
		}
	}
	return b.String()
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// baseFleet returns the files of testdata/base.txtar.
func baseFleet(t testing.TB) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, f := range txtar.Parse(readFile(t, "testdata/base.txtar")).Files {
		files[f.Name] = string(f.Data)
	}
	return files
}
