package registry_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// The commit of a pull request is fetched by its ref. No delivery follows that ref, so the
// deliveries stay unchanged while the pull request is open.
func TestProposal(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(*testing.T, *gittest.Repo) string{
		"Remote": func(t *testing.T, g *gittest.Repo) string { t.Helper(); return gittest.Serve(t, g).RepoURL() },
		"Local":  func(_ *testing.T, g *gittest.Repo) string { return g.Path },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gittest.NewRepo(t)
			writeFleet(g)
			main := g.Last
			g.Write("clusters/c/cluster.yaml", baseFleet(t)["clusters/a/cluster.yaml"])
			proposed := g.Object()
			g.Ref("refs/pull/7/head", proposed)
			r := open(t, at(t, g))
			before := load(t, r, "")
			got, err := r.Git().FetchProposal(t.Context(), "refs/pull/7/head")
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
				if h, err := r.Git().Resolve(ref); err == nil {
					t.Errorf("%s names %s", ref, h)
				}
			}
			if base, err := r.Git().MergeBase(t.Context(), "main", got); err == nil {
				t.Errorf("a name is no hash, and got %s", base)
			}
			base, err := r.Git().MergeBase(t.Context(), main.String(), got)
			if err != nil || base != main.String() {
				t.Errorf("they part at %s, %v; want %s", base, err, main)
			}
			if _, err := r.Git().FetchProposal(t.Context(), "refs/pull/8/head"); !errors.Is(err, gitrepo.ErrNoRef) {
				t.Errorf("of a pull request that is not there: %v", err)
			}
			if _, err := r.Git().FetchProposal(t.Context(), "refs/pull/../heads/main"); err == nil {
				t.Error("a name that git forbids was fetched")
			}
			fatal(t, r.Git().Fetch(t.Context()))
			if got, want := r.Git().Branch(""), "main"; got != want || r.Git().Branch("main") != want || r.Git().Branch("coredns/v1.0.0") != "" {
				t.Errorf("the branch is %q, %q, %q", got, r.Git().Branch("main"), r.Git().Branch("coredns/v1.0.0"))
			}
		})
	}
}

// A proposal is fetched again after the clone was made anew, which forgets it.
func TestProposalsArePruned(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	r, err := registry.Open(t.Context(), gitrepo.Options{URL: gittest.Serve(t, g).RepoURL(), CacheDir: t.TempDir(), Limits: gitrepo.Limits{Packs: 3}})
	fatal(t, err)
	main := g.Last
	var all []plumbing.Hash
	for i := range 10 {
		g.Last = main
		g.Write("README.md", fmt.Sprint(i))
		all = append(all, g.Object())
		g.Ref(fmt.Sprintf("refs/pull/%d/head", i), all[i])
	}
	for round := range 2 {
		for i, want := range all {
			got, err := r.Git().FetchProposal(t.Context(), fmt.Sprintf("refs/pull/%d/head", i))
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
	g.Sign = nil
	g.Write("README.md", "unsigned")
	g.Ref("refs/pull/1/head", g.Object())
	url := gittest.Serve(t, g).RepoURL()
	for proposals, wants := range map[bool]string{true: "", false: "not to be trusted"} {
		r, err := registry.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: t.TempDir(), TrustedKeys: []string{keys}, Proposals: proposals})
		fatal(t, err)
		h, err := r.Git().FetchProposal(t.Context(), "refs/pull/1/head")
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
	g := gittest.NewRepo(t)
	writeFleet(g)
	opts := gitrepo.Options{URL: gittest.Serve(t, g).RepoURL(), CacheDir: t.TempDir(), Limits: gitrepo.Limits{ProposalBytes: 1 << 20}}
	r, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	before := load(t, r, "")
	g.Write("README.md", string(randomBytes(t, 3<<20)))
	g.Ref("refs/pull/1/head", g.Object())
	if _, err := r.Git().FetchProposal(t.Context(), "refs/pull/1/head"); !errors.Is(err, gitrepo.ErrTooMuch) || !strings.Contains(err.Error(), "1 MiB") {
		t.Errorf("got %v", err)
	}
	if load(t, r, "") != before {
		t.Error("the fleet is another")
	}
	fatal(t, r.Git().Fetch(t.Context()))
}
