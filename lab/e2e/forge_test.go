package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"

	"github.com/keelson-io/keelson/lab/harness"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/gitea"
	"github.com/keelson-io/keelson/lab/process"
)

const (
	// forgeTime is the time limit after a push for the comment and the status.
	forgeTime = 10 * time.Second
	// startTime is the time limit for everything else.
	startTime = time.Minute
	secret    = "a secret of the lab, of some length"
	owner     = "lab"
	repo      = owner + "/fleet"
	// staging and production are clusters. Each is in the stage of the same name.
	staging, production = "staging", "production"
	// bake is how long staging runs a change before production gets it.
	bake = 2 * time.Second
)

// review is a Gitea with the fleet repository, and a controller that watches it.
type review struct {
	t         *testing.T
	lab       *cluster.Lab
	marks     map[string]int64 // previous ends of the clusters' audit logs
	forge     *gitea.Server
	token     string // of the owner
	robot     string // token of Keelson
	binary    string
	folder    string // of all files
	clone     harness.Clone
	keelson   *process.Child
	hook      string // address of the controller's webhook receiver
	startedAt time.Time

	kubeconfig string
}

// TestForge pushes branches to a real Gitea, and checks what a real controller writes to their pull
// requests.
func TestForge(t *testing.T) {
	r := newReview(t)
	const all = "- {name: %[1]s, clusterSelector: {matchLabels: {stage: %[1]s}}, bake: %[2]s}\n"
	r.publish(fmt.Sprintf(all, staging, bake)+fmt.Sprintf(all, production, bake), "{{ .Values.text | quote }}")
	r.write("one")
	r.push("main")
	r.start()

	r.git("checkout", "-q", "-b", "topic")
	r.write("two")
	first := r.push("topic")
	number := r.open("topic")
	r.shows(number, first, "success", "+two")

	r.write("three")
	second := r.push("topic")
	r.shows(number, second, "success", "+three")

	r.write("{ unfinished")
	third := r.push("topic")
	r.shows(number, third, "failure", "layers/10-base.yaml")
	if all, err := r.comments(t.Context(), number); err != nil || len(all) != 1 {
		t.Errorf("%d comments, %v", len(all), err)
	}

	before := r.merged("main")
	r.write("four")
	r.shows(number, r.push("topic"), "success", "+four")
	r.have("one") // an open pull request changes nothing
	r.merge(number)
	r.inTurn("four")
	r.through() // else the revert would undo a change that still bakes, and would not wait for a bake

	merged := r.merged("main")
	if before == merged {
		t.Fatal("the merge is not in main")
	}
	r.git("checkout", "-q", "-b", "undo", merged)
	r.git("revert", "--no-edit", "-m", "1", merged)
	r.git("push", "-q", "origin", "undo")
	undo := r.open("undo")
	r.shows(undo, r.git("rev-parse", "HEAD"), "success", "+one")
	r.merge(undo)
	r.inTurn("one")
}

// newReview starts the clusters and a Gitea, and creates its users.
func newReview(t *testing.T) *review {
	t.Helper()
	binary := os.Getenv("KEELSON_BINARY")
	if binary == "" {
		t.Skip("needs KEELSON_BINARY and a Gitea, which make forge builds")
	}
	set, err := binaries.Find()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	r := &review{
		t: t, binary: binary, folder: folder, clone: harness.Clone(filepath.Join(folder, "fleet")),
		lab: &cluster.Lab{Dir: filepath.Join(folder, "clusters"), Say: func(line string) { t.Log(line) }},
	}
	r.kubeconfig = r.clusters(folder, set)
	data := filepath.Join(folder, "gitea")
	if err := errors.Join(os.Mkdir(data, 0o700), os.Mkdir(string(r.clone), 0o700)); err != nil {
		t.Fatal(err)
	}
	if r.forge, err = gitea.Start(t.Context(), set, data); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.forge.Stop(); err != nil {
			t.Error(err)
		}
	})
	if r.token, err = r.forge.User(t.Context(), owner, true); err != nil {
		t.Fatal(err)
	}
	if r.robot, err = r.forge.User(t.Context(), "keelson", false); err != nil {
		t.Fatal(err)
	}
	return r
}

