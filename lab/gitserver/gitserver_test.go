package gitserver_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/keelson-io/keelson/lab/gitserver"
)

// TestCloneAndPush: a clone gets what was pushed before. A stopped server answers no client,
// until it runs again at the same address.
func TestCloneAndPush(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(args ...string) error {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...).CombinedOutput()
		t.Logf("git %q: %s", args, out)
		return err
	}
	must := func(args ...string) {
		t.Helper()
		if err := git(args...); err != nil {
			t.Fatal(err)
		}
	}
	start := func(ctx context.Context, address string) *gitserver.Server {
		s, err := gitserver.Start(ctx, filepath.Join(dir, "served"), address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Stop() })
		return s
	}
	must("init", "-q", "--bare", "-b", "main", "served/a.git")
	s := start(t.Context(), "")
	must("clone", "-q", s.URL("a.git"), "work")
	must("-C", "work", "-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-q", "--allow-empty", "-m", "first")
	must("-C", "work", "push", "-q", "origin", "HEAD:main")
	must("clone", "-q", s.URL("a.git"), "again")
	must("-C", "again", "rev-parse", "--verify", "HEAD")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if git("clone", "-q", s.URL("a.git"), "later") == nil {
		t.Error("a stopped server serves")
	}
	start(t.Context(), s.Address)
	must("clone", "-q", s.URL("a.git"), "later")
}
