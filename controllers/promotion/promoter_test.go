package promotion_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/controllers/promotion"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

const header = "apiVersion: keelson.io/v1alpha1\nkind: "

// scene is a fleet on a real git server, with a clone of a person.
type scene struct {
	t                *testing.T
	dir, url, logins string
	now              time.Time
	stands           map[string]rollout.Progress
	repo             *registry.Repo
	fleet            *registry.Fleet
	promoter         *promotion.Promoter
	forge            forge.Proposer // nil: there is none
}

// newScene has web at v1.0.0 in testing and production, with v1.1.0 published.
func newScene(t *testing.T) *scene {
	t.Helper()
	bin, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs the git binary for its HTTP server")
	}
	root := t.TempDir()
	s := &scene{t: t, dir: filepath.Join(root, "work"), now: noon, stands: map[string]rollout.Progress{}}
	backend := &cgi.Handler{Path: bin, Args: []string{"http-backend"}, Env: []string{
		"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _, _ := r.BasicAuth()
		if strings.Contains(r.URL.String(), "receive-pack") && user != "writer" { // as its right is another one
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url, s.logins = server.URL+"/fleet.git", filepath.Join(root, "logins")
	s.write("../logins", server.URL+": {username: writer, password: S3cret-of-the-writer}\n")
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.git("init", "-q", "--bare", "-b", "main", "../fleet.git")
	s.git("init", "-q", "-b", "main")
	s.git("remote", "add", "origin", "../fleet.git")
	s.write("fleet.yaml", header+"Fleet\nname: test\npipeline: standard\n")
	s.write("pipelines/standard.yaml", header+`Pipeline
stages:
- name: testing
  clusterSelector: {matchLabels: {stage: testing}}
  promotion: {}
- name: production
  clusterSelector: {}
  promotion: {}
`)
	for _, component := range []string{"db", "web"} {
		s.write("components/"+component+"/component.yaml", header+"Component\nnamespace: "+component+"\n")
		s.write("components/"+component+"/template/Chart.yaml", "apiVersion: v2\nname: "+component+"\nversion: 1.0.0\n")
	}
	for _, stage := range []string{"testing", "production"} {
		s.write("clusters/"+stage+"-1/cluster.yaml", header+"Cluster\nlabels: {stage: "+stage+"}\nconnection: {context: "+stage+"}\n")
		s.write("layers/"+stage+".yaml", header+"Layer\nclusterSelector: {matchLabels: {stage: "+stage+`}}
components:
  db: {version: v1.0.0} # the one of 2025
  # fast
  web:
    version: "v1.0.0"
`)
	}
	s.push("first")
	for _, tag := range []string{"web/v1.0.0", "db/v1.0.0", "web/v1.1.0"} {
		s.git("tag", tag)
	}
	s.git("push", "-q", "--tags", "origin")
	if s.repo, err = registry.Open(t.Context(), gitrepo.Options{URL: s.url, CacheDir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	s.begin()
	s.load()
	return s
}

// begin is a process that begins.
func (s *scene) begin() {
	s.promoter = promotion.New(promotion.Options{
		Repo: s.repo, Credentials: s.logins, Now: func() time.Time { return s.now }, Requests: s.forge, Redact: func(text string) string {
			return strings.ReplaceAll(text, "hunter22", "***REDACTED***")
		},
	})
}

func (s *scene) git(args ...string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "git", args...)
	cmd.Dir = s.dir
	cmd.Env = append(
		os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=kim", "GIT_AUTHOR_EMAIL=kim@example.com", "GIT_COMMITTER_NAME=kim", "GIT_COMMITTER_EMAIL=kim@example.com",
	)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *scene) write(name, content string) {
	s.t.Helper()
	name = filepath.Join(s.dir, name)
	// A controller may read the logins meanwhile: it sees what was before, or what is.
	next := filepath.Join(s.t.TempDir(), "next")
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = os.WriteFile(next, []byte(content), 0o600)
	}
	if err == nil {
		err = os.Rename(next, name)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// push commits as a person, and pushes.
func (s *scene) push(message string) {
	s.t.Helper()
	s.git("add", "-A")
	s.git("commit", "-q", "--allow-empty", "-m", message)
	s.git("push", "-q", "origin", "main")
}

func (s *scene) pull() { s.t.Helper(); s.git("pull", "-q", "--ff-only", "origin", "main") }

func (s *scene) load() {
	s.t.Helper()
	err := s.repo.Git().Fetch(s.t.Context())
	if err == nil {
		s.fleet, err = s.repo.Load(s.t.Context(), "")
	}
	if err == nil {
		err = s.fleet.Problems.Err()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) plan() promotion.Plan {
	s.t.Helper()
	plan, err := s.promoter.Plan(s.t.Context(), s.fleet, s.fleet.Promoted(), func(component string) (rollout.Progress, error) { return s.stands[component], nil })
	if err != nil {
		s.t.Fatal(err)
	}
	return plan
}

// propose does what is to be done with pull requests.
func (s *scene) propose(plan *promotion.Plan) {
	s.t.Helper()
	if err := errors.Join(s.promoter.Ask(s.t.Context(), s.fleet, plan), s.promoter.Propose(s.t.Context(), plan)); err != nil {
		s.t.Fatal(err)
	}
}

// promote does all that may be done, and returns where it led to.
func (s *scene) promote() []string {
	s.t.Helper()
	plan := s.plan()
	s.propose(&plan)
	if err := s.promoter.Push(s.t.Context(), &plan); err != nil {
		s.t.Fatal(err)
	}
	s.load()
	var out []string
	for _, step := range plan.Steps {
		switch {
		case step.Action != "":
			out = append(out, fmt.Sprintf("%s %s %s %s %s", step.Component, step.Stage, step.To, step.Action, step.PullRequest))
		case step.Commit != "":
			out = append(out, step.Component+" "+step.Stage+" "+step.To)
		}
	}
	return out
}

// webInTesting is the step of web in testing.
func webInTesting(plan promotion.Plan) promotion.Step { return inStage(plan, "testing") }

func (s *scene) wants(what string, got []string, want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Fatalf("%s (-want +got)\n%s", what, diff)
	}
}

func passed(stage string) rollout.Progress {
	return rollout.Progress{Passed: map[string]time.Time{stage: noon}}
}

// A version goes from its tag to production, by one commit of one line for each stage. A new
// process, or two at once, make no second commit.
func TestPromote(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first := s.fleet.Revision
	s.wants("the newest tag", s.promote(), "web testing v1.1.0")
	s.pull()
	want := `Keelson <keelson@localhost>
promote web to v1.1.0 in testing

It is the newest tag in the range.

Before: v1.0.0
-    version: "v1.0.0"
+    version: "v1.1.0"`
	got := s.git("log", "-1", "--format=%an <%ae>%n%B")
	for line := range strings.Lines(s.git("diff", "-U0", first, "HEAD") + "\n") {
		if strings.HasPrefix(line, "+ ") || strings.HasPrefix(line, "- ") {
			got += "\n" + strings.TrimRight(line, "\n")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the commit (-want +got)\n%s", diff)
	}
	s.wants("again", s.promote())
	s.begin()
	s.wants("by another process", s.promote())
	s.stands["web"] = passed("testing")
	s.wants("it has passed", s.promote(), "web production v1.1.0")
	s.wants("again", s.promote())
	s.git("tag", "web/v1.2.0")
	s.git("tag", "db/v1.0.1")
	s.git("push", "-q", "--tags", "origin")
	s.load()
	s.wants("two of one file", s.promote(), "db testing v1.0.1", "web testing v1.2.0")
	s.pull()
	if n := s.git("rev-list", "--count", "HEAD"); n != "5" {
		t.Errorf("there are %s commits, want one each", n)
	}
	if text := s.git("show", "HEAD:layers/testing.yaml"); !strings.Contains(text, "db: {version: v1.0.1} # the one of 2025\n  # fast\n  web:\n    version: \"v1.2.0\"") {
		t.Errorf("the file is\n%s", text)
	}
}

// Who was slower makes no commit, and looks again at what is there now.
func TestPromoteRace(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	plan := s.plan()
	s.write("layers/testing.yaml", strings.ReplaceAll(s.git("show", "HEAD:layers/testing.yaml"), `"v1.0.0"`, `"v1.1.0"`)+"\n")
	s.push("kim was faster")
	theirs := s.git("rev-parse", "HEAD")
	if err := s.promoter.Push(t.Context(), &plan); !errors.Is(err, gitrepo.ErrMoved) || webInTesting(plan).Commit != "" {
		t.Fatalf("got %v, want that the branch has moved; %+v", err, plan.Steps)
	}
	s.load()
	if s.fleet.Revision != theirs {
		t.Fatalf("the branch is at %s, want %s", s.fleet.Revision, theirs)
	}
	s.wants("it is done", s.promote())

	s.git("tag", "web/v1.2.0")
	s.git("push", "-q", "--tags", "origin")
	s.load()
	plan = s.plan()
	s.write("README.md", "x")
	s.push("kim has something else")
	if err := s.promoter.Push(t.Context(), &plan); !errors.Is(err, gitrepo.ErrMoved) {
		t.Fatalf("got %v, want that the branch has moved", err)
	}
	s.load()
	s.wants("on top of what is new", s.promote(), "web testing v1.2.0")
	s.pull()
	if _, err := os.Stat(filepath.Join(s.dir, "README.md")); err != nil {
		t.Error(err)
	}
}

// What a person takes away is not promoted again; a later tag is.
func TestPromoteReverted(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.wants("the newest tag", s.promote(), "web testing v1.1.0")
	s.pull()
	s.git("revert", "--no-edit", "HEAD")
	s.push("not yet")
	s.load()
	s.begin()
	if step := webInTesting(s.plan()); step.To != "" || !strings.Contains(step.Because, "was taken away") {
		t.Fatalf("got %+v", step)
	}
	s.git("tag", "web/v1.1.1")
	s.git("push", "-q", "--tags", "origin")
	s.load()
	s.wants("a later tag", s.promote(), "web testing v1.1.1")
}

// A tag needs no review, and so it does not decide by itself what clusters run: its commit
// has to be on the branch. One that is not keeps no other from being promoted.
func TestPromoteUnmerged(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why    string
		fleet  string // a line of fleet.yaml
		merge  bool
		tags   []string // of the commit that is not on the branch
		others []string // of one that is
		want   []string // promotions
		says   string
	}{
		"Unmerged": {
			why: "The branch doesn't have it.", tags: []string{"web/v1.9.0"},
			want: []string{"web testing v1.1.0"}, says: "v1.9.0 is not merged: the commit of its tag is not on branch main",
		},
		"Annotated": {
			why: "A tag object is read down to its commit.", tags: []string{"-a -m x web/v1.9.0"},
			want: []string{"web testing v1.1.0"}, says: "v1.9.0 is not merged",
		},
		"OthersGoOn": {
			why: "The right to push tags can't stop promotions either.", tags: []string{"web/v1.9.0", "web/v1.8.0"}, others: []string{"web/v1.2.0"},
			want: []string{"web testing v1.2.0"}, says: "v1.9.0 is not merged",
		},
		"Merged": {
			why: "A merge brings it to the branch, as a second parent.", merge: true, tags: []string{"web/v1.9.0"},
			want: []string{"web testing v1.9.0"}, says: "it is the newest tag in the range",
		},
		"All": {
			why: "A fleet that releases from other branches says so.", fleet: "promotableTags: all\n", tags: []string{"web/v1.9.0"},
			want: []string{"web testing v1.9.0"}, says: "it is the newest tag in the range",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.write("fleet.yaml", header+"Fleet\nname: test\npipeline: standard\n"+tc.fleet)
			s.push("settings")
			for _, tag := range tc.others {
				s.git(append([]string{"tag"}, strings.Fields(tag)...)...)
			}
			s.git("checkout", "-q", "-b", "topic")
			s.write("components/web/template/templates/admin.yaml", "{}")
			s.git("add", "-A")
			s.git("commit", "-q", "-m", "not reviewed")
			for _, tag := range tc.tags {
				s.git(append([]string{"tag"}, strings.Fields(tag)...)...)
			}
			s.git("checkout", "-q", "main")
			if tc.merge {
				s.git("merge", "-q", "--no-ff", "-m", "read", "topic")
			}
			s.git("push", "-q", "--tags", "origin", "main")
			s.load()
			if step := webInTesting(s.plan()); !strings.Contains(step.Because, tc.says) {
				t.Errorf("it says %q, want %q", step.Because, tc.says)
			}
			s.wants(tc.why, s.promote(), tc.want...)
			s.wants("and nothing more", s.promote())
		})
	}
}

// What a person wrote for the first stage by hand, though it is not merged, goes no
// further by itself.
func TestPromoteUnmergedByHand(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.git("checkout", "-q", "-b", "topic")
	s.git("commit", "-q", "--allow-empty", "-m", "not reviewed")
	s.git("tag", "web/v1.9.0")
	s.git("checkout", "-q", "main")
	s.write("layers/testing.yaml", strings.ReplaceAll(s.git("show", "HEAD:layers/testing.yaml"), `"v1.0.0"`, `"v1.9.0"`)+"\n")
	s.push("try it")
	s.git("push", "-q", "--tags", "origin")
	s.load()
	s.stands["web"] = passed("testing")
	if step := inStage(s.plan(), "production"); step.To != "" || !strings.Contains(step.Because, "v1.9.0 is not merged") {
		t.Errorf("got %+v", step)
	}
}

// A tag that was moved publishes nothing.
func TestPromoteMovedTag(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.write("README.md", "x")
	s.push("something")
	s.git("tag", "-f", "web/v1.1.0")
	s.git("push", "-q", "-f", "--tags", "origin")
	s.load()
	if step := webInTesting(s.plan()); step.To != "" || !strings.Contains(step.Because, "tag web/v1.1.0 was moved") {
		t.Errorf("got %+v", step)
	}
}

// Frozen clusters, and clusters of which nothing is known, are promoted to nothing.
func TestPromoteStuck(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ why, file, content, says string }{
		"Frozen": {"Whoever freezes means what comes by itself, too.", "freezes/a.yaml", "Freeze\nclusterSelector: {}\nreason: Black Friday\n", "frozen on testing-1: Black Friday"},
		"Unread": {"A cluster that can't be read may be one of the stage.", "clusters/x/cluster.yaml", "Cluster\nlabels: [", "cluster x can't be read"},
		"Broken": {"What is broken is mended first.", "clusters/testing-1/web.yaml", "MetaConfig\nvalues: 1\n", "its files for cluster testing-1 in git have problems"},
		"Head":   {"It follows the branch.", "layers/testing.yaml", "Layer\nclusterSelector: {matchLabels: {stage: testing}}\ncomponents: {web: {version: HEAD}}\n", "HEAD is no version"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.write(tc.file, header+tc.content)
			s.push(name)
			if err := s.repo.Git().Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			var err error
			if s.fleet, err = s.repo.Load(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			if step := webInTesting(s.plan()); step.To != "" || !strings.Contains(step.Because, tc.says) {
				t.Errorf("%s got %+v, want %q", tc.why, step, tc.says)
			}
		})
	}
}

// Without the right to push nothing happens, and the error shows no login.
func TestPromoteNoRight(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.write("../logins", strings.TrimSuffix(s.url, "/fleet.git")+": {username: reader, password: S3cret-of-the-writer}\n")
	plan := s.plan()
	err := s.promoter.Push(t.Context(), &plan)
	if err == nil || errors.Is(err, gitrepo.ErrMoved) || strings.Contains(err.Error(), "S3cret") || !strings.Contains(err.Error(), "authentication") {
		t.Errorf("got %v", err)
	}
}

// What is not known ends it.
func TestPromoteUnknown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	if _, err := s.promoter.Plan(t.Context(), s.fleet, s.fleet.Promoted(), func(string) (rollout.Progress, error) { return rollout.Progress{}, rollout.ErrUnknown }); !errors.Is(err, rollout.ErrUnknown) {
		t.Errorf("got %v", err)
	}
	p := promotion.New(promotion.Options{Repo: s.repo, Revision: s.fleet.Revision, Now: func() time.Time { return noon }})
	if _, err := p.Plan(t.Context(), s.fleet, s.fleet.Promoted(), nil); !errors.Is(err, promotion.ErrNoBranch) {
		t.Errorf("got %v", err)
	}
}
