package registry_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// signedRepo is a fleet whose commits and tags alice signs.
func signedRepo(t *testing.T) (g *gittest.Repo, keys string, sign func([]byte) string) {
	t.Helper()
	alice, sign := gittest.SSHKey(t)
	g = gittest.NewRepo(t)
	g.Sign = sign
	writeFleet(g)
	return g, gittest.KeysFile(t, gittest.Allowed(alice, "")), sign
}

func TestSignedBranch(t *testing.T) {
	t.Parallel()
	_, stranger := gittest.SSHKey(t)
	cases := map[string]struct {
		why    string
		change func(g *gittest.Repo)
		want   string // of the error; "": the new commit is loaded
	}{
		"Signed":   {"An ordinary commit.", func(g *gittest.Repo) { g.Commit() }, ""},
		"Unsigned": {"Who may push may not change a cluster.", func(g *gittest.Repo) { g.Sign = nil; g.Commit() }, "is not to be trusted: it is not signed"},
		"Stranger": {"As above, with a key.", func(g *gittest.Repo) { g.Sign = stranger; g.Commit() }, "the key is not among the trusted keys"},
		"UnsignedBelow": {"The head vouches for what it builds on: it is a person's decision to sign it.", func(g *gittest.Repo) {
			sign := g.Sign
			g.Sign = nil
			g.Commit()
			g.Sign = sign
			g.Commit()
		}, ""},
		"Rewound": {"Back to a commit that was good once.", func(g *gittest.Repo) {
			g.Ref("refs/heads/main", mustCommit(g.T, g.Storage, g.Last).ParentHashes[0])
		}, "branch HEAD was rewound"},
		"Aside": {"A signed commit of another history.", func(g *gittest.Repo) {
			g.Last = mustCommit(g.T, g.Storage, g.Last).ParentHashes[0]
			g.Write("README.md", "aside")
			g.Commit()
		}, "does not descend from"},
		"Merge": {"The accepted commit is the second parent.", func(g *gittest.Repo) {
			before := g.Last
			c := mustCommit(g.T, g.Storage, before)
			c.ParentHashes = []plumbing.Hash{c.ParentHashes[0], before}
			c.PGPSignature = g.Sign(g.Payload(c))
			g.Ref("refs/heads/main", g.Store(c))
		}, ""},
		"VerifyRemoved": {"Who may push may remove the line from fleet.yaml: the keys decide.", func(g *gittest.Repo) {
			g.Sign = nil
			g.Write("fleet.yaml", strings.Replace(string(readFleetFile(g)), "verify: signed\n", "", 1))
			g.Commit()
		}, "it is not signed"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, keys, _ := signedRepo(t)
			g.Write("fleet.yaml", string(readFleetFile(g))+"verify: signed\n")
			g.Commit()
			g.Commit()
			url := g.Path
			if name != "Signed" {
				url = gittest.Serve(t, g).RepoURL()
			}
			opts := gitrepo.Options{URL: url, CacheDir: t.TempDir(), TrustedKeys: []string{keys}}
			r, err := registry.Open(t.Context(), opts)
			fatal(t, err)
			before := load(t, r, "")
			if before.Signer == nil || before.Signer.Name != "alice@example.com" {
				t.Errorf("signed by %v, want alice", before.Signer)
			}
			c.change(g)
			fatal(t, r.Git().Fetch(t.Context()))
			for _, again := range []string{"AtOnce", "Restarted"} {
				if again == "Restarted" {
					r, err = registry.Open(t.Context(), opts)
					fatal(t, err)
				}
				f, err := r.Load(t.Context(), "")
				switch {
				case c.want == "" && err != nil:
					t.Errorf("%s %s: %v", c.why, again, err)
				case c.want == "" && f.Revision == before.Revision:
					t.Errorf("%s %s: the new commit was not loaded", c.why, again)
				case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
					t.Errorf("%s %s: error %v, want %q", c.why, again, err, c.want)
				}
			}
		})
	}
}

