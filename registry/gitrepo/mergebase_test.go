//go:build !race

package gitrepo_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/registry/gitrepo"
)

// Where two commits part is what git merge-base says, of any history.
func TestMergeBase(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git to compare with")
	}
	rapid.Check(t, func(rt *rapid.T) {
		history := make([]madeCommit, rapid.IntRange(2, 14).Draw(rt, "commits"))
		for i := range history {
			// Clocks of people differ: a commit may be older than its parents.
			history[i].when = 100*i + rapid.IntRange(-300, 300).Draw(rt, "skew")
			if i > 0 {
				history[i].parents = rapid.SliceOfNDistinct(rapid.IntRange(0, i-1), 0, min(i, 2), rapid.ID).Draw(rt, "parents")
			}
		}
		r, git := makeHistory(rt, t.TempDir(), t.TempDir(), history)
		for range 3 {
			pick := rapid.IntRange(0, len(history)-1)
			checkMergeBase(rt, r, git, pick.Draw(rt, "commit"), pick.Draw(rt, "commit"))
		}
	})
}

// What is merged is what git merge-base --is-ancestor says, of any history and whichever
// head was asked about before: the set of ancestors is kept from one to the next.
func TestMerged(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git to compare with")
	}
	rapid.Check(t, func(rt *rapid.T) {
		history := make([]madeCommit, rapid.IntRange(2, 10).Draw(rt, "commits"))
		for i := range history {
			if i > 0 {
				history[i].parents = rapid.SliceOfNDistinct(rapid.IntRange(0, i-1), 0, min(i, 2), rapid.ID).Draw(rt, "parents")
			}
		}
		r, git := makeHistory(rt, t.TempDir(), t.TempDir(), history)
		pick := rapid.IntRange(0, len(history)-1)
		for range 4 {
			head, commit := pick.Draw(rt, "head"), pick.Draw(rt, "commit")
			hash, err := r.Resolve(fmt.Sprintf("b%d", head))
			if err != nil {
				rt.Fatal(err)
			}
			_, err = git("", "merge-base", "--is-ancestor", fmt.Sprintf("b%d", commit), hash)
			want := err == nil
			got, err := r.Merged(t.Context(), hash, fmt.Sprintf("web/v1.0.%d", commit))
			if err != nil || got != want {
				rt.Fatalf("commit %d in the past of %d: %v, %v; want %v", commit, head, got, err, want)
			}
		}
	})
}

// A common commit that lies behind another is none to be chosen, also where the way
// between them is dated so early that a walk by date would come to it last.
func TestMergeBaseByWayOfTheOldest(t *testing.T) {
	t.Parallel()
	r, git := makeHistory(t, t.TempDir(), t.TempDir(), []madeCommit{
		{when: 1000},
		{when: 100, parents: []int{0}},
		{when: 900, parents: []int{1}},
		{when: 2000, parents: []int{0, 2}},
		{when: 2000, parents: []int{2, 0}},
	})
	checkMergeBase(t, r, git, 3, 4)
}

// madeCommit is one of a history, by the places of its parents in it.
type madeCommit struct {
	when    int // seconds
	parents []int
}

// makeHistory makes a repository in which each commit has a branch, b0 and on, and a tag,
// web/v1.0.0 and on.
func makeHistory(t rapid.TB, dir, cache string, history []madeCommit) (*gitrepo.Repo, gitIn) {
	t.Helper()
	git := func(stdin string, args ...string) (string, error) {
		cmd := exec.CommandContext(context.Background(), "git", append([]string{"-C", dir}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.Output()
		return string(out), err
	}
	var b strings.Builder
	for i, c := range history {
		fmt.Fprintf(&b, "commit refs/heads/b%d\nmark :%d\ncommitter a <a@b> %d +0000\ndata 1\nx\n", i, i+1, 1_800_000_000+c.when)
		verb := "from"
		for _, p := range c.parents {
			fmt.Fprintf(&b, "%s :%d\n", verb, p+1)
			verb = "merge"
		}
		if len(c.parents) == 0 {
			b.WriteString("deleteall\n")
		}
	}
	for i := range history {
		fmt.Fprintf(&b, "reset refs/tags/web/v1.0.%d\nfrom :%d\n\n", i, i+1)
	}
	_, err := git("", "init", "-q", "--bare", "-b", "b0", ".")
	if err == nil {
		_, err = git(b.String(), "fast-import", "--quiet")
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := gitrepo.Open(context.Background(), gitrepo.Options{URL: dir, CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	return r, git
}

// checkMergeBase asks the repository and git where two commits of a history part.
func checkMergeBase(t rapid.TB, r *gitrepo.Repo, git gitIn, a, b int) {
	t.Helper()
	one, err := r.Resolve(fmt.Sprintf("b%d", a))
	other, err2 := r.Resolve(fmt.Sprintf("b%d", b))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	got, err := r.MergeBase(context.Background(), one, other)
	all, failed := git("", "merge-base", "--all", one, other)
	switch {
	case failed != nil && !errors.Is(err, gitrepo.ErrUnrelated):
		t.Errorf("%s, %v; git says that they are not related", got, err)
	case failed == nil && (err != nil || !strings.Contains(all, got)):
		t.Errorf("%s, %v; git says %s", got, err, all)
	}
}

// gitIn runs git in a repository.
type gitIn func(stdin string, args ...string) (string, error)
