package gitserver_test

import (
	"path/filepath"
	"testing"

	"github.com/keelson-io/keelson/lab/gitserver"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// TestCloneAndPush: a clone gets what was pushed before. A stopped server answers no client,
// until it runs again at the same address.
func TestCloneAndPush(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start := func(address string) *gitserver.Server {
		s := must.Get(gitserver.Start(t.Context(), filepath.Join(dir, "served"), address))
		t.Cleanup(func() { _ = s.Stop() })
		return s
	}
	must.Test(t, func() {
		must.Do(harness.NewBare(t.Context(), filepath.Join(dir, "served", "a.git")))
		s := start("")
		clone := func(name string) (harness.Clone, error) {
			return harness.NewClone(t.Context(), s.URL("a.git"), filepath.Join(dir, name))
		}
		must.Do(must.Get(clone("work")).Push(t.Context(), "first"))
		must.Get(must.Get(clone("again")).Git(t.Context(), "rev-parse", "--verify", "HEAD"))
		must.Do(s.Stop())
		if _, err := clone("later"); err == nil {
			t.Error("a stopped server serves")
		}
		start(s.Address)
		must.Get(clone("later"))
	})
}
