//go:build !race

package cmd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

// promotedFleet promotes web, in testing and then in production, each with a layer of its
// own, and has v1.1.0 published, which testing runs.
func promotedFleet(t *testing.T, name string) *fleet {
	t.Helper()
	f := newFleet(t, name)
	f.edit("fleet.yaml", "name: test", "name: test\npipeline: standard")
	f.write("pipelines/standard.yaml", `apiVersion: keelson.io/v1alpha1
kind: Pipeline
stages:
- name: testing
  clusterSelector: {matchLabels: {stage: testing}}
  promotion: {range: ~1, components: {web: ""}}
- name: production
  clusterSelector: {}
  promotion: {components: {web: ""}}
`)
	layer := func(stage, version string) string {
		return "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {matchLabels: {stage: " + stage + "}}\ncomponents:\n  web: {version: " + version + "} # of " + stage + "\n"
	}
	f.tag("web/v1.1.0")
	f.write("layers/20-testing.yaml", layer("testing", "v1.1.0"))
	f.write("layers/20-production.yaml", layer("production", "v1.0.0"))
	f.commit()
	return f
}

// createEvidence writes what the hub shows once testing has passed with what git says.
func createEvidence(t *testing.T, f *fleet, hub client.Client) {
	t.Helper()
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: f.dir, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	create := func(o client.Object) { // for this test alone: others list what there is
		if err := hub.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := hub.Delete(context.WithoutCancel(t.Context()), o); err != nil {
				t.Error(err)
			}
		})
	}
	component := f.rename.Replace("web")
	second, micro := &metav1.Time{Time: statusTime()}, &metav1.MicroTime{Time: statusTime()}
	r := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{
		Namespace: v1alpha1.Namespace, Name: component, Annotations: map[string]string{v1alpha1.AnnotationFleet: "test"},
	}}
	status := v1alpha1.RolloutStatus{
		Component: component, Pipeline: "standard", Change: "1", Phase: v1alpha1.RolloutComplete,
		Stages: []v1alpha1.RolloutStage{{Name: "testing", Passed: second}, {Name: "production", Passed: second}},
	}
	for name, stage := range map[string]string{"test": "testing", "prod": "production"} {
		cluster := fleet.Cluster(name)
		inputs, err := rollout.InputsOf(cluster, cluster.Delivery(component))
		if err != nil {
			t.Fatal(err)
		}
		d := &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.Namespace, Name: name + "." + component,
			Labels: map[string]string{v1alpha1.LabelCluster: name, v1alpha1.LabelComponent: component},
		}}
		create(d)
		d.Status = v1alpha1.DeliveryStatus{
			Sync: v1alpha1.SyncSynced, Health: v1alpha1.HealthHealthy, TargetHash: stage, Wanted: &v1alpha1.WantedDelivery{TargetHash: stage, Inputs: inputs},
		}
		if err := hub.Status().Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		status.Clusters = append(status.Clusters, v1alpha1.RolloutCluster{Name: name, Stage: stage, Want: stage, Released: micro, Settled: micro})
	}
	create(r)
	r.Status = status
	if err := hub.Status().Update(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// TestPromote: what has passed testing is committed for production: said, written into a
// work tree, and pushed.
func TestPromote(t *testing.T) {
	c := live(t)
	hub := hubClient(t)
	ensureNamespace(t, c)
	f := promotedFleet(t, "promoted")
	f.keelson("validate").want(t, 0)
	f.keelson("promote", "--dry-run").want(t, 0).says(t,
		"web in testing stays at v1.1.0: nothing later is there for it\n",
		"web in production stays at v1.0.0: v1.1.0 has not passed stage testing: no change of it has gone through the pipeline yet\n", "0 promotions\n")
	createEvidence(t, f, hub)
	const said = `web in production: v1.0.0 → v1.1.0, would be committed: it passed stage testing at 2026-03-01T12:00:00Z
  layers/20-production.yaml:5:26
  -  web: {version: v1.0.0} # of production
  +  web: {version: v1.1.0} # of production
1 promotion
`
	f.keelson("promote", "--dry-run").want(t, 0).says(t, said)
	f.keelson("promote", "gadgets", "--dry-run").want(t, 2).says(t, `no stage of a pipeline promotes a component "gadgets"`)

	url, credentials := servePushes(t, f)
	remote := func(args ...string) result {
		t.Helper()
		r := world{}.run(t, append([]string{"promote", "--repo", url, "--kubeconfig", kubeconfig, "--push-credentials", credentials}, args...)...)
		r.rename = f.rename
		return r.saysNot(t, "S3cret")
	}
	world{}.run(t, "promote", "--repo", url, "--kubeconfig", kubeconfig).want(t, 2).says(t, "give --push-credentials FILE")
	remote("--push-author", "x").want(t, 2).says(t, "--push-author takes NAME <EMAIL>")
	var plan struct {
		Branch string
		Steps  []struct{ Stage, From, To, Because, Before, After, Commit string }
	}
	decode(t, remote("-o", "json").want(t, 0).out, &plan)
	if s := plan.Steps; len(s) != 2 || plan.Branch != "main" || s[1].Stage != "production" || s[1].To != "v1.1.0" || len(s[1].Commit) != 40 || s[0].Commit != "" {
		t.Errorf("got %+v", plan)
	}
	remote().want(t, 0).says(t, "web in production stays at v1.1.0", "0 promotions\n")

	f.keelson("promote").want(t, 0).says(t, "v1.0.0 → v1.1.0, written: it passed", "git add layers/20-production.yaml && git commit -m 'promote web to v1.1.0 in production' -- layers/20-production.yaml")
	f.keelson("promote").want(t, 0) // the files say so already
	data, err := os.ReadFile(filepath.Join(f.dir, "layers/20-production.yaml"))
	if err != nil || !strings.HasSuffix(string(data), f.rename.Replace("\n  web: {version: v1.1.0} # of production\n")) {
		t.Errorf("the file is %q, %v", data, err)
	}
}

// pulls is a Gitea, as far as pull requests of Keelson's own go.
type pulls struct {
	*httptest.Server
	mu   sync.Mutex
	down bool
	all  []map[string]any
}

func servePulls(t *testing.T) (p *pulls, flags []string) {
	t.Helper()
	p = &pulls{}
	mux := http.NewServeMux()
	answer := func(serve func(r *http.Request) any) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.down || r.Header.Get("Authorization") != "token S3cret-of-the-forge" {
				http.Error(w, `{"message": "out of order"}`, http.StatusBadGateway)
				return
			}
			if err := json.NewEncoder(w).Encode(serve(r)); err != nil {
				t.Error(err)
			}
		}
	}
	read := func(r *http.Request) (out map[string]any) {
		if err := json.NewDecoder(r.Body).Decode(&out); err != nil {
			t.Error(err)
		}
		return out
	}
	mux.HandleFunc("GET /api/v1/user", answer(func(*http.Request) any { return map[string]any{"id": 7} }))
	mux.HandleFunc("GET /api/v1/repos/platform/fleet/pulls", answer(func(r *http.Request) any {
		out := []any{}
		for _, one := range p.all {
			if one["state"] == r.URL.Query().Get("state") {
				out = append(out, one)
			}
		}
		return out
	}))
	mux.HandleFunc("POST /api/v1/repos/platform/fleet/pulls", answer(func(r *http.Request) any {
		given, n := read(r), len(p.all)+1
		branch := func(name any) any { return map[string]any{"label": name, "ref": name, "repo_id": 1} }
		one := map[string]any{
			"number": n, "html_url": fmt.Sprintf("https://git.example/%d", n), "state": "open", "user": map[string]any{"id": 7}, "title": given["title"], "body": given["body"],
			"head": branch(given["head"]), "base": branch(given["base"]),
		}
		p.all = append(p.all, one)
		return one
	}))
	mux.HandleFunc("PATCH /api/v1/repos/platform/fleet/pulls/1", answer(func(r *http.Request) any {
		given := read(r)
		p.all[0]["title"], p.all[0]["body"] = given["title"], given["body"]
		if given["state"] != nil {
			p.all[0]["state"] = given["state"]
		}
		return p.all[0]
	}))
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("S3cret-of-the-forge\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return p, []string{"--forge", "gitea", "--forge-url", p.URL, "--forge-repository", "platform/fleet", "--forge-token-file", token}
}

