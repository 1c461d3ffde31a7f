//go:build !race

package applier_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/charttest"
)

// TestTwiceCharts: what public charts render, with their own values and with
// more of what they can do, is settled once it was applied.
func TestTwiceCharts(t *testing.T) {
	charts := charttest.Public(t)
	if len(charts) == 0 {
		t.Skipf("there are no public charts here: set %s to a folder of charts", charttest.Env)
	}
	rules, err := differ.NewRules(differ.Scopes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Parallel()
	apiservertest.Each(t, apiservertest.Versions(), func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		config := start(t).Config
		for _, dir := range charts {
			chart := filepath.Base(dir)
			sets := map[string]map[string]any{"own": nil}
			if more := moreValues(t, chart); more != nil {
				sets["more"] = more
			}
			for name, values := range sets {
				t.Run(chart+"/"+name, func(t *testing.T) {
					version := chartVersion(t, dir, name+"-"+chart)
					twice(t, config, func(c *applier.Cluster) applier.Desired {
						return applier.Desired{
							Component: version.Component, Version: version.Name, Tree: version.Tree, Revision: "abc", Namespace: "twice",
							Target: renderOn(t, c, renderer.Request{Version: version, Values: registry.ValuesFrom(values)}), Rules: rules,
						}
					})
				})
			}
		}
	})
}

// moreValues switches on what a public chart leaves off, and Kubernetes serves
// by itself; nil for a chart that is not among them. One of the values, resources of the whole pod, v1.33 knows and drops: its
// feature gate is off there.
func moreValues(t *testing.T, chart string) map[string]any {
	t.Helper()
	all := map[string]string{
		"alertmanager": `
configmapReload: {enabled: true}
dnsConfig: {options: [{name: ndots, value: "1"}]}
extraPodConfigs: {resources: {limits: {cpu: 2000m, memory: 2Gi}}}
extraEnv: [{name: EMPTY, value: ""}, {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
ingress: {enabled: true, tls: [{hosts: [a.example], secretName: a}]}
ingressPerReplica: {enabled: true}
podAntiAffinity: hard
podDisruptionBudget: {maxUnavailable: 1}
replicaCount: 2
resources: {limits: {cpu: "0.5", memory: 1024Mi}, requests: {cpu: 100m}}
service: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8]}
servicePerReplica: {enabled: true}
tolerations: [{key: a, operator: Exists}]
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}]`,
		"coredns": `
autoscaler: {enabled: true}
extraSecrets: [{name: etcd, mountPath: /etc/etcd, defaultMode: 480}]
hpa: {enabled: true, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]}
podDisruptionBudget: {maxUnavailable: 1}
prometheus: {service: {enabled: true}}
serviceAccount: {create: true}
zoneFiles: [{filename: example.db, domain: example.com, contents: a}]`,
		"kube-state-metrics": `
authFilter: {enabled: true}
autosharding: {enabled: true}
customResourceState: {enabled: true, config: {a: b}}
kubeRBACProxy: {enabled: true}
kubeconfig: {enabled: true, secret: YQ==}
networkPolicy: {enabled: true}
podDisruptionBudget: {maxUnavailable: 50%}
selfMonitor: {enabled: true}
startupProbe: {enabled: true}`,
		"metrics-server": `
addonResizer: {enabled: true}
apiService: {create: false}
hostNetwork: {enabled: true}
podDisruptionBudget: {enabled: true, minAvailable: 1, unhealthyPodEvictionPolicy: AlwaysAllow}
updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 0}}`,
		"prometheus-node-exporter": `
endpoints: [10.0.0.1]
kubeRBACProxy: {enabled: true}
networkPolicy: {enabled: true}
service: {type: NodePort, nodePort: 30910, externalTrafficPolicy: Local}
terminationGracePeriodSeconds: 0
terminationMessageParams: {enabled: true}`,
	}
	var values map[string]any
	if err := yaml.Unmarshal([]byte(all[chart]), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// TestTwiceFleet: the same of the example fleet, each cluster on an API server
// of its own.
func TestTwiceFleet(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, apiservertest.Versions(), func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		fleet := exampleFleet(t)
		if err := fleet.Problems.Err(); err != nil {
			t.Fatal(err)
		}
		for _, cluster := range fleet.Clusters {
			t.Run(cluster.Name, func(t *testing.T) {
				config := start(t).Config
				for _, d := range inOrder(t, cluster.Deliveries) {
					twice(t, config, func(c *applier.Cluster) applier.Desired {
						target := renderOn(t, c, renderer.Request{Version: d.Version, Values: d.Values, ImageMirrors: cluster.Spec.ImageMirrors})
						want, err := applier.NewDesired(fleet, d, target)
						if err != nil {
							t.Fatal(err)
						}
						return want
					})
				}
			})
		}
	})
}

