package promotion_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/controllers/promotion"
	"github.com/keelson-io/keelson/controllers/rollout"
)

// inProduction is the branch of web's promotions to production.
const inProduction = "keelson/promote/main/web/production"

// requests is a forge that remembers them, and counts what it is asked.
type requests struct {
	mu           sync.Mutex
	all          []forge.Request
	asked, wrote int
	down         error // of every question
	refuses      int   // so many openings fail
}

func (r *requests) Requests(_ context.Context, base string, heads ...string) ([]forge.Request, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	var out []forge.Request
	for _, one := range slices.Backward(r.all) {
		if one.Base == base && slices.Contains(heads, one.Head) {
			out = append(out, one)
		}
	}
	return out, r.down
}

func (r *requests) OpenRequest(_ context.Context, one forge.Request) (forge.Request, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrote++
	if r.refuses > 0 {
		r.refuses--
		return one, errors.New("there is no such branch")
	}
	one.Number, one.State, one.Own = int64(len(r.all)+1), forge.RequestOpen, true
	one.URL = fmt.Sprintf("https://git.example/%d", one.Number)
	one.Body = strings.ReplaceAll(one.Body, "\n", "\r\n") // as some forges do
	r.all = append(r.all, one)
	return one, nil
}

func (r *requests) EditRequest(_ context.Context, one forge.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrote++
	r.all[one.Number-1] = one
	return nil
}

func (r *requests) set(number int, state forge.RequestState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[number-1].State = state
}

// shown are the states and titles of all.
func (r *requests) shown() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, one := range r.all {
		out = append(out, string(one.State)+": "+one.Title)
	}
	return out
}

// reviewed is a scene in which production is promoted by pull request, web v1.1.0 has
// passed testing, and nothing was done about that.
func reviewed(t *testing.T) (*scene, *requests) {
	t.Helper()
	s := newScene(t)
	s.write("pipelines/standard.yaml", strings.Replace(s.git("show", "HEAD:pipelines/standard.yaml"), "clusterSelector: {}\n  promotion: {}", "clusterSelector: {}\n  promotion: {range: ~1, by: pullRequest}", 1))
	s.push("by review")
	r := &requests{}
	s.forge = r
	s.begin()
	s.load()
	s.wants("testing", s.promote(), "web testing v1.1.0")
	s.pull()
	s.stands["web"] = passed("testing")
	return s, r
}

// next publishes v1.2.0 of web.
func (s *scene) next() {
	s.t.Helper()
	s.git("tag", "web/v1.2.0")
	s.git("push", "-q", "--tags", "origin")
	s.load()
}

// server asks the server's repository.
func (s *scene) server(args ...string) string {
	s.t.Helper()
	return s.git(append([]string{"--git-dir", "../fleet.git"}, args...)...)
}

// rests wants that nothing is asked of the forge, and nothing done.
func (s *scene) rests(r *requests) {
	s.t.Helper()
	asked, wrote, refs := r.asked, r.wrote, s.server("for-each-ref")
	s.wants("at rest", s.promote())
	if r.asked != asked || r.wrote != wrote || s.server("for-each-ref") != refs {
		s.t.Errorf("at rest the forge was asked %d times, and %d writes were made", r.asked-asked, r.wrote-wrote)
	}
}

// inProduction does what is to be done with pull requests, and returns web's step in
// production.
func (s *scene) inProduction() promotion.Step {
	s.t.Helper()
	plan := s.plan()
	s.propose(&plan)
	return inStage(plan, "production")
}

func inStage(plan promotion.Plan, stage string) promotion.Step {
	for _, step := range plan.Steps {
		if step.Component == "web" && step.Stage == stage {
			return step
		}
	}
	return promotion.Step{}
}