// readFleetFile is the fleet.yaml that the repository holds.
func readFleetFile(g *gittest.Repo) []byte { return g.BytesOf(g.Files["fleet.yaml"].Hash) }

// What was loaded by its hash, as a preview does, is not what a branch may go
// to, and is accepted for the branch like any other commit once it is there.
func TestChosenCommit(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why   string
		loads func(first, second string) []string // revisions, with main at second
	}{
		"LoadedBefore": {"The last Fleet is that of the commit that main goes back to.", func(first, second string) []string {
			return []string{"", first}
		}},
		"OtherBranch": {"As above, by the name of another branch.", func(first, second string) []string {
			return []string{"", "old"}
		}},
		"LoadedFirst": {"main was accepted when its commit was known already.", func(first, second string) []string {
			return []string{second, ""}
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, keys, _ := signedRepo(t)
			first := g.Last
			g.Ref("refs/heads/old", first)
			second := g.Commit()
			r, err := registry.Open(t.Context(), gitrepo.Options{URL: g.Path, CacheDir: t.TempDir(), TrustedKeys: []string{keys}})
			fatal(t, err)
			for _, rev := range c.loads(first.String(), second.String()) {
				load(t, r, rev)
			}
			g.Ref("refs/heads/main", first)
			fatal(t, r.Git().Fetch(t.Context()))
			if _, err := r.Load(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "branch HEAD was rewound") {
				t.Errorf("%s error %v; want one that says that the branch was rewound", c.why, err)
			}
		})
	}
}

// A tag that a new key makes good is remembered from then on, not from the next
// push on.
func TestNewKeyRemembersTags(t *testing.T) {
	t.Parallel()
	g, keys, _ := signedRepo(t)
	bob, bobSigns := gittest.SSHKey(t)
	alice := g.Sign
	g.Write("clusters/a/coredns.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v2.0.0\n")
	g.Commit()
	g.Sign = bobSigns
	g.Annotate("coredns/v2.0.0", g.Last)
	g.Sign = alice
	opts := gitrepo.Options{URL: gittest.Serve(t, g).RepoURL(), CacheDir: t.TempDir(), TrustedKeys: []string{keys}}
	r, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	if problems := load(t, r, "").Problems.Error(); !strings.Contains(problems, "the key is not among the trusted keys") {
		t.Fatalf("a stranger's tag: %s", problems)
	}
	fatal(t, os.WriteFile(keys, append(readFile(t, keys), gittest.Allowed(bob, "")...), 0o600))
	fatal(t, r.Git().Fetch(t.Context()))
	if err := load(t, r, "").Problems.Err(); err != nil {
		t.Fatalf("with his key: %v", err)
	}
	g.Commit()
	g.Sign = bobSigns
	g.Annotate("coredns/v2.0.0", g.Last)
	fatal(t, r.Git().Fetch(t.Context()))
	if problems := load(t, r, "").Problems.Error(); !strings.Contains(problems, "tag coredns/v2.0.0 was moved") {
		t.Errorf("the version is another now: %q", problems)
	}
}

