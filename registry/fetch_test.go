package registry_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// cutter stands in front of a git server, and ends each pack after some bytes.
func cutter(t *testing.T, s *gittest.Server) (address string, after *atomic.Int64) {
	t.Helper()
	after = &atomic.Int64{}
	after.Store(-1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, err := url.Parse(s.URL + r.URL.String())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		out := r.Clone(r.Context())
		out.URL, out.RequestURI, out.Host = to, "", ""
		res, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = res.Body.Close() }()
		w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
		w.WriteHeader(res.StatusCode)
		if n := after.Load(); n >= 0 && r.Method == http.MethodPost {
			_, _ = io.CopyN(w, res.Body, n)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = io.Copy(w, res.Body)
	}))
	t.Cleanup(front.Close)
	return front.URL + "/fleet.git", after
}

// A transfer that is cut off, wherever, changes nothing, and the next one
// brings what is missing.
func TestCutTransfer(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	address, after := cutter(t, gittest.Serve(t, g))
	cache := t.TempDir()
	r, err := registry.Open(t.Context(), gitrepo.Options{URL: address, CacheDir: cache})
	fatal(t, err)
	before := load(t, r, "")
	g.Write("clusters/a/coredns.yaml", strings.Replace(baseFleet(t)["clusters/a/coredns.yaml"], "v1.0.0", "v1.0.0 # changed", 1))
	g.Commit()
	for _, n := range []int64{0, 4, 8, 12, 20, 40, 100, 200, 400} {
		after.Store(n)
		if err := r.Git().Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), address) {
			t.Errorf("cut after %d bytes: %v; want an error that names the repository", n, err)
		}
		if got := load(t, r, ""); got != before {
			t.Errorf("cut after %d bytes: the fleet is another", n)
		}
	}
	after.Store(-1)
	fatal(t, r.Git().Fetch(t.Context()))
	if load(t, r, "").Revision == before.Revision {
		t.Error("after the line was repaired: nothing new")
	}
	left, err := filepath.Glob(filepath.Join(cache, "*", "clone.git", "incoming-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

// Without signatures a branch may be rewritten, as it may with git: what it is
// now counts, also when the server has thrown the old commits away.
func TestForcePush(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	g.Commit()
	s := gittest.Serve(t, g)
	r := open(t, s.RepoURL())
	before := load(t, r, "")
	other := gittest.NewRepo(t)
	writeFleet(other)
	other.Write("README.md", "another history")
	other.Commit()
	fatal(t, os.RemoveAll(g.Path))
	fatal(t, os.Rename(other.Path, g.Path))
	fatal(t, r.Git().Fetch(t.Context()))
	now := load(t, r, "")
	if now.Revision == before.Revision || now.Problems.Err() != nil {
		t.Errorf("loaded %s, problems %v; want the new history", now.Revision, now.Problems)
	}
	fatal(t, os.RemoveAll(filepath.Join(g.Path, "objects"))) // under our feet
	fatal(t, os.MkdirAll(filepath.Join(g.Path, "objects"), 0o755))
	if err := r.Git().Fetch(t.Context()); err != nil && !strings.Contains(err.Error(), s.RepoURL()) {
		t.Errorf("a server that lost its objects: %v", err)
	}
	if load(t, r, "") != now {
		t.Error("the fleet is another after the server lost its objects")
	}
}

// A clone that is damaged says so, and what to remove.
func TestDamagedClone(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	cache := t.TempDir()
	opts := gitrepo.Options{URL: gittest.Serve(t, g).RepoURL(), CacheDir: cache}
	_, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	packs, err := filepath.Glob(filepath.Join(cache, "*", "clone.git", "objects", "pack", "*.pack"))
	if err != nil || len(packs) != 1 {
		t.Fatalf("packs %v, %v", packs, err)
	}
	data := readFile(t, packs[0])
	fatal(t, os.Chmod(packs[0], 0o600))
	fatal(t, os.WriteFile(packs[0], data[:20], 0o600))
	r, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	_, err = r.Load(t.Context(), "")
	if err == nil || !strings.Contains(err.Error(), "the clone is damaged: remove "+filepath.Dir(filepath.Dir(filepath.Dir(packs[0])))) {
		t.Fatalf("error %v; want one that says what to remove", err)
	}
	fatal(t, os.RemoveAll(filepath.Dir(filepath.Dir(filepath.Dir(packs[0])))))
	r, err = registry.Open(t.Context(), opts)
	fatal(t, err)
	if err := load(t, r, "").Problems.Err(); err != nil {
		t.Error(err)
	}
}

func randomBytes(t *testing.T, n int) []byte {
	t.Helper()
	data := make([]byte, n)
	state := uint64(1)
	for i := range data {
		state = state*6364136223846793005 + 1442695040888963407
		data[i] = byte(state >> 33)
	}
	return data
}

// Ten thousand small fetches leave few packs: the clone is made anew in time.
func TestPacksArePruned(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	cache := t.TempDir()
	opts := gitrepo.Options{URL: gittest.Serve(t, g).RepoURL(), CacheDir: cache, Limits: gitrepo.Limits{Packs: 5}}
	r, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	var last plumbing.Hash
	for i := range 20 {
		g.Write("README.md", fmt.Sprint(i))
		last = g.Commit()
		fatal(t, r.Git().Fetch(t.Context()))
		if f := load(t, r, ""); f.Revision != last.String() || f.Problems.Err() != nil {
			t.Fatalf("after %d fetches: %s, %v", i, f.Revision, f.Problems)
		}
	}
	packs, err := filepath.Glob(filepath.Join(cache, "*", "clone.git", "objects", "pack", "*.pack"))
	if err != nil || len(packs) > 6 {
		t.Errorf("%d packs, %v; want at most 6", len(packs), err)
	}
	again, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	if f := load(t, again, ""); f.Revision != last.String() || f.Problems.Err() != nil {
		t.Errorf("after a restart: %s, %v", f.Revision, f.Problems)
	}
}

// What a fetch writes is a repository that git itself finds nothing wrong with:
// packs with deltas, their index, and refs.
func TestCloneIsGits(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	s := gittest.Serve(t, g)
	git := func(dir string, stdin string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	var b strings.Builder
	for i := range 500 {
		content := strings.Repeat(fmt.Sprintf("line %d\n", i%7), 50) + fmt.Sprint(i)
		fmt.Fprintf(&b, "commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 1\nx\n", 1_800_000_000+i)
		if i == 0 {
			b.WriteString("from refs/heads/main^0\n")
		}
		fmt.Fprintf(&b, "M 100644 inline notes/n%d.md\ndata %d\n%s\n", i%20, len(content), content)
	}
	git(g.Path, b.String(), "fast-import", "--quiet")
	git(g.Path, "", "gc", "-q")
	git(g.Path, "", "tag", "-f", "coredns/v1.0.0", "main")
	cache := t.TempDir()
	r, err := registry.Open(t.Context(), gitrepo.Options{URL: s.RepoURL(), CacheDir: cache})
	fatal(t, err)
	if err := load(t, r, "").Problems.Err(); err != nil {
		t.Error(err)
	}
	clones, err := filepath.Glob(filepath.Join(cache, "*", "clone.git"))
	if err != nil || len(clones) != 1 {
		t.Fatalf("clones %v, %v", clones, err)
	}
	if out := git(clones[0], "", "fsck", "--full", "--strict"); strings.Contains(out, "error") || strings.Contains(out, "dangling") {
		t.Errorf("git fsck: %s", out)
	}
	if want, got := git(g.Path, "", "rev-parse", "main", "coredns/v1.0.0"), git(clones[0], "", "rev-parse", "main", "coredns/v1.0.0"); got != want {
		t.Errorf("refs are %s, want %s", got, want)
	}
	packs, err := filepath.Glob(filepath.Join(clones[0], "objects", "pack", "*.idx"))
	fatal(t, err)
	if out := git(clones[0], "", "verify-pack", "-v", packs[0]); !strings.Contains(out, "chain length = 5") {
		t.Errorf("the pack has no chains of deltas, so that nothing was shown:\n%.500s", out)
	}
}