// A request is opened with the commit that a push would have made. Without news the forge is not
// asked about it. A new process opens no second one. Its merge promotes, and its branch is deleted.
func TestRequest(t *testing.T) {
	t.Parallel()
	s, r := reviewed(t)
	main := s.server("rev-parse", "main")
	s.wants("it has passed", s.promote(), "web production v1.1.0 open https://git.example/1")
	if got := s.server("rev-parse", "main"); got != main {
		t.Error("main was changed")
	}
	if got := s.server("log", "-1", "--format=%P|%an <%ae>|%cn|%s", inProduction); got != main+"|Keelson <keelson@localhost>|Keelson|promote web to v1.1.0 in production" {
		t.Errorf("the commit is %s", got)
	}
	if got := s.server("diff", "--numstat", "main", inProduction); got != "1\t1\tlayers/production.yaml" {
		t.Errorf("it changes %s", got)
	}
	one := r.all[0]
	want := forge.Request{Number: 1, URL: one.URL, State: forge.RequestOpen, Own: true, Head: inProduction, Base: "main", Title: "promote web to v1.1.0 in production"}
	body := strings.ReplaceAll(one.Body, "\r\n", "\n")
	one.Body = ""
	if diff := cmp.Diff(want, one); diff != "" {
		t.Errorf("the request (-want +got)\n%s", diff)
	}
	about, text, _ := strings.Cut(body, "\n")
	if !strings.HasPrefix(about, "<!-- keelson: promotes web to v1.1.0 in production; ") {
		t.Errorf("it begins with %q", about)
	}
	wantText := "Keelson promotes `web` in stage `production` of pipeline `standard` from `v1.0.0` to `v1.1.0`.\n\n" +
		"- Why now: `it passed stage testing at 2026-03-01T12:00:00Z`\n- Evidence: `keelson rollout show web`\n- Range of the stage: `~1`\n- Where: `layers/production.yaml:8:14`\n\n" +
		"`-    version: \"v1.0.0\"`\n`+    version: \"v1.1.0\"`\n\n" +
		"A merge promotes it. To reject `v1.1.0`, close this pull request: Keelson does not propose it here again, but proposes later versions. Keelson keeps this up to date until another author commits to its branch.\n"
	if diff := cmp.Diff(wantText, text); diff != "" {
		t.Errorf("the text (-want +got)\n%s", diff)
	}
	s.rests(r)
	s.write("README.md", "x")
	s.push("something else")
	s.load()
	s.rests(r)
	s.begin()
	asked := r.asked
	s.wants("by another process", s.promote())
	if r.asked != asked+1 || r.wrote != 1 {
		t.Errorf("who begins asks %d times, want once; %d writes", r.asked-asked, r.wrote)
	}
	s.rests(r)

	s.git("fetch", "-q", "origin", inProduction)
	s.git("merge", "-q", "--no-ff", "-m", "merged", "FETCH_HEAD")
	s.push("merge")
	r.set(1, forge.RequestMerged)
	s.begin()
	if step := s.inProduction(); step.To != "" || step.Because != "v1.1.0 was merged with https://git.example/1; the branch will have it at the next fetch" {
		t.Errorf("got %+v", step)
	}
	s.load()
	s.wants("its branch goes", s.promote())
	if out := s.server("branch", "--list", "keelson/*"); out != "" {
		t.Errorf("there is still %s", out)
	}
	s.rests(r)
	s.wants("requests", r.shown(), "merged: promote web to v1.1.0 in production")
}

