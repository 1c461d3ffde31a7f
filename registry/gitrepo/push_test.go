package gitrepo_test

import (
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// servePushes serves a repository, and lets who knows the password push to it, too.
func servePushes(t *testing.T, g *gittest.Repo) (s *gittest.Server, credentials string) {
	t.Helper()
	s = gittest.Serve(t, g)
	g.Git("config", "http.receivepack", "true")
	s.Set(func() { s.Password = "hunter2" })
	return s, logins(t, s.URL+": {username: robot, password: hunter2}")
}

func openAt(t *testing.T, url, credentials string) *gitrepo.Repo {
	t.Helper()
	r, err := gitrepo.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: t.TempDir(), Credentials: credentials})
	fatal(t, err)
	return r
}

func pushOf(r *gitrepo.Repo, t *testing.T, credentials string, commits ...gitrepo.Commit) gitrepo.Push {
	t.Helper()
	at, err := r.Resolve("main")
	fatal(t, err)
	return gitrepo.Push{
		Branch: "main", Expect: at, Parent: at, Commits: commits, Credentials: credentials,
		Author: "keelson", Email: "keelson@example.com", When: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	}
}

// Commits come as they were made, on top of what was there, and change nothing else.
func TestPush(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	s, credentials := servePushes(t, g)
	r := openAt(t, s.RepoURL(), credentials)
	p := pushOf(r, t, credentials,
		gitrepo.Commit{Files: map[string][]byte{"clusters/a/coredns.yaml": []byte("one\n")}, Message: "first\n\nwhy\n"},
		gitrepo.Commit{Files: map[string][]byte{"clusters/b/coredns.yaml": []byte("two\n"), "fleet.yaml": []byte("three\n")}, Message: "second"},
	)
	made, err := r.Push(t.Context(), p)
	fatal(t, err)
	g.Git("fsck", "--strict", "--no-dangling")
	if got := g.Git("rev-parse", "main"); len(made) != 2 || got != made[1] {
		t.Fatalf("main is at %s, pushed were %v", got, made)
	}
	want := "second|keelson <keelson@example.com>|2026-03-01T12:00:00+00:00|M\tclusters/b/coredns.yaml M\tfleet.yaml\n" +
		"first|keelson <keelson@example.com>|2026-03-01T12:00:00+00:00|M\tclusters/a/coredns.yaml\n"
	got := ""
	for _, h := range []string{made[1], made[0]} {
		got += g.Git("log", "-1", "--format=%s|%an <%ae>|%aI", h) + "|" + strings.ReplaceAll(g.Git("diff", "--name-status", h+"^", h), "\n", " ") + "\n"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("commits (-want +got)\n%s", diff)
	}
	fatal(t, r.Fetch(t.Context()))
	data, err := r.ReadAt(t.Context(), made[1], "clusters/a/coredns.yaml")
	if err != nil || string(data) != "one\n" {
		t.Errorf("read %q, %v", data, err)
	}
}

// What a server has to say comes back, without the password, and nothing is there.
func TestPushRefused(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why     string
		prepare func(t *testing.T, g *gittest.Repo, s *gittest.Server, p *gitrepo.Push)
		moved   bool
		want    string
	}{
		"Race": {
			why: "Another client pushed before Keelson listed the refs.", moved: true, want: "it is at",
			prepare: func(_ *testing.T, g *gittest.Repo, _ *gittest.Server, _ *gitrepo.Push) {
				g.Write("README.md", "x")
				g.Commit()
			},
		},
		"LateRace": {
			why: "Another client pushed between the list of refs and the push.", moved: true, want: "it is at",
			prepare: func(t *testing.T, g *gittest.Repo, _ *gittest.Server, _ *gitrepo.Push) {
				hook(t, g, "pre-receive", "git update-ref refs/heads/main $(git commit-tree -p main -m other main^{tree})")
			},
		},
		"Hook": {
			why: "A rule of the server refuses the push.", want: "hook declined",
			prepare: func(t *testing.T, g *gittest.Repo, _ *gittest.Server, _ *gitrepo.Push) {
				hook(t, g, "pre-receive", "exit 1")
			},
		},
		"NotForward": {
			why: "Commits on top of an older one would take others away.", moved: true, want: "on top of",
			prepare: func(_ *testing.T, g *gittest.Repo, _ *gittest.Server, p *gitrepo.Push) {
				p.Expect = strings.Repeat("1", 40)
			},
		},
		"Gone": {
			why: "The branch was deleted; a push that would make it anew is none of ours.", moved: true, want: "no commit",
			prepare: func(_ *testing.T, g *gittest.Repo, _ *gittest.Server, _ *gitrepo.Push) {
				g.Git("branch", "-m", "main", "trunk")
			},
		},
		"NoRight": {
			why: "Reading and writing have logins of their own.", want: "authentication",
			prepare: func(t *testing.T, _ *gittest.Repo, s *gittest.Server, p *gitrepo.Push) {
				p.Credentials = logins(t, s.URL+": {username: robot, password: hunter3}")
			},
		},
		"NoLogin": {
			why: "What may read is not lent to a push.", want: "authentication",
			prepare: func(_ *testing.T, _ *gittest.Repo, _ *gittest.Server, p *gitrepo.Push) { p.Credentials = "" },
		},
		"NoFile": {
			why: "Only what is there is changed.", want: "write clusters/a/other.yaml: there is no such file",
			prepare: func(_ *testing.T, _ *gittest.Repo, _ *gittest.Server, p *gitrepo.Push) {
				p.Commits = []gitrepo.Commit{{Files: map[string][]byte{"clusters/a/other.yaml": nil}}}
			},
		},
		"NoBranch": {
			why: "A name that git would not take.", want: "must not start with a dash",
			prepare: func(_ *testing.T, _ *gittest.Repo, _ *gittest.Server, p *gitrepo.Push) { p.Branch = "-main" },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gittest.NewRepo(t)
			writeFleet(g)
			s, credentials := servePushes(t, g)
			r := openAt(t, s.RepoURL(), credentials)
			p := pushOf(r, t, credentials, gitrepo.Commit{Files: map[string][]byte{"fleet.yaml": []byte("x\n")}, Message: "x"})
			tc.prepare(t, g, s, &p)
			_, err := r.Push(t.Context(), p)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter") || errors.Is(err, gitrepo.ErrMoved) != tc.moved {
				t.Errorf("%s got %v; want %q, moved: %v", tc.why, err, tc.want, tc.moved)
			}
			if out := g.Git("log", "--all", "--format=%s"); strings.Contains(out, "x\n") || strings.HasPrefix(out, "x") {
				t.Errorf("it was pushed: %s", out)
			}
		})
	}
}

