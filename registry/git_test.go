package registry_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

func TestHTTP(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	s := gittest.Serve(t, g)
	r := open(t, s.RepoURL())
	first := load(t, r, "")
	if err := first.Problems.Err(); err != nil {
		t.Fatal(err)
	}

	before := s.Requests()
	if err := r.Git().Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.Requests() - before; n != 1 {
		t.Errorf("a fetch with nothing new cost %d requests, want 1: it is what an idle fleet does all day", n)
	}
	if load(t, r, "") != first {
		t.Error("a load with nothing new made another Fleet")
	}

	g.Write("clusters/b/coredns.yaml", strings.Replace(baseFleet(t)["clusters/b/coredns.yaml"], "3", "4", 1))
	second := g.Commit()
	g.Tag("coredns/v1.1.0")
	g.Ref("refs/heads/side", second)
	if got := load(t, r, "").Revision; got != first.Revision {
		t.Errorf("loaded %s without a fetch, want %s", got, first.Revision)
	}
	if err := r.Git().Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, rev := range []string{"", "HEAD", "main", "side", "coredns/v1.1.0", second.String(), second.String()[:7]} {
		got, err := r.Git().Resolve(rev)
		if err != nil || got != second.String() {
			t.Errorf("Resolve(%q) = %s, %v; want %s", rev, got, err, second)
		}
	}
	now := load(t, r, "")
	if now.Revision != second.String() {
		t.Errorf("loaded %s, want %s", now.Revision, second)
	}
	if a, b := first.Cluster("b").Delivery("coredns"), now.Cluster("b").Delivery("coredns"); a.Version != b.Version {
		t.Error("a version that did not change was decoded again")
	}

	g.DeleteTag("coredns/v1.1.0")
	if err := r.Git().Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Git().Resolve("coredns/v1.1.0"); err == nil {
		t.Error("a tag that was deleted on the server is still there")
	}
}

func TestMovedTagSurvivesRestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ remote, looks, free bool }{
		"Local": {},
		"HTTP":  {remote: true},
		// Nothing was delivered by the tag, and it may not be pushed: its author may move it.
		"LocalLook": {looks: true, free: true},
		// What is on a server, others have.
		"HTTPLook": {remote: true, looks: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gittest.NewRepo(t)
			writeFleet(g)
			url := "file://" + g.Path
			if c.remote {
				url = gittest.Serve(t, g).RepoURL()
			}
			opts := gitrepo.Options{URL: url, CacheDir: t.TempDir(), Looks: c.looks}
			if _, err := registry.Open(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
			g.Write("components/coredns/template/values.yaml", "replicas: 9\n")
			g.Commit()
			g.Tag("coredns/v1.0.0")

			r, err := registry.Open(t.Context(), opts)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Git().Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			d := load(t, r, "").Cluster("a").Delivery("coredns")
			if c.free {
				if len(d.Problems) > 0 {
					t.Errorf("a tag that nothing was delivered by may not move: %v", d.Problems)
				}
				return
			}
			if d.Version != nil || len(d.Problems) != 1 || !strings.Contains(d.Problems[0].Message, "was moved") {
				t.Errorf("version %v, problems %v; want a moved tag", d.Version, d.Problems)
			}
		})
	}
}

func TestDeadServer(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	s := gittest.Serve(t, g)
	s.Set(func() { s.Password = "hunter2" })
	url := strings.Replace(s.RepoURL(), "http://", "http://robot:hunter2@", 1)
	cache := t.TempDir()
	r, err := registry.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	before := load(t, r, "")
	g.Write("README.md", "x")
	g.Commit()

	check := func(reason string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), s.RepoURL()) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v; want one that names %s without its password", reason, err, s.RepoURL())
		}
		if load(t, r, "") != before {
			t.Errorf("%s: the fleet is another after a failed fetch", reason)
		}
	}
	s.Set(func() { s.Down = true })
	check("Down", r.Git().Fetch(t.Context()))

	s.Set(func() { s.Down, s.Password = false, "changed" })
	check("Unauthorized", r.Git().Fetch(t.Context()))

	stall := make(chan struct{})
	s.Set(func() { s.Password, s.Stall = "hunter2", stall })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = r.Git().Fetch(ctx)
	check("Stalled", err)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stalled: error %v; want the deadline", err)
	}
	close(stall)

	s.Close()
	check("Gone", r.Git().Fetch(t.Context()))
	if _, err := registry.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: t.TempDir()}); err == nil ||
		strings.Contains(err.Error(), "hunter2") {
		t.Errorf("opened a dead server for the first time: %v", err)
	}
	again, err := registry.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: cache})
	if err != nil {
		t.Fatalf("a restart while the server is down: %v", err)
	}
	if got := load(t, again, "").Revision; got != before.Revision {
		t.Errorf("after a restart: revision %s, want %s", got, before.Revision)
	}
	noPasswords(t, cache)
}