// A newer version changes the same branch and the same request; what holds it up for a
// while changes nothing.
func TestRequestUpdate(t *testing.T) {
	t.Parallel()
	s, r := reviewed(t)
	s.next()
	s.wants("both stages step", s.promote(), "web testing v1.2.0", "web production v1.1.0 open https://git.example/1")
	s.pull()
	first := s.server("rev-parse", inProduction)
	s.stands["web"] = rollout.Progress{Halt: "v1.2.0 is rolling out, in stage testing", NotPassed: map[string]string{"testing": "it has not passed"}}
	s.rests(r)
	s.write("freezes/a.yaml", header+"Freeze\nclusterSelector: {}\nreason: Black Friday\n")
	s.push("freeze")
	s.load()
	s.rests(r)
	s.git("rm", "-q", "freezes/a.yaml")
	s.push("thaw")
	s.load()

	s.stands["web"] = passed("testing")
	s.wants("the next one", s.promote(), "web production v1.2.0 update https://git.example/1")
	if s.server("rev-parse", inProduction) == first || s.server("log", "-1", "--format=%P", inProduction) != s.server("rev-parse", "main") {
		t.Error("the branch is not on top of main")
	}
	s.wants("requests", r.shown(), "open: promote web to v1.2.0 in production")
	if !strings.Contains(r.all[0].Body, "`v1.0.0` to `v1.2.0`") {
		t.Errorf("it says %s", r.all[0].Body)
	}
	s.rests(r)

	r.all[0].Title = "a person's title" // Keelson replaces it at the next change of the version, and not before
	s.begin()
	s.wants("by another process", s.promote())
	next := strings.Replace(s.git("show", "HEAD:layers/production.yaml"), "{version: v1.0.0}", "{version: v1.0.0, values: {}}", 1)
	s.write("layers/production.yaml", next+"\n")
	s.push("near it") // three lines above
	s.load()
	s.wants("it would conflict", s.promote(), "web production v1.2.0 update https://git.example/1")
	s.rests(r)
	s.wants("requests", r.shown(), "open: a person's title")
}

// A no is a no for that version, also for who begins anew and when the branch is gone; a
// later version is proposed again.
func TestRequestRefused(t *testing.T) {
	t.Parallel()
	s, r := reviewed(t)
	s.wants("it has passed", s.promote(), "web production v1.1.0 open https://git.example/1")
	r.set(1, forge.RequestClosed)
	s.rests(r)
	for _, branch := range []string{"is there", "is gone"} {
		s.begin()
		s.wants("refused, and the branch "+branch, s.promote())
		s.rests(r)
		if step := s.inProduction(); step.To != "" || !strings.Contains(step.Because, "v1.1.0 was refused: https://git.example/1") {
			t.Errorf("the branch %s: got %+v", branch, step)
		}
		if branch == "is there" {
			s.server("branch", "-D", inProduction)
			s.load()
		}
	}
	s.next()
	s.wants("testing goes on", s.promote(), "web testing v1.2.0")
	s.wants("a later one", s.promote(), "web production v1.2.0 open https://git.example/2")
	s.wants("requests", r.shown(), "closed: promote web to v1.1.0 in production", "open: promote web to v1.2.0 in production")
}

// What others commit to the branch is not overwritten, and not deleted.
func TestRequestOfOthers(t *testing.T) {
	t.Parallel()
	s, r := reviewed(t)
	s.wants("it has passed", s.promote(), "web production v1.1.0 open https://git.example/1")
	s.git("fetch", "-q", "origin", inProduction)
	s.git("checkout", "-q", "FETCH_HEAD")
	s.write("README.md", "and this")
	s.git("add", "-A")
	s.git("commit", "-q", "--amend", "-m", "promote web to v1.1.0 in production")
	s.git("push", "-q", "-f", "origin", "HEAD:"+inProduction) // before anybody has read it
	theirs := s.server("rev-parse", inProduction)
	s.git("checkout", "-q", "main")
	s.next()
	s.wants("testing goes on", s.promote(), "web testing v1.2.0")
	s.rests(r)
	if step := s.inProduction(); step.To != "" || !strings.Contains(step.Because, "v1.2.0 waits: branch "+inProduction+" has commits by another author") {
		t.Errorf("got %+v", step)
	}
	s.pull()
	s.write("layers/production.yaml", strings.ReplaceAll(s.git("show", "HEAD:layers/production.yaml"), `"v1.0.0"`, `"v1.2.0"`)+"\n")
	s.push("by hand") // so that nothing is due
	s.load()
	s.rests(r)
	if got := s.server("rev-parse", inProduction); got != theirs {
		t.Errorf("the branch is at %s", s.server("log", "-1", inProduction))
	}
	s.wants("requests", r.shown(), "open: promote web to v1.1.0 in production")
}

