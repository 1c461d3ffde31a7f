package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/fleet"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// rolloutStages returns the stages of a pipeline with their clusters. Each cluster has an
// API server and controllers, and kwok simulates its pods.
func rolloutStages() []oracle.CourseStage {
	return []oracle.CourseStage{
		{Name: "testing", Clusters: []string{"testing-1", "testing-2"}, MaxConcurrent: 2, Bake: time.Second, Before: []string{"ready"}},
		{Name: "canary", Clusters: []string{"canary-1"}, MaxConcurrent: 1, Bake: time.Second, Before: []string{"ready"}, After: []string{"good"}},
		{
			Name: "smallflow", Clusters: []string{"smallflow-1", "smallflow-2"}, MaxConcurrent: 1,
			Silence: time.Second, Bake: time.Second, After: []string{"good"}, Approved: approvalCheck,
		},
		{
			Name: "production", Clusters: []string{"production-1", "production-2", "production-3"}, MaxConcurrent: 1,
			Silence: time.Second, Bake: time.Second, Before: []string{"ready"},
		},
	}
}

const (
	// approvalCheck is the name of a check that waits for an approval in git.
	approvalCheck = "approval"
	// failsIn is the stage whose after check fails in one planned change. crashesIn is the stage
	// in which another version crashes.
	failsIn, crashesIn = "smallflow", "canary"
)

// rolloutFleet is a fleet of clusters in which changes of components go from stage to stage.
// The hub is the world's own cluster.
type rolloutFleet struct {
	*world
	stages     []oracle.CourseStage
	clients    map[string]dynamic.Interface // by cluster; the hub's key is target
	proxies    map[string]*proxy.Proxy
	kubeconfig string // through the proxies
	straight   string // without the proxies
	repo       string
	checks     *checkServer
}

func (c *rolloutFleet) clusters() (all []string) {
	for _, s := range c.stages {
		all = append(all, s.Clusters...)
	}
	return all
}

// newRolloutFleet returns a fleet that begin has to start.
func (w *world) newRolloutFleet() *rolloutFleet {
	return &rolloutFleet{world: w, stages: rolloutStages(), clients: map[string]dynamic.Interface{}, proxies: map[string]*proxy.Proxy{}}
}

// begin starts the clusters and creates the repository. No component is in git yet.
func (c *rolloutFleet) begin(ctx context.Context) {
	all := c.clusters()
	must.All(len(all), func(i int) {
		must.Do(c.lab.Up(ctx, all[i], cluster.Change{Nodes: new(1), Audit: new(cluster.AuditSecrets)}, c.set))
	})
	c.connect()
	c.checks = newCheckServer()
	files := map[string]string{"fleet.yaml": apiVersion + "kind: Fleet\nname: rollouts\n"}
	for _, s := range c.stages {
		for _, name := range s.Clusters {
			files["clusters/"+name+"/cluster.yaml"] = fmt.Sprintf("%skind: Cluster\nlabels: {stage: %s}\nconnection:\n  context: %s\n", apiVersion, s.Name, name)
		}
	}
	c.repo = c.path("repositories", "rollouts.git")
	must.Do(fleet.Create(ctx, c.repo, commitOf(files)))
}

// connect makes the clients, proxies and kubeconfigs of all clusters.
func (c *rolloutFleet) connect() {
	through, straight := map[string][]byte{}, map[string][]byte{}
	for _, name := range append(c.clusters(), target) {
		c.clients[name] = must.Get(harness.Admin(c.lab, name))
		c.proxies[name] = c.newProxy(name, proxy.Options{Bodies: true})
		through[name] = must.Get(c.proxies[name].Kubeconfig(cluster.Keelson))
		straight[name] = must.Get(harness.Kubeconfig(c.lab, name, cluster.Keelson))
	}
	c.kubeconfig, c.straight = c.path("through.kubeconfig.yaml"), c.path("past.kubeconfig.yaml")
	must.Do(harness.WriteKubeconfig(c.kubeconfig, "", through))
	must.Do(harness.WriteKubeconfig(c.straight, "", straight))
}

// use makes a function decide about the requests to all clusters; nil lets all pass.
func (c *rolloutFleet) use(decide func(on string, r proxy.Request) proxy.Verdict) {
	for name, p := range c.proxies {
		if decide == nil {
			p.Use(nil)
			continue
		}
		p.Use(func(r proxy.Request) proxy.Verdict { return decide(name, r) })
	}
}