// noPasswords looks through everything that was written to the cache.
func noPasswords(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(string(readFile(t, path)), "hunter2") {
			t.Errorf("%s holds the password", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestLocations(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, url, want string
	}{
		"Empty":         {"Nothing is no repository.", "", "no repository"},
		"Option":        {"A dash would be an option to a program.", "--upload-pack=x", "dash"},
		"Scheme":        {"Unknown schemes are refused by name.", "ftp://x/y", "ftp://"},
		"PasswordInBad": {"A URL that can't be read may hold a password.", "http://a:hunter2@%zz/", "can't be read"},
		"FileHost":      {"file://x/y is a path that lost its slash.", "file://srv/fleet", "file:///"},
		"NotThere":      {"A path without a repository is named.", "/nonexistent/fleet", "/nonexistent/fleet"},
		"NoServer":      {"No server listens on the port.", "http://a:hunter2@127.0.0.1:1/fleet", "http://127.0.0.1:1/fleet"},
		"SSH":           {"An SSH server that is not there.", "ssh://git:hunter2@127.0.0.1:1/fleet", "ssh://git@127.0.0.1:1/fleet"},
		"SCPPassword":   {"It would be a part of the user's name.", "git:hunter2@127.0.0.1:fleet/nope", "must not hold a password"},
		"Query":         {"What follows a question mark may be a token.", "https://127.0.0.1:1/fleet?private_token=hunter2", "must end with its path"},
		"SCP":           {"The short form of SSH.", "git@127.0.0.1:fleet/nope", "git@127.0.0.1:fleet/nope"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := registry.Open(ctx, gitrepo.Options{URL: c.url, CacheDir: t.TempDir()})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s Open(%q): %v; want an error with %q", c.why, c.url, err, c.want)
			}
		})
	}
}

func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	blob := g.Blob([]byte("x"))
	g.Ref("refs/tags/coredns/v3.0.0", blob)
	r := open(t, g.Path)
	for rev, why := range map[string]string{
		"-x":                         "it looks like an option",
		"a..b":                       "it is a range",
		"main^{tree}":                "it is an expression",
		"a\nb":                       "it holds a control character",
		"../../etc":                  "it leads out",
		"mian":                       "it is not there",
		"0123456":                    "no commit starts with it",
		"coredns/v3.0.0":             "it is a blob",
		"refs/heads/\x7f":            "it holds a control character",
		"main~1000":                  "the branch has fewer commits",
		"main~99999999999999999999":  "it is no number",
		"main~20000":                 "it goes back too far",
		"main~1~9223372036854775807": "the sum of both is no number",
		"main^2":                     "other parents are no history of a branch",
	} {
		if got, err := r.Git().Resolve(rev); err == nil {
			t.Errorf("Resolve(%q) = %s, though %s", rev, got, why)
		}
	}
	_, err := r.Git().Resolve("mian")
	if err == nil || !strings.Contains(err.Error(), `did you mean "main"?`) {
		t.Errorf("Resolve(mian): %v; want a suggestion", err)
	}
}

// TestResolveAncestors: an ancestor is named as in git, and so is a branch of a remote.
func TestResolveAncestors(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	first := g.Last
	g.Write("README.md", "a")
	second := g.Commit()
	g.Write("README.md", "b")
	third := g.Commit()
	g.Ref("refs/remotes/origin/main", second)
	r := open(t, g.Path)
	for rev, want := range map[string]plumbing.Hash{
		"HEAD~1": second, "HEAD~": second, "HEAD^": second, "main~0": third, "main~2": first, "main^^": first, "main~1^": first,
		third.String() + "~2": first, third.String()[:8] + "^": second, "origin/main": second, "origin/main~1": first, "coredns/v1.0.0": first,
	} {
		if got, err := r.Git().Resolve(rev); err != nil || got != want.String() {
			t.Errorf("Resolve(%q) = %s, %v; want %s", rev, got, err, want)
		}
	}
}

