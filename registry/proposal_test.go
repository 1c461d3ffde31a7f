package registry_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/registry"
)

// The commit of a pull request is fetched by its ref, which is followed by nobody:
// what is delivered stays as it was, also while the proposal is there.
func TestProposal(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(*testing.T, *gitRepo) string{
		"Remote": func(t *testing.T, g *gitRepo) string { t.Helper(); return serveGit(t, g).url() },
		"Local":  func(_ *testing.T, g *gitRepo) string { return g.path },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGitRepo(t)
			g.writeFleet()
			main := g.last
			g.write("clusters/c/cluster.yaml", baseFleet(t)["clusters/a/cluster.yaml"])
			proposed := g.object()
			g.ref("refs/pull/7/head", proposed)
			r := open(t, at(t, g))
			before := load(t, r, "")
			got, err := r.FetchProposal(t.Context(), "refs/pull/7/head")
			fatal(t, err)
			if got != proposed.String() {
				t.Errorf("got %s, want %s", got, proposed)
			}
			f, err := r.LoadCommit(t.Context(), got)
			fatal(t, err)
			if f.Cluster("c") == nil {
				t.Error("the proposal's cluster is not there")
			}
			if load(t, r, "") != before {
				t.Error("what is delivered is another fleet")
			}
			for _, ref := range []string{"refs/pull/7/head", "pull/7/head"} {
				if h, err := r.Resolve(ref); err == nil {
					t.Errorf("%s names %s", ref, h)
				}
			}
			if base, err := r.MergeBase(t.Context(), "main", got); err == nil {
				t.Errorf("a name is no hash, and got %s", base)
			}
			base, err := r.MergeBase(t.Context(), main.String(), got)
			if err != nil || base != main.String() {
				t.Errorf("they part at %s, %v; want %s", base, err, main)
			}
			if _, err := r.FetchProposal(t.Context(), "refs/pull/8/head"); !errors.Is(err, registry.ErrNoRef) {
				t.Errorf("of a pull request that is not there: %v", err)
			}
			if _, err := r.FetchProposal(t.Context(), "refs/pull/../heads/main"); err == nil {
				t.Error("a name that git forbids was fetched")
			}
			fatal(t, r.Fetch(t.Context()))
			if got, want := r.Branch(""), "main"; got != want || r.Branch("main") != want || r.Branch("coredns/v1.0.0") != "" {
				t.Errorf("the branch is %q, %q, %q", got, r.Branch("main"), r.Branch("coredns/v1.0.0"))
			}
		})
	}
}

// A proposal is fetched again after the clone was made anew, which forgets it.
func TestProposalsArePruned(t *testing.T) {
	t.Parallel()
	g := newGitRepo(t)
	g.writeFleet()
	r, err := registry.Open(t.Context(), registry.Options{URL: serveGit(t, g).url(), CacheDir: t.TempDir(), Limits: registry.Limits{Packs: 3}})
	fatal(t, err)
	main := g.last
	var all []plumbing.Hash
	for i := range 10 {
		g.last = main
		g.write("README.md", fmt.Sprint(i))
		all = append(all, g.object())
		g.ref(fmt.Sprintf("refs/pull/%d/head", i), all[i])
	}
	for round := range 2 {
		for i, want := range all {
			got, err := r.FetchProposal(t.Context(), fmt.Sprintf("refs/pull/%d/head", i))
			fatal(t, err)
			f, err := r.LoadCommit(t.Context(), got)
			fatal(t, err)
			if f.Revision != want.String() || f.Problems.Err() != nil {
				t.Errorf("round %d, %d: %s, %v", round, i, f.Revision, f.Problems)
			}
		}
	}
}

// Who opens a pull request needs no trusted key for it to be looked at; where the
// same commit would be delivered from, it does.
func TestProposalUnsigned(t *testing.T) {
	t.Parallel()
	g, keys, _ := signedRepo(t)
	g.sign = nil
	g.write("README.md", "unsigned")
	g.ref("refs/pull/1/head", g.object())
	url := serveGit(t, g).url()
	for proposals, wants := range map[bool]string{true: "", false: "not to be trusted"} {
		r, err := registry.Open(t.Context(), registry.Options{URL: url, CacheDir: t.TempDir(), TrustedKeys: []string{keys}, Proposals: proposals})
		fatal(t, err)
		h, err := r.FetchProposal(t.Context(), "refs/pull/1/head")
		fatal(t, err)
		_, err = r.LoadCommit(t.Context(), h)
		if wants == "" && err != nil || wants != "" && (err == nil || !strings.Contains(err.Error(), wants)) {
			t.Errorf("proposals %t: %v", proposals, err)
		}
	}
}

// What a stranger proposes has its own limit, and one that oversteps it changes nothing.
func TestProposalTooLarge(t *testing.T) {
	t.Parallel()
	g := newGitRepo(t)
	g.writeFleet()
	opts := registry.Options{URL: serveGit(t, g).url(), CacheDir: t.TempDir(), Limits: registry.Limits{ProposalBytes: 1 << 20}}
	r, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	before := load(t, r, "")
	g.write("README.md", string(randomBytes(t, 3<<20)))
	g.ref("refs/pull/1/head", g.object())
	if _, err := r.FetchProposal(t.Context(), "refs/pull/1/head"); !errors.Is(err, registry.ErrTooMuch) || !strings.Contains(err.Error(), "1 MiB") {
		t.Errorf("got %v", err)
	}
	if load(t, r, "") != before {
		t.Error("the fleet is another")
	}
	fatal(t, r.Fetch(t.Context()))
}

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

// gitIn runs git in a repository.
type gitIn func(stdin string, args ...string) (string, error)

// makeHistory makes a repository in which each commit has a branch, b0 and on.
func makeHistory(t rapid.TB, dir, cache string, history []madeCommit) (*registry.Repo, gitIn) {
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
	_, err := git("", "init", "-q", "--bare", "-b", "b0", ".")
	if err == nil {
		_, err = git(b.String(), "fast-import", "--quiet")
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.Open(context.Background(), registry.Options{URL: dir, CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	return r, git
}

// checkMergeBase asks the repository and git where two commits of a history part.
func checkMergeBase(t rapid.TB, r *registry.Repo, git gitIn, a, b int) {
	t.Helper()
	one, err := r.Resolve(fmt.Sprintf("b%d", a))
	other, err2 := r.Resolve(fmt.Sprintf("b%d", b))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	got, err := r.MergeBase(context.Background(), one, other)
	all, failed := git("", "merge-base", "--all", one, other)
	switch {
	case failed != nil && !errors.Is(err, registry.ErrUnrelated):
		t.Errorf("%s, %v; git says that they are not related", got, err)
	case failed == nil && (err != nil || !strings.Contains(all, got)):
		t.Errorf("%s, %v; git says %s", got, err, all)
	}
}