// TestPromoteByPullRequest: a stage that is promoted by pull request gets one, which says
// the same the next time, and is closed when a person does what it says.
func TestPromoteByPullRequest(t *testing.T) {
	c := live(t)
	hub := hubClient(t)
	ensureNamespace(t, c)
	f := promotedFleet(t, "reviewed")
	f.edit("pipelines/standard.yaml", "clusterSelector: {}\n  promotion: {", "clusterSelector: {}\n  promotion: {by: pullRequest, ")
	f.commit()
	f.keelson("validate").want(t, 0)
	createEvidence(t, f, hub)
	f.keelson("promote").want(t, 0).says(t,
		"web in production stays at v1.0.0: v1.1.0 waits: it is promoted by pull request, and no forge is given (--forge)\n", "0 promotions\n")
	url, credentials := servePushes(t, f)
	forge, flags := servePulls(t)
	run := func(args ...string) result {
		t.Helper()
		r := world{}.run(t, append([]string{"promote", "--repo", url, "--kubeconfig", kubeconfig, "--push-credentials", credentials}, args...)...)
		r.rename = f.rename
		return r.saysNot(t, "S3cret")
	}
	with := func(args ...string) result { t.Helper(); return run(append(args, flags...)...) }
	f.keelson(append([]string{"promote"}, flags...)...).want(t, 2).says(t, "--forge opens pull requests from branches that were pushed", "give --repo URL")
	run("--forge", "gitea").want(t, 2).says(t, "--forge needs --forge-repository OWNER/NAME")
	run().want(t, 0).says(t, "no forge is given (--forge)", "0 promotions\n")

	const line = "  layers/20-production.yaml:5:26\n  -  web: {version: v1.0.0} # of production\n  +  web: {version: v1.1.0} # of production\n1 promotion\n"
	with("--dry-run").want(t, 0).says(t, "web in production: v1.0.0 → v1.1.0, pull request would be opened: it passed stage testing at 2026-03-01T12:00:00Z\n"+line)
	forge.down = true
	with().want(t, 2).says(t, "ask for the pull requests: ask whose token it is: out of order")
	forge.down = false
	if len(forge.all) > 0 {
		t.Fatalf("there are %v", forge.all)
	}
	with().want(t, 0).says(t, "web in production: v1.0.0 → v1.1.0, pull request https://git.example/1 opened: it passed stage testing at 2026-03-01T12:00:00Z\n"+line)
	if got := forge.all[0]["title"]; len(forge.all) != 1 || got != f.rename.Replace("promote web to v1.1.0 in production") {
		t.Fatalf("there are %v", forge.all)
	}
	var plan struct {
		Steps []struct{ Stage, To, By, Action, PullRequest string }
	}
	decode(t, with("-o", "json").want(t, 0).out, &plan)
	if s := plan.Steps[1]; s.Stage != "production" || s.To != "v1.1.0" || s.By != "pullRequest" || s.Action != "" || s.PullRequest != "https://git.example/1" {
		t.Errorf("got %+v", plan)
	}

	f.edit("layers/20-production.yaml", "v1.0.0", "v1.1.0")
	f.commit()
	f.git("push", "-q", strings.Replace(url, "://", "://robot:S3cret-of-the-writer@", 1), "main")
	with("--dry-run").want(t, 0).says(t, "web in production stays at v1.1.0, pull request https://git.example/1 would be closed: the stage has v1.1.0\n", "0 promotions\n")
	with().want(t, 0).says(t, "web in production stays at v1.1.0, pull request https://git.example/1 closed: the stage has v1.1.0\n")
	if forge.all[0]["state"] != "closed" {
		t.Errorf("there are %v", forge.all)
	}
	with().want(t, 0).says(t, "web in production stays at v1.1.0: nothing later is there for it\n")
}