// A rewind is allowed outside of the repository, to one commit, once.
func TestAcceptRewind(t *testing.T) {
	t.Parallel()
	g, keys, _ := signedRepo(t)
	first := g.Last
	g.Commit()
	g.Commit()
	opts := gitrepo.Options{URL: g.Path, CacheDir: t.TempDir(), TrustedKeys: []string{keys}}
	at := func(rewind plumbing.Hash) (*registry.Fleet, error) {
		t.Helper()
		o := opts
		if !rewind.IsZero() {
			o.AcceptRewind = rewind.String()
		}
		r, err := registry.Open(t.Context(), o)
		fatal(t, err)
		return r.Load(t.Context(), "")
	}
	if _, err := at(plumbing.ZeroHash); err != nil {
		t.Fatal(err)
	}
	second := g.Last
	g.Ref("refs/heads/main", first)
	_, err := at(plumbing.ZeroHash)
	if err == nil || !strings.Contains(err.Error(), "--accept-rewind "+first.String()) {
		t.Fatalf("error %v; want one that says how to go on", err)
	}
	if _, err := at(second); err == nil {
		t.Error("a rewind to another commit than the one allowed was accepted")
	}
	if f, err := at(first); err != nil || f.Revision != first.String() {
		t.Fatalf("a rewind that was allowed: %v", err)
	}
	if _, err := at(plumbing.ZeroHash); err != nil {
		t.Errorf("after it: %v", err)
	}
	// Forward again, and back once more: the setting is still there, and spent.
	g.Last = first
	g.Write("README.md", "new")
	g.Commit()
	if _, err := at(first); err != nil {
		t.Fatal(err)
	}
	g.Ref("refs/heads/main", first)
	if _, err := at(first); err == nil || !strings.Contains(err.Error(), "was rewound") {
		t.Errorf("the same rewind once more: %v; want an error", err)
	}
	if _, err := registry.Open(t.Context(), gitrepo.Options{URL: g.Path, CacheDir: t.TempDir(), AcceptRewind: "main"}); err == nil {
		t.Error("a branch was taken for a commit")
	}
}