// twice applies, then plans again, also after a restart.
func twice(t *testing.T, config *rest.Config, wanted func(*applier.Cluster) applier.Desired) {
	t.Helper()
	connect := func() *applier.Cluster {
		c, err := applier.New(applier.Options{Name: "test", Config: config, Shared: shared})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := connect()
	want := wanted(c)
	plan, err := c.Plan(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if n := plan.Plan.Count(differ.OpCreate); n == 0 || n != len(want.Target.Objects) {
		t.Errorf("%s: %d of %d objects would be created:\n%s", want.Component, n, len(want.Target.Objects), show(plan))
	}
	if _, err := c.Apply(t.Context(), plan, applier.ApplyOptions{Now: time.Unix(1, 0)}); err != nil {
		t.Fatal(err)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			c = connect()
		}
		p, err := c.Plan(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if !p.Settled() {
			t.Errorf("%s: a second plan (after a restart: %v) is not empty:\n%s", want.Component, restart, show(p))
		}
	}
	t.Logf("%s: %d objects", want.Component, len(want.Target.Objects))
}

// renderOn renders for what a cluster serves.
func renderOn(t *testing.T, c *applier.Cluster, r renderer.Request) *renderer.Target {
	t.Helper()
	var err error
	if r.Capabilities, err = c.Capabilities(t.Context()); err != nil {
		t.Fatal(err)
	}
	target, err := renderer.New().Render(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// chartVersion makes a component of a chart.
func chartVersion(t *testing.T, dir, component string) *registry.Version {
	t.Helper()
	v := &registry.Version{
		Component: component, Name: "v1.0.0", Tree: "tree-of-" + component,
		Spec: v1alpha1.Component{Namespace: "twice"},
	}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		v.Chart = append(v.Chart, registry.File{Name: filepath.ToSlash(rel), Data: data})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// inOrder puts what others depend on first.
func inOrder(t *testing.T, deliveries []*registry.Delivery) []*registry.Delivery {
	t.Helper()
	var out []*registry.Delivery
	done := func(component string) bool {
		return slices.ContainsFunc(out, func(d *registry.Delivery) bool { return d.Component == component })
	}
	for len(out) < len(deliveries) {
		before := len(out)
		for _, d := range deliveries {
			if !done(d.Component) && !slices.ContainsFunc(d.Version.Spec.DependsOn, func(on string) bool { return !done(on) }) {
				out = append(out, d)
			}
		}
		if len(out) == before {
			t.Fatal("components depend on each other in a circle, or on what is not there")
		}
	}
	return out
}

// exampleFleet publishes the example with the tags that its charts name.
func exampleFleet(t *testing.T) *registry.Fleet {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here")
	}
	dir := filepath.Join(t.TempDir(), "fleet")
	const shipped = "components/workload-controllers" // what the example's README has copied, too
	for from, to := range map[string]string{"../examples/fleet": dir, "../" + shipped: filepath.Join(dir, shipped)} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull,
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args, err, out)
		}
	}
	git("init", "-q", "-b", "main")
	git("add", "-A")
	git("commit", "-q", "-m", "Example fleet")
	files, err := filepath.Glob(filepath.Join(dir, "components", "*", "template", "Chart.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no charts: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var chart struct{ Version string }
		if err := yaml.Unmarshal(data, &chart); err != nil {
			t.Fatal(err)
		}
		git("tag", filepath.Base(filepath.Dir(filepath.Dir(file)))+"/v"+chart.Version)
	}
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: dir, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return fleet
}