// TestControllerPromotes: a tag is pushed, and nothing else: the controller commits it, and
// delivers what it has committed.
func TestControllerPromotes(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		f := newFleet(t, "follows")
		f.git("rm", "-q", "-r", "clusters/test")
		f.edit("components/gadgets/component.yaml", "namespace: gadgets", "namespace: gadgets\npipeline: one")
		f.write("pipelines/one.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Pipeline\nstages:\n- {name: all, clusterSelector: {}, promotion: {range: ~1}}\n")
		f.commit()
		repo, credentials := servePushes(t, f)
		hub := start(t).Config
		c := startController(t, f, hub, "--repo", repo, "--promote", "--push-credentials", credentials)
		api, err := kubernetes.NewForConfig(hub)
		if err != nil {
			t.Fatal(err)
		}
		name := f.rename.Replace("gadgets")
		size := func() string {
			m, err := api.CoreV1().ConfigMaps(name).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			return m.Data["size"]
		}
		until(t, "v1.0.0 is delivered", func() bool { return size() == "1" })
		f.edit("components/gadgets/template/templates/config.yaml", `"1"`, `"2"`)
		f.commit()
		f.tag("gadgets/v1.1.0")
		f.git("push", "-q", strings.Replace(repo, "://", "://robot:S3cret-of-the-writer@", 1), "main", f.rename.Replace("gadgets/v1.1.0"))
		until(t, "v1.1.0 is delivered", func() bool { return size() == "2" })
		f.git("pull", "-q", "--ff-only", repo, "main")
		f.git("diff", "--exit-code", "HEAD^", "HEAD", "--", "clusters", "components", "fleet.yaml", "pipelines")
		data, err := os.ReadFile(filepath.Join(f.dir, "layers/10-base.yaml"))
		if err != nil || !strings.Contains(string(data), name+":\n    version: v1.1.0\n") {
			t.Errorf("the layer says\n%s%v", data, err)
		}
		if log := c.log.String(); strings.Contains(log, "S3cret") || !strings.Contains(log, "msg=promoted component="+name+" stage=all from=v1.0.0 to=v1.1.0") {
			t.Errorf("the log is\n%s", log)
		}
	})
}

