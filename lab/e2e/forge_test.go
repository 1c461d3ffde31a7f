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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/gitea"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
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
	must.Test(t, func() {
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
		if all := r.comments(t.Context(), number); len(all) != 1 {
			t.Errorf("%d comments", len(all))
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
	})
}

// newReview starts the clusters and a Gitea, and creates its users.
func newReview(t *testing.T) *review {
	binary := os.Getenv("KEELSON_BINARY")
	if binary == "" {
		t.Skip("needs KEELSON_BINARY and a Gitea, which make forge builds")
	}
	set := must.Get(binaries.Find())
	folder := t.TempDir()
	r := &review{
		t: t, binary: binary, folder: folder, clone: harness.Clone(filepath.Join(folder, "fleet")),
		lab: &cluster.Lab{Dir: filepath.Join(folder, "clusters"), Say: func(line string) { t.Log(line) }},
	}
	r.kubeconfig = r.clusters(folder, set)
	data := filepath.Join(folder, "gitea")
	must.Do(errors.Join(os.Mkdir(data, 0o700), os.Mkdir(string(r.clone), 0o700)))
	r.forge = must.Get(gitea.Start(t.Context(), set, data))
	t.Cleanup(func() {
		if err := r.forge.Stop(); err != nil {
			t.Error(err)
		}
	})
	r.token, r.robot = must.Get(r.forge.User(t.Context(), owner, true)), must.Get(r.forge.User(t.Context(), "keelson", false))
	return r
}

// clusters starts the hub and the clusters of the stages, and writes a kubeconfig for all.
func (r *review) clusters(folder string, set binaries.Set) string {
	contexts := map[string][]byte{}
	path := filepath.Join(folder, "kubeconfig.yaml")
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
	return path
}

// admin returns a client of a cluster.
func (r *review) admin(name string) dynamic.Interface { return must.Get(harness.Admin(r.lab, name)) }

// merge merges a pull request. Before that it marks the ends of the audit logs.
func (r *review) merge(number int64) {
	r.marks = map[string]int64{}
	for _, name := range []string{staging, production} {
		r.marks[name] = must.Get(harness.AuditEnd(r.lab, name))
	}
	r.startedAt = time.Now()
	r.until("it can't be merged", startTime, func(ctx context.Context) { // Gitea checks for conflicts first
		r.call(ctx, http.MethodPost, fmt.Sprintf("repos/%s/pulls/%d/merge", repo, number), map[string]any{"Do": "merge"}, nil)
	})
}

// merged returns the current commit of a branch on the forge.
func (r *review) merged(branch string) string {
	r.git("fetch", "-q", "origin", branch)
	return r.git("rev-parse", "FETCH_HEAD")
}

// have waits until the named clusters have a value; without names, both clusters.
func (r *review) have(text string, names ...string) {
	if len(names) == 0 {
		names = []string{staging, production}
	}
	for _, name := range names {
		maps := r.admin(name).Resource(harness.Resource("v1/configmaps")).Namespace("web")
		r.until(name+" does not have "+text, startTime, func(ctx context.Context) {
			u := must.Get(maps.Get(ctx, "web", metav1.GetOptions{}))
			if is, _, _ := unstructured.NestedString(u.Object, "data", "text"); is != text {
				must.Failf("it has %q", is)
			}
		})
	}
}

// through waits until the rollout has ended.
func (r *review) through() {
	rollouts := r.admin(name).Resource(harness.Resource("keelson.io/v1alpha1/rollouts")).Namespace("keelson-system")
	r.until("the rollout does not end", startTime, func(ctx context.Context) {
		is := must.Get(rollouts.Get(ctx, "web", metav1.GetOptions{}))
		if phase, _, _ := unstructured.NestedString(is.Object, "status", "phase"); phase != "Complete" {
			must.Failf("it is %q", phase)
		}
	})
}