// must fails the test if a step of package must fails.
func (r *review) must(step func()) {
	r.t.Helper()
	if err := must.Try(step); err != nil {
		r.t.Fatal(err)
	}
}

// clusters starts the hub and the clusters of the stages, and writes a kubeconfig for all.
func (r *review) clusters(folder string, set binaries.Set) string {
	r.t.Helper()
	contexts := map[string][]byte{}
	path := filepath.Join(folder, "kubeconfig.yaml")
	r.must(func() {
		for _, name := range []string{name, staging, production} {
			r.t.Cleanup(func() {
				if err := r.lab.Down(context.WithoutCancel(r.t.Context()), name); err != nil {
					r.t.Error(err)
				}
			})
			must.Do(r.lab.Up(r.t.Context(), name, cluster.Change{ControlPlaneOnly: new(true)}, set))
			contexts[name] = must.Get(harness.Kubeconfig(r.lab, name, cluster.Admin))
		}
		must.Do(harness.WriteKubeconfig(path, name, contexts))
	})
	return path
}

// admin returns a client of a cluster.
func (r *review) admin(name string) (client dynamic.Interface) {
	r.t.Helper()
	r.must(func() { client = must.Get(harness.Admin(r.lab, name)) })
	return client
}

// merge merges a pull request. Before that it marks the ends of the audit logs.
func (r *review) merge(number int64) {
	r.t.Helper()
	r.marks = map[string]int64{}
	r.must(func() {
		for _, name := range []string{staging, production} {
			r.marks[name] = must.Get(harness.AuditEnd(r.lab, name))
		}
	})
	r.startedAt = time.Now()
	r.until("it can't be merged", startTime, func(ctx context.Context) error { // Gitea checks for conflicts first
		return r.forge.As(r.token).Call(ctx, http.MethodPost, fmt.Sprintf("repos/%s/pulls/%d/merge", repo, number), map[string]any{"Do": "merge"}, nil)
	})
}

// merged returns the current commit of a branch on the forge.
func (r *review) merged(branch string) string {
	r.t.Helper()
	r.git("fetch", "-q", "origin", branch)
	return r.git("rev-parse", "FETCH_HEAD")
}

// have waits until the named clusters have a value; without names, both clusters.
func (r *review) have(text string, names ...string) {
	r.t.Helper()
	if len(names) == 0 {
		names = []string{staging, production}
	}
	for _, name := range names {
		maps := r.admin(name).Resource(harness.Resource("v1/configmaps")).Namespace("web")
		r.until(name+" does not have "+text, startTime, func(ctx context.Context) error {
			u, err := maps.Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if is, _, _ := unstructured.NestedString(u.Object, "data", "text"); is != text {
				return fmt.Errorf("it has %q", is)
			}
			return nil
		})
	}
}

// through waits until the rollout has ended.
func (r *review) through() {
	r.t.Helper()
	rollouts := r.admin(name).Resource(harness.Resource("keelson.io/v1alpha1/rollouts")).Namespace("keelson-system")
	r.until("the rollout does not end", startTime, func(ctx context.Context) error {
		is, err := rollouts.Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if phase, _, _ := unstructured.NestedString(is.Object, "status", "phase"); phase != "Complete" {
			return fmt.Errorf("it is %q", phase)
		}
		return nil
	})
}