// hook has a server's repository run a script.
func hook(t *testing.T, g *gittest.Repo, name, script string) {
	t.Helper()
	file := filepath.Join(g.Path, "hooks", name)
	fatal(t, os.MkdirAll(filepath.Dir(file), 0o755))
	script = "#!/bin/sh\nunset GIT_QUARANTINE_PATH\nexport GIT_AUTHOR_NAME=o GIT_AUTHOR_EMAIL=o@x GIT_COMMITTER_NAME=o GIT_COMMITTER_EMAIL=o@x\n" + script + "\n"
	fatal(t, os.WriteFile(file, []byte(script), 0o755)) //nolint:gosec // git runs it
}

// A push whose answer got lost is there, and is told so.
func TestPushAnswerLost(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	s, credentials := servePushes(t, g)
	inner := s.Config.Handler
	lost := false
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/git-receive-pack") {
			inner.ServeHTTP(w, r)
			return
		}
		inner.ServeHTTP(&deaf{w}, r)
		lost = true
		panic(http.ErrAbortHandler)
	})
	r := openAt(t, s.RepoURL(), credentials)
	made, err := r.Push(t.Context(), pushOf(r, t, credentials, gitrepo.Commit{Files: map[string][]byte{"fleet.yaml": []byte("x\n")}, Message: "x"}))
	if err != nil || !lost || g.Git("rev-parse", "main") != made[0] {
		t.Errorf("got %v, %v; lost: %v", made, err, lost)
	}
}

// deaf passes on nothing.
type deaf struct{ w http.ResponseWriter }

func (d *deaf) Header() http.Header         { return http.Header{} }
func (d *deaf) Write(p []byte) (int, error) { return len(p), nil }
func (d *deaf) WriteHeader(int)             {}

func TestPushSSH(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	s := serveSSH(t, g)
	credentials := s.login(t, s.privateKey(t), s.hostKey)
	r := openAt(t, s.url(), credentials)
	p := pushOf(r, t, credentials, gitrepo.Commit{Files: map[string][]byte{"fleet.yaml": []byte("x\n")}, Message: "x"})
	made, err := r.Push(t.Context(), p)
	fatal(t, err)
	if got := g.Git("rev-parse", "main"); got != made[0] {
		t.Errorf("main is at %s, pushed were %v", got, made)
	}
	if _, err := r.Push(t.Context(), p); !errors.Is(err, gitrepo.ErrMoved) {
		t.Errorf("the same again: %v; want that the branch has moved", err)
	}
}