// TestPromoteFlags: what nothing could be promoted with is a mistake before anything is
// begun.
func TestPromoteFlags(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		args []string
		says string
	}{
		"NoPromote":     {[]string{"--push-credentials", "x"}, "give --promote, too"},
		"NoCredentials": {[]string{"--promote", "--repo", "https://git.example/fleet.git"}, "needs --push-credentials FILE"},
		"Folder":        {[]string{"--promote", "--push-credentials", "x", "--repo", "."}, "is a folder: give --repo URL"},
		"OneCluster":    {[]string{"--promote", "--push-credentials", "x", "--cluster", "a", "--repo", "https://git.example/fleet.git"}, "contradict each other"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keelson(t, append([]string{"controller", "--listen", ""}, c.args...)...).want(t, 2).says(t, c.says)
		})
	}
}

// servePushes serves a copy of a fleet with git's own server, which takes pushes of one
// login.
func servePushes(t *testing.T, f *fleet) (url, credentials string) {
	t.Helper()
	bin, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs the git binary for its HTTP server")
	}
	root := t.TempDir()
	f.git("clone", "-q", "--bare", f.dir, filepath.Join(root, "fleet.git"))
	backend := &cgi.Handler{Path: bin, Args: []string{"http-backend"}, Env: []string{
		"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); strings.Contains(r.URL.String(), "receive-pack") && password != "S3cret-of-the-writer" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	credentials = filepath.Join(root, "logins.yaml")
	if err := os.WriteFile(credentials, []byte(server.URL+": {username: robot, password: S3cret-of-the-writer}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return server.URL + "/fleet.git", credentials
}