// inTurn waits until a merge has reached both clusters. It checks that each cluster was written
// once, production after staging had baked.
func (r *review) inTurn(text string) {
	r.t.Helper()
	r.have(text)
	var at []time.Time
	for _, name := range []string{staging, production} {
		var events []audit.Event
		r.must(func() { events = must.Get(harness.Audit(r.lab, name, r.marks[name])) })
		events = slices.DeleteFunc(events, func(e audit.Event) bool {
			return !e.Write() || e.DryRun || e.Code >= 300 || e.Resource.Resource != "configmaps" || e.Resource.Namespace != "web"
		})
		if len(events) != 1 {
			r.t.Fatalf("%s: %d writes: %v", name, len(events), events)
		}
		at = append(at, events[0].Received)
	}
	if at[1].Sub(at[0]) < bake {
		r.t.Errorf("production had it %s after staging", at[1].Sub(at[0]))
	}
	since := func(t time.Time) time.Duration { return t.Sub(r.startedAt).Round(10 * time.Millisecond) }
	r.t.Logf("the merge reached staging after %s, production after %s", since(at[0]), since(at[1]))
}

// publish creates the repository with its first files, and gives Keelson's user access.
func (r *review) publish(stages, text string) {
	r.t.Helper()
	r.call(http.MethodPost, "user/repos", map[string]any{"name": "fleet", "private": true, "default_branch": "main"}, nil)
	// Setting a status requires write access; see the README.
	r.call(http.MethodPut, "repos/"+repo+"/collaborators/keelson", map[string]any{"permission": "write"}, nil)
	const header = "apiVersion: keelson.io/v1alpha1\nkind: "
	on := func(name string) string {
		return header + "Cluster\nlabels: {stage: " + name + "}\nconnection: {context: " + name + "}\n"
	}
	for name, content := range map[string]string{
		"clusters/staging/cluster.yaml":               on(staging),
		"clusters/production/cluster.yaml":            on(production),
		"fleet.yaml":                                  header + "Fleet\nname: forge\npipeline: staged\n",
		"pipelines/staged.yaml":                       header + "Pipeline\nstages:\n" + stages,
		"components/web/component.yaml":               header + "Component\nnamespace: web\n",
		"components/web/template/Chart.yaml":          "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"components/web/template/templates/text.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: " + text + "}\n",
	} {
		r.content(name, content)
	}
	r.git("init", "-q", "-b", "main")
	r.git("remote", "add", "origin", r.forge.Remote(r.token, repo))
}

// start starts a controller once Gitea has the repository, and adds its webhook to Gitea.
func (r *review) start(flags ...string) {
	r.t.Helper()
	r.until("the repository stays empty", startTime, func(ctx context.Context) error {
		var is struct{ Empty bool }
		if err := r.forge.As(r.token).Call(ctx, http.MethodGet, "repos/"+repo, nil, &is); err != nil || is.Empty {
			return errors.Join(err, errors.New("it is empty"))
		}
		return nil
	})
	log := filepath.Join(r.folder, "keelson.log")
	var err error
	r.keelson, err = process.StartChild(process.Spec{
		Path: r.binary, Log: log,
		Env: append(os.Environ(), "KEELSON_GIT_USERNAME=keelson", "KEELSON_GIT_PASSWORD="+r.robot),
		Args: append([]string{
			"controller", "--repo", r.forge.URL + "/" + repo + ".git", "--kubeconfig", r.kubeconfig, "--interval", "10m", "--listen", "",
			"--cache-dir", filepath.Join(r.folder, "cache"), "--webhook-listen", "127.0.0.1:0", "--webhook-secret-file", r.file("secrets", secret),
			"--forge", "gitea", "--forge-url", r.forge.URL, "--forge-repository", repo, "--forge-token-file", r.file("token", r.robot),
		}, flags...),
	}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := r.keelson.Stop(30 * time.Second); err != nil {
			r.t.Error(err)
		}
		out, err := os.ReadFile(log)
		if err != nil || strings.Contains(string(out), r.robot) {
			r.t.Errorf("the log is not there, or has the token: %v", err)
		}
		r.t.Logf("%s", out)
	})
	r.until("the controller does not begin", startTime, func(context.Context) error {
		out, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		_, after, found := strings.Cut(string(out), `msg="serving webhooks at /hook" address=`)
		if !found || !strings.Contains(string(out), "new revision") {
			return fmt.Errorf("its log is: %s", out)
		}
		r.hook, _, _ = strings.Cut(after, "\n")
		return nil
	})
	// The polling interval is ten minutes, so anything earlier comes from webhooks.
	r.call(http.MethodPost, "repos/"+repo+"/hooks", map[string]any{
		"type": "gitea", "active": true, "events": []string{"push", "pull_request", "pull_request_sync"},
		"config": map[string]any{"url": "http://" + r.hook + "/hook", "content_type": "json", "secret": secret},
	}, nil)
}