// A commit that claims to be Keelson's, but changes more than the version, is replaced. A closed
// request of another author is no refusal, and Keelson does not write to it.
func TestRequestForged(t *testing.T) {
	t.Parallel()
	s, r := reviewed(t)
	s.wants("it has passed", s.promote(), "web production v1.1.0 open https://git.example/1")
	s.git("fetch", "-q", "origin", inProduction)
	s.git("checkout", "-q", "FETCH_HEAD")
	s.write("fleet.yaml", header+"Fleet\nname: mine\npipeline: standard\n")
	s.git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-a", "--amend", "--no-edit")
	forged := s.git("cat-file", "commit", "HEAD")
	at := strings.Index(forged, "committer kim <kim@example.com>")
	forged = forged[:at] + strings.Replace(forged[at:], "committer kim <kim@example.com>", "committer Keelson <keelson@localhost>", 1) + "\n"
	s.write("../forged", forged)
	s.git("push", "-q", "-f", "origin", s.git("hash-object", "-t", "commit", "-w", "../forged")+":refs/heads/"+inProduction)
	s.git("checkout", "-q", "main")
	s.load()
	s.wants("it is made anew", s.promote(), "web production v1.1.0 update https://git.example/1")
	if got := s.server("diff", "--numstat", "main", inProduction); got != "1\t1\tlayers/production.yaml" {
		t.Errorf("it changes %s", got)
	}
	s.rests(r)

	r.mu.Lock()
	theirs := r.all[0]
	r.all = r.all[:0]
	theirs.Own, theirs.State = false, forge.RequestClosed
	r.all = append(r.all, theirs)
	r.mu.Unlock()
	s.begin()
	s.wants("a stranger closed his own", s.promote(), "web production v1.1.0 open https://git.example/2")
}

// Keelson closes a request that must not be merged any more, with the reason. That is no refusal.
func TestRequestClosed(t *testing.T) {
	t.Parallel()
	production := func(s *scene, old, by string) {
		s.write("layers/production.yaml", strings.ReplaceAll(s.git("show", "HEAD:layers/production.yaml"), old, by)+"\n")
	}
	pipeline := func(s *scene, by string) {
		s.write("pipelines/standard.yaml", strings.Replace(s.git("show", "HEAD:pipelines/standard.yaml"), "{range: ~1, by: pullRequest}", by, 1)+"\n")
	}
	cases := map[string]struct {
		why    string
		change func(s *scene)
		says   string // empty: it stays open
	}{
		"ByHand": {"A person promoted the version.", func(s *scene) { production(s, `"v1.0.0"`, `"v1.1.0"`) }, "the stage has v1.1.0"},
		"Range":  {"The range of the stage excludes the version now.", func(s *scene) { pipeline(s, "{range: ~1.0.0, by: pullRequest}") }, "v1.1.0 is not in the range any more"},
		"Back": {
			"The version was reverted in the stage that it had passed.",
			func(s *scene) { s.git("revert", "--no-edit", "HEAD") }, "stage testing went back to v1.0.0",
		},
		"ByPeople": {"People promote that stage now.", func(s *scene) { pipeline(s, "null") }, "this stage is no longer promoted by pull request"},
		"ByPush":   {"The stage is promoted by push now, and needs no request.", func(s *scene) { pipeline(s, "{}") }, "this stage is no longer promoted by pull request"},
		"Broken": {
			"The pipeline cannot be read, so the request stays open.",
			func(s *scene) { pipeline(s, "{range: newest, by: pullRequest}") }, "",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r := reviewed(t)
			s.wants("it has passed", s.promote(), "web production v1.1.0 open https://git.example/1")
			tc.change(s)
			s.stands["web"] = rollout.Progress{Halt: "wait"}
			s.push("a change")
			if err := s.repo.Git().Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			var err error
			if s.fleet, err = s.repo.Load(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			plan := s.plan()
			s.propose(&plan)
			is := r.all[0]
			if tc.says == "" {
				if is.State != forge.RequestOpen || r.wrote != 1 {
					t.Errorf("%s It is %+v", tc.why, is)
				}
				return
			}
			if is.State != forge.RequestClosed || !strings.HasPrefix(is.Body, "<!-- keelson: closed -->\n**Closed by Keelson:** `"+tc.says+"`\n\n<!-- keelson: promotes web to v1.1.0 in production;") {
				t.Errorf("%s It is %+v", tc.why, is)
			}
			if out := s.server("branch", "--list", "keelson/*"); out != "" {
				t.Errorf("there is still %s", out)
			}
			if !slices.ContainsFunc(plan.Steps, func(s promotion.Step) bool {
				return s.Stage == "production" && s.Action == promotion.ActionClose && s.Because == tc.says && s.PullRequest == is.URL
			}) {
				t.Errorf("%s The plan says %+v", tc.why, plan.Steps)
			}
			s.load()
			s.rests(r)
		})
	}
}