// closeAll removes the clusters, except the hub's cluster, which belongs to the world.
func (c *rolloutFleet) closeAll(ctx context.Context) error {
	if c.checks != nil {
		c.checks.server.Close()
	}
	var errs []error
	for _, name := range c.clusters() {
		errs = append(errs, c.lab.Down(ctx, name))
	}
	return errors.Join(errs...)
}

// events returns the events of the hub's audit log, and of the clusters' logs by cluster.
func (c *rolloutFleet) events() (hub []audit.Event, clusters map[string][]audit.Event) {
	clusters = map[string][]audit.Event{}
	for _, name := range c.clusters() {
		clusters[name] = must.Get(harness.Audit(c.lab, name, 0))
	}
	return must.Get(harness.Audit(c.lab, target, 0)), clusters
}

// rollout reads the Rollout of a component, without the proxies.
func (c *rolloutFleet) rollout(ctx context.Context, component string) oracle.Rollout {
	u := must.Get(c.clients[target].Resource(harness.Resource("keelson.io/v1alpha1/rollouts")).
		Namespace(systemNS).Get(ctx, component, metav1.GetOptions{}))
	return must.Get(oracle.ReadRollout(must.Get(u.MarshalJSON())))
}

// statuses returns a component's Deliveries on the hub, by cluster.
func (c *rolloutFleet) statuses(ctx context.Context, component string) map[string]harness.Delivery {
	out := map[string]harness.Delivery{}
	for name, d := range must.Get(harness.Deliveries(ctx, c.clients[target], componentLabel+"="+component)) {
		cluster, _, _ := strings.Cut(name, ".")
		out[cluster] = d
	}
	return out
}

// checkServer answers the HTTP checks of pipelines. A check passes unless refuse was
// called for it.
type checkServer struct {
	server *httptest.Server

	mu       sync.Mutex
	refusals map[string]int // failures left, by component, stage and check; below 0: no limit
	answers  map[string][]oracle.Answer
}