// inTurn waits until a merge has reached both clusters. It checks that each cluster was written
// once, production after staging had baked.
func (r *review) inTurn(text string) {
	r.have(text)
	var at []time.Time
	for _, name := range []string{staging, production} {
		events := slices.DeleteFunc(must.Get(harness.Audit(r.lab, name, r.marks[name])), func(e audit.Event) bool {
			return !e.Accepted() || e.Resource.Resource != "configmaps" || e.Resource.Namespace != "web"
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
	r.call(r.t.Context(), http.MethodPost, "user/repos", map[string]any{"name": "fleet", "private": true, "default_branch": "main"}, nil)
	// Setting a status requires write access; see the README.
	r.call(r.t.Context(), http.MethodPut, "repos/"+repo+"/collaborators/keelson", map[string]any{"permission": "write"}, nil)
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
	r.until("the repository stays empty", startTime, func(ctx context.Context) {
		var is struct{ Empty bool }
		if r.call(ctx, http.MethodGet, "repos/"+repo, nil, &is); is.Empty {
			must.Failf("it is empty")
		}
	})
	log := filepath.Join(r.folder, "keelson.log")
	r.keelson = must.Get(process.StartChild(process.Spec{
		Path: r.binary, Log: log,
		Env: append(os.Environ(), "KEELSON_GIT_USERNAME=keelson", "KEELSON_GIT_PASSWORD="+r.robot),
		Args: append([]string{
			"controller", "--repo", r.forge.URL + "/" + repo + ".git", "--kubeconfig", r.kubeconfig, "--interval", "10m", "--listen", "",
			"--cache-dir", filepath.Join(r.folder, "cache"), "--webhook-listen", "127.0.0.1:0", "--webhook-secret-file", r.file("secrets", secret),
			"--forge", "gitea", "--forge-url", r.forge.URL, "--forge-repository", repo, "--forge-token-file", r.file("token", r.robot),
		}, flags...),
	}, nil))
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
	r.until("the controller does not begin", startTime, func(context.Context) {
		r.hook = must.Get(harness.Served(log, "webhooks"))
		if out := must.Get(os.ReadFile(log)); !strings.Contains(string(out), "new revision") {
			must.Failf("its log is: %s", out)
		}
	})
	// The polling interval is ten minutes, so anything earlier comes from webhooks.
	r.call(r.t.Context(), http.MethodPost, "repos/"+repo+"/hooks", map[string]any{
		"type": "gitea", "active": true, "events": []string{"push", "pull_request", "pull_request_sync"},
		"config": map[string]any{"url": "http://" + r.hook + "/hook", "content_type": "json", "secret": secret},
	}, nil)
}

// file writes a file beside the repository, and returns its path.
func (r *review) file(name, content string) string {
	path := filepath.Join(r.folder, name)
	must.Do(os.WriteFile(path, []byte(content+"\n"), 0o600))
	return path
}

// call makes a request to Gitea's API as the owner.
func (r *review) call(ctx context.Context, method, path string, body, answer any) {
	must.Do(r.forge.As(r.token).Call(ctx, method, path, body, answer))
}

func (r *review) git(args ...string) string {
	return must.Get(r.clone.Git(r.t.Context(), args...))
}

// write sets the one value in the layer.
func (r *review) write(text string) {
	r.content("layers/10-base.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {}\ncomponents:\n  web: {version: HEAD, values: {text: "+text+"}}\n")
}

// content writes a file of the repository.
func (r *review) content(name, content string) {
	must.Do(r.clone.Write(name, content))
}

// push commits the files and pushes them to a branch.
func (r *review) push(branch string) string {
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "x")
	r.git("push", "-q", "origin", "HEAD:"+branch)
	r.startedAt = time.Now()
	return r.git("rev-parse", "HEAD")
}

func (r *review) open(branch string) int64 {
	var pr struct{ Number int64 }
	r.until("the pull request is not opened", startTime, func(ctx context.Context) { // Gitea needs a moment to process the push
		r.call(ctx, http.MethodPost, "repos/"+repo+"/pulls", map[string]any{"title": "a change", "head": branch, "base": "main"}, &pr)
	})
	r.startedAt = time.Now()
	return pr.Number
}

func (r *review) comments(ctx context.Context, number int64) (out []string) {
	var all []struct{ Body string }
	r.call(ctx, http.MethodGet, fmt.Sprintf("repos/%s/issues/%d/comments", repo, number), nil, &all)
	for _, c := range all {
		out = append(out, c.Body)
	}
	return out
}

// shows waits for the one comment and the status of a commit.
func (r *review) shows(number int64, revision, state, text string) {
	r.until("the preview does not come", forgeTime, func(ctx context.Context) {
		var status struct {
			Statuses []struct{ Context, Status, Description string }
		}
		r.call(ctx, http.MethodGet, "repos/"+repo+"/commits/"+revision+"/status", nil, &status)
		comments := r.comments(ctx, number)
		if len(status.Statuses) != 1 || status.Statuses[0].Context != "keelson/preview" || status.Statuses[0].Status != state ||
			len(comments) != 1 || !strings.Contains(comments[0], text) {
			must.Failf("%v %q", status.Statuses, comments)
		}
		r.t.Logf("%s: %s", state, status.Statuses[0].Description)
	})
	r.t.Logf("pull request %d shows %.12s after %s", number, revision, time.Since(r.startedAt).Round(10*time.Millisecond))
}

func (r *review) until(what string, limit time.Duration, check func(context.Context)) {
	must.Wrap(func() {
		must.Do(r.forge.Until(r.t.Context(), limit, func(ctx context.Context) error { return must.Try(func() { check(ctx) }) }))
	}, "%s", what)
}
