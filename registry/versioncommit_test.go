package registry_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// A version was named at a place before if the file had it at an earlier commit, by any author.
func TestFindVersionCommit(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	meta := func(version string) string {
		return "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: " + version + "\n"
	}
	layer := func(version string) string {
		return "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {}\ncomponents: {coredns: {version: " + version + "}, dns: {version: v1.3.0}}\n"
	}
	g.Write("clusters/a/coredns.yaml", meta("v1.1.0"))
	before := g.Commit() // the tag v1.1.0 does not exist yet, so this commit does not count
	g.Write("clusters/a/coredns.yaml", meta("v1.0.0"))
	g.Write("layers/10-a.yaml", layer("v1.0.0"))
	g.Commit()
	for _, version := range []string{"v1.1.0", "v1.2.0", "v1.3.0"} {
		g.Tag("coredns/" + version)
	}
	g.Write("clusters/a/coredns.yaml", meta("v1.2.0"))
	g.Write("layers/10-a.yaml", layer("v1.2.0"))
	stood := g.Commit()
	g.Write("clusters/a/coredns.yaml", meta("v1.0.0"))
	g.Write("layers/10-a.yaml", "{") // broken for a while
	g.Commit()
	g.Write("layers/10-a.yaml", layer("v1.0.0"))
	last := g.Commit()
	r := open(t, g.Path)
	cases := map[string]struct {
		why, file, version string
		want               string
	}{
		"Taken":  {"It stood there, and does no more.", "clusters/a/coredns.yaml", "v1.2.0", stood.String()},
		"Layer":  {"The same of a layer.", "layers/10-a.yaml", "v1.2.0", stood.String()},
		"Never":  {"Another component's version is not this one's.", "layers/10-a.yaml", "v1.3.0", ""},
		"Before": {"It was named before there was such a version: " + before.String(), "clusters/a/coredns.yaml", "v1.1.0", ""},
		"NoFile": {"A file that never was.", "layers/20-b.yaml", "v1.2.0", ""},
	}
	for name, tc := range cases {
		got, err := r.FindVersionCommit(t.Context(), last.String(), tc.file, "coredns", tc.version)
		if err != nil || got != tc.want {
			t.Errorf("%s: %s got %q, %v; want %q", name, tc.why, got, err, tc.want)
		}
	}
}

// Of a clone that is cut off somewhere it is not known what stood there before.
func TestFindVersionCommitShallow(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	g.Tag("coredns/v1.1.0")
	for i := range 3 {
		g.Write("README.md", fmt.Sprint(i))
		g.Commit()
	}
	path := filepath.Join(t.TempDir(), "shallow.git")
	g.Git("clone", "-q", "--bare", "--depth", "1", "file://"+g.Path, path)
	shallow := &gittest.Repo{T: t, Path: path}
	shallow.Git("fetch", "-q", "--depth", "1", "origin", "tag", "coredns/v1.1.0")
	r := open(t, path)
	at, err := r.Git().Resolve("main")
	fatal(t, err)
	if got, err := r.FindVersionCommit(t.Context(), at, "clusters/a/coredns.yaml", "coredns", "v1.1.0"); err == nil {
		t.Errorf("got %q, want an error: nothing is known", got)
	}
}