func TestSignedTags(t *testing.T) {
	t.Parallel()
	_, stranger := gittest.SSHKey(t)
	cases := map[string]struct {
		why    string
		verify string
		change func(g *gittest.Repo)
		want   string // of the problem; "": none
	}{
		"Signed": {"What git tag -s makes.", "signed-tags", func(g *gittest.Repo) { g.Annotate("coredns/v2.0.0", g.Last) }, ""},
		"Lightweight": {"It is only a name of a commit that is signed.", "signed", func(g *gittest.Repo) {
			g.Tag("coredns/v2.0.0")
		}, ""},
		"LightweightRefused": {"The fleet wants its tags signed.", "signed-tags", func(g *gittest.Repo) {
			g.Tag("coredns/v2.0.0")
		}, "tag coredns/v2.0.0 is lightweight, and fleet.yaml wants tags that are signed themselves"},
		"LightweightUnsigned": {"The tag names an unsigned commit.", "signed", func(g *gittest.Repo) {
			sign := g.Sign
			g.Sign = nil
			g.Ref("refs/tags/coredns/v2.0.0", g.Object())
			g.Sign = sign
		}, "of the lightweight tag coredns/v2.0.0 is not to be trusted: it is not signed"},
		"Annotated": {"Who annotates can sign.", "signed", func(g *gittest.Repo) {
			sign := g.Sign
			g.Sign = nil
			g.Annotate("coredns/v2.0.0", g.Last)
			g.Sign = sign
		}, "tag coredns/v2.0.0 is not to be trusted: it is not signed"},
		"Stranger": {"A key that is not trusted.", "signed", func(g *gittest.Repo) {
			sign := g.Sign
			g.Sign = stranger
			g.Annotate("coredns/v2.0.0", g.Last)
			g.Sign = sign
		}, "the key is not among the trusted keys"},
		"Replayed": {"An old version's signed tag under a new version's name.", "signed", func(g *gittest.Repo) {
			g.Ref("refs/tags/coredns/v2.0.0", g.Annotate("coredns/v1.5.0", g.Last))
		}, `it was made as tag "coredns/v1.5.0"`},
		"OfAnother": {"A signed tag of another component.", "signed", func(g *gittest.Repo) {
			g.Ref("refs/tags/coredns/v2.0.0", g.Annotate("web/v2.0.0", g.Last))
		}, `it was made as tag "web/v2.0.0"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, keys, _ := signedRepo(t)
			g.Write("fleet.yaml", string(readFleetFile(g))+"verify: "+c.verify+"\n")
			g.Annotate("coredns/v1.0.0", g.Last) // the other cluster's, signed
			c.change(g)
			g.Write("clusters/a/coredns.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v2.0.0\n")
			g.Commit()
			r, err := registry.Open(t.Context(), gitrepo.Options{URL: g.Path, CacheDir: t.TempDir(), TrustedKeys: []string{keys}})
			fatal(t, err)
			f := load(t, r, "")
			a, b := f.Cluster("a").Delivery("coredns"), f.Cluster("b").Delivery("coredns")
			if len(b.Problems) > 0 || b.Version == nil {
				t.Errorf("%s: the other cluster's version is blocked, too: %v", c.why, b.Problems)
			}
			refused, err := r.Refuses(f, "coredns", "v2.0.0")
			fatal(t, err)
			if (refused == nil) != (c.want == "") || refused != nil && !strings.Contains(refused.Message, c.want) {
				t.Errorf("%s: a promotion gets %v, which is not what the load says: %q", c.why, refused, c.want)
			}
			switch got := a.Problems.Error(); {
			case c.want == "" && (got != "" || a.Version == nil):
				t.Errorf("%s: %s", c.why, got)
			case c.want != "" && (!strings.Contains(got, c.want) || a.Version != nil):
				t.Errorf("%s: problems %q, version %v; want %q and none", c.why, got, a.Version, c.want)
			}
		})
	}
}

// Who may push but not sign must not get to take a version's name.
func TestUnsignedTagIsNotRemembered(t *testing.T) {
	t.Parallel()
	g, keys, sign := signedRepo(t)
	opts := gitrepo.Options{URL: g.Path, CacheDir: t.TempDir(), TrustedKeys: []string{keys}}
	good := g.Last
	g.Sign = nil
	g.Annotate("coredns/v2.0.0", g.Object())
	g.Sign = sign
	r, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	load(t, r, "")
	g.Annotate("coredns/v2.0.0", good)
	g.Write("clusters/a/coredns.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v2.0.0\n")
	g.Commit()
	fatal(t, r.Git().Fetch(t.Context()))
	if err := load(t, r, "").Problems.Err(); err != nil {
		t.Errorf("the good tag, after a bad one of the same name: %v", err)
	}
}

func TestVerifyNeedsKeys(t *testing.T) {
	t.Parallel()
	g, keys, _ := signedRepo(t)
	g.Write("fleet.yaml", string(readFleetFile(g))+"verify: signed\n")
	g.Commit()
	if _, err := open(t, g.Path).Load(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "give --trusted-keys FILE") {
		t.Errorf("loaded a signed repository without keys: %v", err)
	}
	for why, files := range map[string][]string{
		"not there":      {filepath.Join(t.TempDir(), "none")},
		"empty":          {gittest.KeysFile(t, "# no keys yet\n")},
		"one is damaged": {keys, gittest.KeysFile(t, "x\n")},
		"inside":         {filepath.Join(g.Path, "config")},
	} {
		if _, err := registry.Open(t.Context(), gitrepo.Options{URL: g.Path, CacheDir: t.TempDir(), TrustedKeys: files}); err == nil {
			t.Errorf("opened with trusted keys that are %s", why)
		}
	}
}

// A key that is taken out of the file counts no longer, without a restart.
func TestKeyRemoved(t *testing.T) {
	t.Parallel()
	g, keys, _ := signedRepo(t)
	r, err := registry.Open(t.Context(), gitrepo.Options{URL: g.Path, CacheDir: t.TempDir(), TrustedKeys: []string{keys}})
	fatal(t, err)
	load(t, r, "")
	bob, _ := gittest.SSHKey(t)
	fatal(t, os.WriteFile(keys, []byte(gittest.Allowed(bob, "")), 0o600))
	if _, err := r.Load(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "not among the trusted keys") {
		t.Errorf("loaded what a removed key signed: %v", err)
	}
	fatal(t, os.Remove(keys))
	if _, err := r.Load(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "read trusted keys") {
		t.Errorf("loaded without the file of keys: %v", err)
	}
}