// A forge that is down changes nothing, and stops no push; what was begun is ended when it
// is back.
func TestRequestForgeDown(t *testing.T) {
	t.Parallel()
	s, r := reviewed(t)
	s.next()
	r.down = errors.New("no answer")
	plan := s.plan()
	if err := s.promoter.Ask(t.Context(), s.fleet, &plan); !errors.Is(err, r.down) {
		t.Fatalf("got %v", err)
	}
	if err := s.promoter.Propose(t.Context(), &plan); err != nil || s.server("branch", "--list", "keelson/*") != "" {
		t.Fatalf("something is proposed without knowing: %v", err)
	}
	r.down, r.refuses = nil, 1
	plan = s.plan()
	if err := s.promoter.Ask(t.Context(), s.fleet, &plan); err != nil {
		t.Fatal(err)
	}
	if err := s.promoter.Propose(t.Context(), &plan); err == nil || !strings.Contains(err.Error(), "web v1.1.0 in production by pull request: there is no such branch") {
		t.Fatalf("got %v", err)
	}
	if step := inStage(plan, "production"); step.To != "" || step.Action != "" || !strings.Contains(step.Because, "v1.1.0 waits: there is no such branch") {
		t.Errorf("got %+v", step)
	}
	head := s.server("rev-parse", inProduction)
	s.load()
	s.wants("it is back", s.promote(), "web testing v1.2.0", "web production v1.1.0 open https://git.example/1")
	if s.server("rev-parse", inProduction) != head {
		t.Error("the commit that was there is made again")
	}
}

// Without a forge it is said what is missing, and nothing is done.
func TestRequestNoForge(t *testing.T) {
	t.Parallel()
	s, _ := reviewed(t)
	s.forge = nil
	s.begin()
	if step := s.inProduction(); step.To != "" || step.Because != "v1.1.0 waits: it is promoted by pull request, and no forge is given (--forge)" {
		t.Errorf("got %+v", step)
	}
	s.wants("nothing", s.promote())
}

