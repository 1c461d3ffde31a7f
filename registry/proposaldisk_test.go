//go:build !race

package registry_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// Pushes to a pull request do not fill the disk: what they leave is cleared above a size,
// and what is proposed can be read all the same. Plain fetches clear it, too.
func TestProposalsTakeBoundedDisk(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	g := gittest.NewRepo(t)
	writeFleet(g)
	cache := t.TempDir()
	opts := gitrepo.Options{URL: gittest.Serve(t, g).RepoURL(), CacheDir: cache, Proposals: true, Limits: gitrepo.Limits{ProposalsBytes: 4 * mib, ProposalBytes: 2 * mib}}
	r, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	disk := func() (bytes int64) {
		files, err := filepath.Glob(filepath.Join(cache, "*", "clone.git", "objects", "pack", "*"))
		fatal(t, err)
		for _, file := range files {
			info, err := os.Stat(file)
			fatal(t, err)
			bytes += info.Size()
		}
		return bytes
	}
	main := g.Last
	content := randomBytes(t, 20*mib)
	for push := range 20 {
		g.Last = main
		g.Write("README.md", string(content[push*mib:(push+1)*mib]))
		g.Ref("refs/pull/1/head", g.Object())
		got, err := r.Git().FetchProposal(t.Context(), "refs/pull/1/head")
		fatal(t, err)
		if _, err := r.LoadCommit(t.Context(), got); err != nil {
			t.Errorf("push %d: %v", push, err)
		}
		if got := disk(); got > 8*mib { // 4 and the largest, one more, and the repository itself
			t.Errorf("push %d: the clone takes %d KiB", push, got>>10)
		}
	}
	fatal(t, r.Git().Fetch(t.Context()))
	fatal(t, r.Git().Fetch(t.Context()))
	if got := disk(); got > 6*mib {
		t.Errorf("the clone takes %d KiB", got>>10)
	}
	opts.Fetched, opts.URL = true, r.Git().URL()
	again, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	if f := load(t, again, ""); f.Problems.Err() != nil {
		t.Error(f.Problems)
	}
	opts.CacheDir = t.TempDir()
	if _, err := registry.Open(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "not fetched yet") {
		t.Errorf("of a clone that is not there: %v", err)
	}
}