// TestWorkTreeRepository reads a repository that git itself made, packed, with
// a work tree and linked work tree.
func TestWorkTreeRepository(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs the git binary")
	}
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), git, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range baseFleet(t) {
		write(name, content)
	}
	run("init", "-q", "-b", "main")
	run("add", ".")
	run("commit", "-q", "-m", "x")
	run("tag", "-a", "-m", "x", "coredns/v1.0.0")
	run("gc", "-q")
	linked := filepath.Join(t.TempDir(), "linked")
	run("worktree", "add", "-q", linked, "-b", "side")

	for _, path := range []string{dir, linked} {
		r := open(t, path)
		f := load(t, r, "")
		if err := f.Problems.Err(); err != nil || f.Cluster("a").Delivery("coredns").Version == nil {
			t.Errorf("%s: %v", path, err)
		}
		// Another process that may read these and no other sees all of it, too.
		folders, lock, err := r.Git().Files()
		for _, file := range []string{filepath.Join(path, ".git"), filepath.Join(dir, ".git", "packed-refs"), lock} {
			if err != nil || !slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(file, folder+"/") }) {
				t.Errorf("%s: %s is in none of %s (%v)", path, file, folders, err)
			}
		}
	}

	work, err := registry.Open(t.Context(), gitrepo.Options{URL: dir, CacheDir: t.TempDir(), WorkTree: true})
	if err != nil {
		t.Fatal(err)
	}
	clean := load(t, work, "")
	if err := clean.Problems.Err(); err != nil {
		t.Fatal(err)
	}
	write("clusters/a/coredns.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: HEAD\n")
	write("clusters/b/coredns.yml", "x")
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "clusters/b/passwd.yaml")); err != nil {
		t.Fatal(err)
	}
	dirty := load(t, work, "HEAD")
	want := "clusters/b/coredns.yml: files must be called .yaml, so that none is overlooked (rename it to coredns.yaml)\n" +
		"clusters/b/passwd.yaml: this is a symbolic link, not a file"
	if got := dirty.Problems.Error(); got != want {
		t.Errorf("problems:\n%s\nwant:\n%s", got, want)
	}
	head := dirty.Cluster("a").Delivery("coredns").Version
	tagged := clean.Cluster("a").Delivery("coredns").Version
	if head == nil || head.Tree != tagged.Tree {
		t.Errorf("the work tree's version is %+v; its tree should be the tag's, %s", head, tagged.Tree)
	}
	if _, err := work.Load(t.Context(), "main"); err == nil {
		t.Error("loaded a branch from a work tree")
	}
}

// TestConcurrent fetches and loads at once, under the race detector: a load
// sees one commit, whole.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	r := open(t, gittest.Serve(t, g).RepoURL())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 20 {
				f, err := r.Load(t.Context(), "")
				if err != nil {
					t.Error(err)
					return
				}
				if f.Problems.Err() != nil {
					t.Error(f.Problems)
				}
			}
		})
	}
	for i := range 6 {
		// The version and the file that names it come in one push.
		g.Write("components/coredns/template/values.yaml", fmt.Sprintf("replicas: %d\n", i))
		version := fmt.Sprintf("v1.0.%d", i+1)
		g.Write("clusters/a/coredns.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: "+version+"\n")
		g.CommitTagged("coredns/" + version)
		if err := r.Git().Fetch(t.Context()); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	r := open(t, g.Path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Load(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("Load: %v", err)
	}
	if err := r.Git().Fetch(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Fetch: %v", err)
	}
}

// TestLockedRefs reads a repository while another process commits: git has created the lock
// files of the refs, and has not written the refs yet.
func TestLockedRefs(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	for _, lock := range []string{"HEAD.lock", "packed-refs.lock", "refs/heads/main.lock", "refs/tags/coredns/v1.0.0.lock"} {
		path := filepath.Join(g.Path, filepath.FromSlash(lock))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open(t, g.Path).Load(t.Context(), ""); err != nil {
		t.Error(err)
	}
}

func TestEmptyRepository(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	for name, url := range map[string]string{"Local": g.Path, "HTTP": gittest.Serve(t, g).RepoURL()} {
		r := open(t, url)
		if _, err := r.Load(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "no commit") {
			t.Errorf("%s: %v; want an error that says that there is no commit", name, err)
		}
	}
}

func toYAML(t testing.TB, v any) string {
	t.Helper()
	data, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func fromYAML(t testing.TB, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// helmMerge is mergeMaps of helm v3.22 (pkg/cli/values/options.go): what helm -f A -f B does. The renderer alone may import Helm.
func helmMerge(a, b map[string]any) map[string]any {
	out := make(map[string]any, len(a))
	maps.Copy(out, a)
	for k, v := range b {
		if v, ok := v.(map[string]any); ok {
			if bv, ok := out[k]; ok {
				if bv, ok := bv.(map[string]any); ok {
					out[k] = helmMerge(bv, v)
					continue
				}
			}
		}
		out[k] = v
	}
	return out
}

// helmCoalesce is what coalesceValues and coalesceTables of helm v3.22
// (pkg/chartutil/coalesce.go) make of values and a chart's own, without
// subcharts: values win, and a null takes the chart's key away.
func helmCoalesce(values, chart map[string]any) map[string]any {
	out := map[string]any{}
	maps.Copy(out, values)
	for k, below := range chart {
		v, ok := out[k]
		over, isMap := v.(map[string]any)
		under, belowIsMap := below.(map[string]any)
		switch {
		case !ok:
			out[k] = below
		case v == nil && below != nil:
			delete(out, k)
		case isMap && belowIsMap:
			out[k] = helmCoalesce(over, under)
		}
	}
	return out
}
