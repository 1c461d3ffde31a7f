package gitrepo_test

import (
	"os"
	"testing"

	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// fleetFiles are a few files of a fleet.
func fleetFiles() map[string]string {
	const meta = "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\n"
	return map[string]string{
		"fleet.yaml":                             "apiVersion: keelson.io/v1alpha1\nkind: Fleet\nname: test\n",
		"components/coredns/template/Chart.yaml": "apiVersion: v2\nname: coredns\nversion: 1.0.0\n",
		"clusters/a/coredns.yaml":                meta,
		"clusters/b/coredns.yaml":                meta + "values:\n  replicas: 3\n",
	}
}

// writeFleet commits fleetFiles, and tags a version of coredns.
func writeFleet(g *gittest.Repo) {
	g.T.Helper()
	for path, content := range fleetFiles() {
		g.Write(path, content)
	}
	g.Commit()
	g.Tag("coredns/v1.0.0")
}

func open(t testing.TB, url string) *gitrepo.Repo {
	t.Helper()
	r, err := gitrepo.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: t.TempDir()})
	fatal(t, err)
	return r
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	fatal(t, err)
	return data
}