// file writes a file beside the repository, and returns its path.
func (r *review) file(name, content string) string {
	r.t.Helper()
	path := filepath.Join(r.folder, name)
	if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

func (r *review) call(method, path string, body, answer any) {
	r.t.Helper()
	if err := r.forge.As(r.token).Call(r.t.Context(), method, path, body, answer); err != nil {
		r.t.Fatal(err)
	}
}

func (r *review) git(args ...string) string {
	r.t.Helper()
	out, err := r.clone.Git(r.t.Context(), args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// write sets the one value in the layer.
func (r *review) write(text string) {
	r.t.Helper()
	r.content("layers/10-base.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {}\ncomponents:\n  web: {version: HEAD, values: {text: "+text+"}}\n")
}

// content writes a file of the repository.
func (r *review) content(name, content string) {
	r.t.Helper()
	if err := r.clone.Write(name, content); err != nil {
		r.t.Fatal(err)
	}
}

// push commits the files and pushes them to a branch.
func (r *review) push(branch string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "x")
	r.git("push", "-q", "origin", "HEAD:"+branch)
	r.startedAt = time.Now()
	return r.git("rev-parse", "HEAD")
}

func (r *review) open(branch string) int64 {
	r.t.Helper()
	var pr struct{ Number int64 }
	r.until("the pull request is not opened", startTime, func(ctx context.Context) error { // Gitea needs a moment to process the push
		return r.forge.As(r.token).Call(ctx, http.MethodPost, "repos/"+repo+"/pulls", map[string]any{"title": "a change", "head": branch, "base": "main"}, &pr)
	})
	r.startedAt = time.Now()
	return pr.Number
}

func (r *review) comments(ctx context.Context, number int64) ([]string, error) {
	var all []struct{ Body string }
	err := r.forge.As(r.token).Call(ctx, http.MethodGet, fmt.Sprintf("repos/%s/issues/%d/comments", repo, number), nil, &all)
	var out []string
	for _, c := range all {
		out = append(out, c.Body)
	}
	return out, err
}

// shows waits for the one comment and the status of a commit.
func (r *review) shows(number int64, revision, state, text string) {
	r.t.Helper()
	r.until("the preview does not come", forgeTime, func(ctx context.Context) error {
		var status struct {
			Statuses []struct{ Context, Status, Description string }
		}
		if err := r.forge.As(r.token).Call(ctx, http.MethodGet, "repos/"+repo+"/commits/"+revision+"/status", nil, &status); err != nil {
			return err
		}
		comments, err := r.comments(ctx, number)
		if err != nil {
			return err
		}
		if len(status.Statuses) != 1 || status.Statuses[0].Context != "keelson/preview" || status.Statuses[0].Status != state ||
			len(comments) != 1 || !strings.Contains(comments[0], text) {
			return fmt.Errorf("%v %q", status.Statuses, comments)
		}
		r.t.Logf("%s: %s", state, status.Statuses[0].Description)
		return nil
	})
	r.t.Logf("pull request %d shows %.12s after %s", number, revision, time.Since(r.startedAt).Round(10*time.Millisecond))
}

func (r *review) until(what string, limit time.Duration, check func(context.Context) error) {
	r.t.Helper()
	if err := r.forge.Until(r.t.Context(), limit, check); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}