func newCheckServer() *checkServer {
	a := &checkServer{refusals: map[string]int{}, answers: map[string][]oracle.Answer{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{component}/{stage}/{check}", a.answer)
	a.server = httptest.NewServer(mux)
	return a
}

func (a *checkServer) answer(w http.ResponseWriter, r *http.Request) {
	component, stage, check := r.PathValue("component"), r.PathValue("stage"), r.PathValue("check")
	key := component + "/" + stage + "/" + check
	a.mu.Lock()
	left := a.refusals[key]
	if left > 0 {
		a.refusals[key]--
	}
	a.answers[component] = append(a.answers[component], oracle.Answer{Time: time.Now(), Stage: stage, Check: check, Yes: left == 0})
	a.mu.Unlock()
	if left != 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// refuse lets a check fail for a number of times. Below 0, the check fails until the next
// call of refuse.
func (a *checkServer) refuse(component, stage, check string, times int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refusals[component+"/"+stage+"/"+check] = times
}

func (a *checkServer) of(component string) []oracle.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.answers[component])
}

// rolloutComponent is a component of the fleet, with its approvals.
type rolloutComponent struct {
	*rolloutFleet
	name string
	// mu guards approvals, which are all approvals that were committed.
	mu        sync.Mutex
	approvals []oracle.Approval
}

// pipeline returns the component's Pipeline. timeout, unless 0, is the timeout of the
// after checks in the stage failsIn.
func (c *rolloutComponent) pipeline(timeout time.Duration) string {
	var b strings.Builder
	b.WriteString(apiVersion + "kind: Pipeline\nstages:\n")
	check := func(stage, name, more string) string {
		return fmt.Sprintf("  - {name: %s, http: {url: '%s/$(component)/%s/%s'}%s}\n", name, c.checks.server.URL, stage, name, more)
	}
	for _, s := range c.stages {
		fmt.Fprintf(&b, "- name: %[1]s\n  clusterSelector: {matchLabels: {stage: %[1]s}}\n  maxConcurrent: %[2]d\n  bake: %[3]s\n", s.Name, s.MaxConcurrent, s.Bake)
		if s.Silence > 0 {
			fmt.Fprintf(&b, "  silence: %s\n", s.Silence)
		}
		if s.Name == crashesIn {
			b.WriteString("  onFailure: rollback\n")
		}
		if len(s.Before) > 0 || s.Approved != "" {
			b.WriteString("  before:\n")
		}
		for _, name := range s.Before {
			b.WriteString(check(s.Name, name, ", for: 1s"))
		}
		if s.Approved != "" {
			fmt.Fprintf(&b, "  - {name: %s, approval: {because: look at it}}\n", s.Approved)
		}
		if len(s.After) > 0 {
			b.WriteString("  after:\n")
		}
		for _, name := range s.After {
			more := ""
			if s.Name == failsIn && timeout > 0 {
				more = ", timeout: " + timeout.String()
			}
			b.WriteString(check(s.Name, name, more))
		}
	}
	return b.String()
}

// componentTemplate is the chart template of all versions. DEADLINE is short where the version
// crashes, and long elsewhere, so that a slow machine causes no failure.
const componentTemplate = `apiVersion: v1
kind: ConfigMap
metadata: {name: manifest, annotations: {` + oracle.VersionNote + `: "v{{ .Chart.Version }}"}}
data: {version: "v{{ .Chart.Version }}"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app, annotations: {` + oracle.VersionNote + `: "v{{ .Chart.Version }}"}}
spec:
  replicas: 1
  progressDeadlineSeconds: DEADLINE
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      containers:
      - {name: app, image: "registry.example.com/app:v{{ .Chart.Version }}SUFFIX"}
`

// publish pushes a version to git with a tag, and sets the version for every cluster.
func (c *rolloutComponent) publish(ctx context.Context, version string, more map[string]string) {
	suffix, deadline := "", "600"
	if version == crashing {
		suffix, deadline = "{{ .Values.suffix }}", "{{ if .Values.suffix }}8{{ else }}600{{ end }}"
	}
	files := componentFiles(c.name, "namespace: "+c.name+"\npipeline: "+c.name+"\n", strings.TrimPrefix(version, "v"),
		strings.NewReplacer("SUFFIX", suffix, "DEADLINE", deadline).Replace(componentTemplate))
	files["components/"+c.name+"/template/values.yaml"] = "suffix: \"\"\n"
	maps.Copy(files, c.wanted(version))
	maps.Copy(files, more)
	commit := commitOf(files)
	commit.Tag = c.name + "/" + version
	must.Do(fleet.Push(ctx, c.repo, commit))
}

// wanted returns the files that set the version of all clusters and the pipeline.
func (c *rolloutComponent) wanted(version string) map[string]string {
	return map[string]string{
		"layers/10-" + c.name + ".yaml":         apiVersion + "kind: Layer\nclusterSelector: {}\ncomponents:\n  " + c.name + ":\n    version: " + version + "\n",
		"layers/20-" + c.name + "-crashes.yaml": apiVersion + "kind: Layer\nclusterSelector: {matchLabels: {stage: " + crashesIn + "}}\ncomponents:\n  " + c.name + ":\n    values: {suffix: -crash}\n",
		"pipelines/" + c.name + ".yaml":         c.pipeline(0),
	}
}

// approve commits an approval for the current stage, with the stage's current hash, if the
// stage waits for an approval.
func (c *rolloutComponent) approve(ctx context.Context, r oracle.Rollout) {
	i := slices.IndexFunc(c.stages, func(s oracle.CourseStage) bool { return s.Name == r.Stage })
	if i < 0 || c.stages[i].Approved == "" || r.Back || r.Phase != "Progressing" {
		return
	}
	s := r.StageNamed(r.Stage)
	c.mu.Lock()
	defer c.mu.Unlock()
	given := slices.ContainsFunc(c.approvals, func(a oracle.Approval) bool { return a.Stage == s.Name && a.Hash == s.Evidence })
	if s.Opened != nil || given || tally(r, func(s oracle.RolloutStage) int { return one(s.Name == r.Stage) * asked(false)(s) }) == 0 {
		return
	}
	c.approvals = append(c.approvals, oracle.Approval{Time: time.Now(), Stage: s.Name, Hash: s.Evidence})
	var b strings.Builder
	b.WriteString(apiVersion + "kind: Approvals\napprovals:\n")
	for _, a := range c.approvals {
		fmt.Fprintf(&b, "- {component: %s, stage: %s, hash: %s, because: looked at}\n", c.name, a.Stage, a.Hash)
	}
	c.push(ctx, c.repo, map[string]string{"approvals/" + c.name + ".yaml": b.String()})
}

// course returns the rules for this component's changes, with all answers and approvals so
// far.
func (c *rolloutComponent) course() oracle.Course {
	c.mu.Lock()
	defer c.mu.Unlock()
	return oracle.Course{Component: c.name, Stages: c.stages, Answers: c.checks.of(c.name), Approvals: slices.Clone(c.approvals)}
}