// Many requests come a few at a time, and a secret in a file is in none of them.
func TestRequestMany(t *testing.T) {
	t.Parallel()
	s, r := reviewed(t)
	layers := map[string]string{"testing": "v1.1.0", "production": "v1.0.0"}
	for stage, version := range layers {
		text := header + "Layer\nclusterSelector: {matchLabels: {stage: " + stage + "}}\ncomponents:\n"
		for i := range 12 {
			name := fmt.Sprintf("c%d", i)
			text += "  " + name + ": {version: " + version + "} # hunter22 `@everyone`\n"
			s.write("components/"+name+"/component.yaml", header+"Component\nnamespace: "+name+"\n")
			s.write("components/"+name+"/template/Chart.yaml", "apiVersion: v2\nname: "+name+"\nversion: 1.0.0\n")
			s.stands[name] = passed("testing")
		}
		s.write("layers/"+stage+".yaml", text)
	}
	s.push("many")
	for i := range 12 {
		for _, version := range []string{"v1.0.0", "v1.1.0"} {
			s.git("tag", fmt.Sprintf("c%d/%s", i, version))
		}
	}
	s.git("push", "-q", "--tags", "origin")
	s.begin()
	s.load()
	if out := s.promote(); len(out) != 10 || r.asked != 1 {
		t.Errorf("%v, and %d questions", out, r.asked)
	}
	if out := s.promote(); len(out) != 2 || r.asked != 2 {
		t.Errorf("%v, and %d questions", out, r.asked)
	}
	s.rests(r)
	for _, one := range r.all {
		if strings.Contains(one.Body, "hunter22") || !strings.Contains(one.Body, "`` +  "+strings.Split(one.Title, " ")[1]+": {version: v1.1.0} # ***REDACTED*** `@everyone` ``") {
			t.Errorf("it says\n%s", one.Body)
		}
	}
}

// A process opens them, updates them and looks on as they are merged.
func TestLoopRequests(t *testing.T) {
	t.Parallel()
	s, r := reviewed(t)
	r.refuses = 1 // as a forge that has not seen the branch yet
	c := s.start()
	c.comes(passed("testing"))
	opened := func(want string) func() bool {
		return func() bool { all := r.shown(); return len(all) == 1 && all[0] == want }
	}
	c.until("it is opened", opened("open: promote web to v1.1.0 in production"))
	s.git("tag", "web/v1.2.0")
	s.git("push", "-q", "--tags", "origin")
	c.news <- struct{}{} // a webhook
	c.until("it is updated", opened("open: promote web to v1.2.0 in production"))
	s.pull()
	s.git("fetch", "-q", "origin", inProduction)
	s.git("merge", "-q", "--no-ff", "-m", "merged", "FETCH_HEAD")
	s.git("push", "-q", "origin", "main")
	r.set(1, forge.RequestMerged)
	c.news <- struct{}{}
	c.until("the branch goes", func() bool { return c.server("branch", "--list", "keelson/*") == "" })
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.told) > 0 {
		t.Errorf("it was told of %v", c.told)
	}
}

// Of a stage that needs a forge, and a forge that is down, it is told once; the rest goes
// on.
func TestLoopRequestsFail(t *testing.T) {
	t.Parallel()
	s, r := reviewed(t)
	r.down = errors.New("no answer")
	c := s.start()
	c.comes(passed("testing"))
	told := func(n int) func() bool {
		return func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.told) == n }
	}
	c.until("it is told", told(1))
	s.git("tag", "db/v1.1.0")
	s.git("push", "-q", "--tags", "origin")
	c.mu.Lock()
	c.stands["db"] = rollout.Progress{}
	c.mu.Unlock()
	c.news <- struct{}{}
	c.until("another component goes on", func() bool { return c.subject() == "promote db to v1.1.0 in testing" })
	r.mu.Lock()
	r.down = nil
	r.mu.Unlock()
	c.Look()
	c.until("it is back", told(2))
	c.until("it is opened", func() bool { return len(r.shown()) == 1 })
	if !strings.Contains(fmt.Sprint(c.told), "[ask for the pull requests: no answer <nil>]") {
		t.Errorf("it was told of %v", c.told)
	}
	s.forge = nil
	s.begin()
	other := s.start()
	other.comes(passed("testing"))
	other.until("it is told", func() bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return len(other.told) == 1 && errors.Is(other.told[0], promotion.ErrNoForge)
	})
}