// A proposal branch can be pushed, replaced and deleted while no other client has written to
// it. It needs no trusted signature, because no delivery follows it.
func TestPushProposal(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	for transport, serve := range map[string]func() (url, credentials string){
		"HTTP": func() (string, string) { s, credentials := servePushes(t, g); return s.RepoURL(), credentials },
		"SSH":  func() (string, string) { s := serveSSH(t, g); return s.url(), s.login(t, s.privateKey(t), s.hostKey) },
	} {
		url, credentials := serve()
		_, private := gittest.NewKey(t)
		signer, err := ssh.NewSignerFromKey(private)
		fatal(t, err)
		r, err := gitrepo.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: t.TempDir(), Credentials: credentials, TrustedKeys: []string{gittest.KeysFile(t, gittest.Allowed(signer, ""))}})
		fatal(t, err)
		p := pushOf(r, t, credentials, gitrepo.Commit{Files: map[string][]byte{"fleet.yaml": []byte(transport)}, Message: "first of " + transport + "\n\nwhy\n"})
		branch := "keelson/" + strings.ToLower(transport)
		p.Branch, p.Expect, p.Proposal = branch, "", true
		first, err := r.Push(t.Context(), p)
		fatal(t, err)
		p.Commits[0].Message, p.Expect, p.Force = "second", first[0], true
		second, err := r.Push(t.Context(), p)
		if err != nil || g.Git("rev-parse", branch) != second[0] || g.Git("rev-parse", branch+"^") != p.Parent {
			t.Fatalf("%s: the second is not on top of main: %v", transport, err)
		}
		if _, err := r.Push(t.Context(), p); !errors.Is(err, gitrepo.ErrMoved) {
			t.Errorf("%s: it is overwritten where it was not said to be: %v", transport, err)
		}
		fatal(t, r.Fetch(t.Context()))
		if got := r.Branches("keelson/"); got[branch] != second[0] || got["main"] != "" {
			t.Errorf("%s: the branches are %v", transport, got)
		}
		want := gitrepo.CommitInfo{Parents: []string{p.Parent}, Author: "keelson <keelson@example.com>", Committer: "keelson <keelson@example.com>", Message: "second"}
		made, err := r.Commit(second[0])
		if diff := cmp.Diff(want, made); err != nil || diff != "" {
			t.Errorf("%s: the commit (-want +got) %v\n%s", transport, err, diff)
		}
		other := gitrepo.Commit{Files: map[string][]byte{"fleet.yaml": []byte("other")}}
		only, err := r.Changes(second[0], p.Parent, p.Commits[0])
		fatal(t, err)
		if more, err := r.Changes(second[0], p.Parent, other); err != nil || !only || more {
			t.Errorf("%s: it changes that file alone: %v, or to something else: %v, %v", transport, only, more, err)
		}
		if err := r.DeleteBranch(t.Context(), p); !errors.Is(err, gitrepo.ErrMoved) {
			t.Errorf("%s: it is deleted where it was not said to be: %v", transport, err)
		}
		p.Expect = second[0]
		fatal(t, r.DeleteBranch(t.Context(), p))
		if out := g.Git("branch", "--list", branch); out != "" {
			t.Errorf("%s: it is still there", transport)
		}
		if err := r.DeleteBranch(t.Context(), p); err != nil {
			t.Errorf("%s: it is gone, which is what was wanted: %v", transport, err)
		}
		p.Expect = ""
		if err := r.DeleteBranch(t.Context(), p); err == nil {
			t.Errorf("%s: whatever is there is deleted", transport)
		}
	}
}

// A signed repository takes signed commits alone, so others are not pushed: they would
// stop it for everybody.
func TestPushSigned(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	s, credentials := servePushes(t, g)
	_, private := gittest.NewKey(t)
	signer, err := ssh.NewSignerFromKey(private)
	fatal(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	fatal(t, err)
	key := logins(t, string(pem.EncodeToMemory(block)))
	r, err := gitrepo.Open(t.Context(), gitrepo.Options{
		URL: s.RepoURL(), CacheDir: t.TempDir(), Credentials: credentials, TrustedKeys: []string{gittest.KeysFile(t, gittest.Allowed(signer, ""))},
	})
	fatal(t, err)
	p := pushOf(r, t, credentials, gitrepo.Commit{Files: map[string][]byte{"fleet.yaml": []byte("x\n")}, Message: "x"})
	if _, err := r.Push(t.Context(), p); err == nil || !strings.Contains(err.Error(), "would refuse this commit: it is not signed") {
		t.Fatalf("without a signature: %v", err)
	}
	p.Sign = gitrepo.SignWith(logins(t, "no key"))
	if _, err := r.Push(t.Context(), p); err == nil || !strings.Contains(err.Error(), "read the signing key") {
		t.Fatalf("without a key: %v", err)
	}
	_, other := gittest.NewKey(t)
	block, err = ssh.MarshalPrivateKey(other, "")
	fatal(t, err)
	p.Sign = gitrepo.SignWith(logins(t, string(pem.EncodeToMemory(block))))
	if _, err := r.Push(t.Context(), p); err == nil || !strings.Contains(err.Error(), "not among the trusted keys") {
		t.Fatalf("with a strange key: %v", err)
	}
	p.Sign = gitrepo.SignWith(key)
	made, err := r.Push(t.Context(), p)
	if err != nil || g.Git("rev-parse", "main") != made[0] {
		t.Fatalf("with its key: %v, %v", made, err)
	}
	if out := g.Git("cat-file", "-p", made[0]); !strings.Contains(out, "gpgsig -----BEGIN SSH SIGNATURE-----") {
		t.Errorf("it is not signed:\n%s", out)
	}
}

// A folder on this machine is not pushed to: whoever works in it would be surprised.
func TestPushLocal(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	r := open(t, g.Path)
	if _, err := r.Push(t.Context(), pushOf(r, t, "", gitrepo.Commit{})); err == nil || !strings.Contains(err.Error(), "give its URL") {
		t.Errorf("got %v", err)
	}
}
