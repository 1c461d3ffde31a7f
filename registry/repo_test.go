package registry_test

import (
	"os"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// writeFleet writes a small fleet that has no problems: two clusters that run
// coredns v1.0.0.
func writeFleet(g *gittest.Repo) {
	g.T.Helper()
	for path, content := range baseFleet(g.T) {
		g.Write(path, content)
	}
	g.Commit()
	g.Tag("coredns/v1.0.0")
}

func open(t testing.TB, url string) *registry.Repo {
	t.Helper()
	r, err := registry.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func load(t testing.TB, r *registry.Repo, rev string) *registry.Fleet {
	t.Helper()
	f, err := r.Load(t.Context(), rev)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func mustCommit(t testing.TB, s *filesystem.Storage, h plumbing.Hash) *object.Commit {
	t.Helper()
	c, err := object.GetCommit(s, h)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
