package examples_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
)

// rendered are targets by cluster and component.
type rendered map[string]map[string]*renderer.Target

// TestFleet publishes the example with its script, and looks at what each
// cluster would get.
func TestFleet(t *testing.T) {
	t.Parallel()
	fleet := load(t, publish(t))
	if err := fleet.Problems.Err(); err != nil {
		t.Fatalf("the example has mistakes:\n%v", err)
	}
	cache := renderer.NewCache(renderer.New(), 64<<20)
	all := rendered{}
	for _, c := range fleet.Clusters {
		all[c.Name] = renderCluster(t, cache, c)
	}

	t.Run("Size", func(t *testing.T) {
		if d := cmp.Diff([]string{"canary-eu-01", "prod-us-01", "testing-eu-01"}, slices.Sorted(maps.Keys(all))); d != "" {
			t.Errorf("clusters (-want +got):\n%s", d)
		}
		want := map[string]int{"canary-eu-01": 9, "prod-us-01": 10, "testing-eu-01": 10} // canary has no etcd
		for cluster, targets := range all {
			if len(targets) != want[cluster] {
				t.Errorf("%s has %d components, want %d", cluster, len(targets), want[cluster])
			}
		}
	})
	t.Run("Differ", all.differ)
	t.Run("Images", all.images)
	t.Run("Objects", all.objects)
	t.Run("Pods", all.pods)
	t.Run("Issuers", func(t *testing.T) {
		for cluster, targets := range all {
			for _, o := range targets["cluster-issuers"].Objects {
				if ns, found, _ := unstructured.NestedString(o.Content, "metadata", "namespace"); found {
					t.Errorf("%s: the ClusterIssuer of %s has the namespace %s", cluster, o.Source, ns)
				}
			}
		}
	})
	t.Run("Configuration", func(t *testing.T) {
		// A commit of configuration is a change of the workload, so batches and stages carry it.
		for _, cluster := range []string{"testing-eu-01", "prod-us-01"} {
			config := (&unstructured.Unstructured{Object: find(t, all[cluster], "etcd", "ConfigMap")}).GetName()
			set := find(t, all[cluster], "etcd", "StatefulSet")
			from, _ := list(containers(set)[0], "envFrom")[0].(map[string]any)
			if name := at(from, "configMapRef", "name"); name != config || config == "etcd" {
				t.Errorf("%s: the ConfigMap is %s, and the StatefulSet refers to %v", cluster, config, name)
			}
			if n := len(list(set, "spec", "updateStrategy", "rollingUpdate", "batches", "sizes")); n != 3 {
				t.Errorf("%s: %d batches, want 3", cluster, n)
			}
		}
	})
	t.Run("Shared", func(t *testing.T) {
		// Testing and canary count objects alike: one render serves both.
		if a, b := all["testing-eu-01"]["kube-state-metrics"], all["canary-eu-01"]["kube-state-metrics"]; a != b {
			t.Error("the same configuration was rendered twice")
		}
	})
}

// proxy is what clusters say of asi-proxy: all of it is meta-config.
type proxy struct{ Requests, Limits, Tolerations, MaxUnavailable, Partition string }

func proxyOf(t *testing.T, targets map[string]*renderer.Target) proxy {
	t.Helper()
	set := find(t, targets, "asi-proxy", "DaemonSet")
	if is := fmt.Sprint(at(set, "apiVersion"), " ", at(set, "metadata", "namespace"), " ", at(set, "metadata", "name")); is != "apps.kruise.io/v1beta1 kube-system asi-proxy-ds-1" {
		t.Errorf("the proxy is %s", is)
	}
	text := func(m map[string]any, path ...string) string { return fmt.Sprint(at(m, path...)) }
	c := containers(set)[0]
	return proxy{
		Requests: text(c, "resources", "requests"), Limits: text(c, "resources", "limits"), Tolerations: text(podSpec(set), "tolerations"),
		MaxUnavailable: text(set, "spec", "updateStrategy", "rollingUpdate", "maxUnavailable"),
		Partition:      text(set, "spec", "updateStrategy", "rollingUpdate", "partition"),
	}
}

func (r rendered) differ(t *testing.T) {
	type facts struct {
		DNSReplicas, IngressReplicas any
		DNSMemory, IngressMemory     any
		IngressTolerations           int
		NodeTolerations, Issuers     string
		Registry                     string
		Proxy                        proxy
	}
	got := map[string]facts{}
	for cluster, targets := range r {
		dns, ingress := find(t, targets, "coredns", "Deployment"), find(t, targets, "ingress-nginx", "Deployment")
		var issuers []string
		for _, o := range targets["cluster-issuers"].Objects {
			issuers = append(issuers, (&unstructured.Unstructured{Object: o.Content}).GetName())
		}
		got[cluster] = facts{
			DNSReplicas: at(dns, "spec", "replicas"), IngressReplicas: at(ingress, "spec", "replicas"),
			DNSMemory:          at(containers(dns)[0], "resources", "requests", "memory"),
			IngressMemory:      at(containers(ingress)[0], "resources", "requests", "memory"),
			IngressTolerations: len(list(podSpec(ingress), "tolerations")),
			NodeTolerations:    fmt.Sprint(at(podSpec(find(t, targets, "node-exporter", "DaemonSet")), "tolerations")),
			Issuers:            strings.Join(issuers, " "),
			Registry:           strings.Split(fmt.Sprint(containers(dns)[0]["image"]), "/")[0],
			Proxy:              proxyOf(t, targets),
		}
	}
	const (
		everywhere   = "[map[operator:Exists]]"
		controlPlane = "[map[effect:NoSchedule key:node-role.kubernetes.io/control-plane operator:Exists]]"
	)
	want := map[string]facts{
		"testing-eu-01": {
			int64(1), int64(1), "32Mi", "128Mi", 0, everywhere, "self-signed letsencrypt-staging", "registry.k8s.io",
			proxy{"map[cpu:50m memory:64Mi]", "map[cpu:200m memory:256Mi]", "<nil>", "2", "0"},
		},
		"canary-eu-01": {
			int64(2), int64(2), "70Mi", "128Mi", 0, controlPlane, "self-signed letsencrypt-staging", "registry.k8s.io",
			proxy{"map[cpu:250m memory:512Mi]", "map[cpu:500m memory:1Gi]", controlPlane, "1", "0"},
		},
		"prod-us-01": {
			int64(5), int64(4), "256Mi", "512Mi", 1, everywhere, "self-signed letsencrypt", "registry.us.example.com",
			proxy{"map[cpu:1 memory:2Gi]", "map[cpu:2 memory:4Gi]", everywhere, "5%", "0"},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("what clusters get (-want +got):\n%s", d)
	}
}

// images: each has a registry, a tag and, but for those that the README names,
// a digest; production pulls from nowhere but its mirror.
func (r rendered) images(t *testing.T) {
	for cluster, targets := range r {
		for component, target := range targets {
			for _, o := range target.Objects {
				for _, c := range containers(o.Content) {
					image := fmt.Sprint(c["image"])
					mirrored := strings.HasPrefix(image, "registry.us.example.com/")
					if mirrored != (cluster == "prod-us-01") || !strings.Contains(image, ":v") {
						t.Errorf("%s %s has the image %s", cluster, component, image)
					}
					if component == "ingress-nginx" && !strings.Contains(image, "@sha256:") {
						t.Errorf("%s %s: %s has no digest", cluster, component, image)
					}
				}
			}
		}
	}
}

// objects: nothing that the API server would drop or guess.
func (r rendered) objects(t *testing.T) {
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for cluster, targets := range r {
		for component, target := range targets {
			if len(target.Warnings) > 0 {
				t.Errorf("%s %s: warnings: %s", cluster, component, target.Warnings)
			}
			for _, o := range target.Objects {
				if o.Source.Line == 0 {
					t.Errorf("%s: no line is known", o.Source)
				}
				for _, path := range nulls(o.Content, "") {
					t.Errorf("%s %s: %s is null", cluster, o.Source, path)
				}
				data, err := json.Marshal(o.Content)
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := strict.Decode(data, nil, nil); err != nil && !runtime.IsNotRegisteredError(err) {
					t.Errorf("%s %s: %v", cluster, o.Source, err)
				}
			}
		}
	}
}

func nulls(v any, path string) []string {
	var out []string
	switch v := v.(type) {
	case nil:
		return []string{path}
	case map[string]any:
		for k, e := range v {
			out = append(out, nulls(e, path+"."+k)...)
		}
	case []any:
		for i, e := range v {
			out = append(out, nulls(e, fmt.Sprintf("%s[%d]", path, i))...)
		}
	}
	return out
}

// pods: what is asked of every container in this fleet.
func (r rendered) pods(t *testing.T) {
	for cluster, targets := range r {
		for component, target := range targets {
			for _, o := range target.Objects {
				for _, c := range containers(o.Content) {
					for what, ok := range map[string]bool{
						"requests":            at(c, "resources", "requests") != nil,
						"a memory limit":      at(c, "resources", "limits", "memory") != nil,
						"a liveness probe":    c["livenessProbe"] != nil,
						"no escalation":       at(c, "securityContext", "allowPrivilegeEscalation") == false,
						"dropped abilities":   fmt.Sprint(at(c, "securityContext", "capabilities", "drop")) == "[ALL]",
						"a seccomp profile":   at(podSpec(o.Content), "securityContext", "seccompProfile", "type") == "RuntimeDefault",
						"a service account":   at(podSpec(o.Content), "serviceAccountName") == component,
						"Linux nodes":         at(podSpec(o.Content), "nodeSelector", "kubernetes.io/os") == "linux",
						"a matching selector": selects(o.Content),
					} {
						if !ok {
							t.Errorf("%s %s: container %s lacks %s", cluster, o.Source, c["name"], what)
						}
					}
				}
			}
		}
	}
}

func selects(workload map[string]any) bool {
	selector, _ := at(workload, "spec", "selector", "matchLabels").(map[string]any)
	labels, _ := at(workload, "spec", "template", "metadata", "labels").(map[string]any)
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}

// publish makes a repository of the example with the script that its README names. The script
// takes workload-controllers from where Keelson ships it: there is no copy of it here that
// could fall behind. The tags are those that its charts name.
func publish(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here")
	}
	fleet := filepath.Join(t.TempDir(), "fleet")
	cmd := exec.CommandContext(t.Context(), "./publish.sh", fleet)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull,
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return fleet
}

func load(t *testing.T, dir string) *registry.Fleet {
	t.Helper()
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

// renderCluster renders a cluster's components in the order in which they
// depend on each other: what one defines, the next may use.
func renderCluster(t *testing.T, r renderer.Renderer, c *registry.Cluster) map[string]*renderer.Target {
	t.Helper()
	caps := renderer.DefaultCapabilities()
	out := map[string]*renderer.Target{}
	for len(out) < len(c.Deliveries) {
		before := len(out)
		for _, d := range c.Deliveries {
			ready := out[d.Component] == nil
			for _, on := range d.Version.Spec.DependsOn {
				ready = ready && out[on] != nil
			}
			if !ready {
				continue
			}
			target, err := r.Render(t.Context(), renderer.Request{
				Version: d.Version, Values: d.Values, ImageMirrors: c.Spec.ImageMirrors, Capabilities: caps,
			})
			if err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
			out[d.Component], caps = target, caps.Including(target)
		}
		if len(out) == before {
			t.Fatalf("%s: components depend on each other in a circle, or on what is not there", c.Name)
		}
	}
	return out
}

func find(t *testing.T, targets map[string]*renderer.Target, component, kind string) map[string]any {
	t.Helper()
	for _, o := range targets[component].Objects {
		if o.Content["kind"] == kind {
			if label := (&unstructured.Unstructured{Object: o.Content}).GetLabels()[v1alpha1.LabelComponent]; label != component {
				t.Errorf("%s: the label says %q", o.Source, label)
			}
			return o.Content
		}
	}
	t.Fatalf("%s has no %s", component, kind)
	return nil
}

func at(m map[string]any, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(m, path...)
	return v
}

func list(m map[string]any, path ...string) []any {
	l, _ := at(m, path...).([]any)
	return l
}

func podSpec(o map[string]any) map[string]any {
	m, _ := at(o, "spec", "template", "spec").(map[string]any)
	return m
}

func containers(o map[string]any) []map[string]any {
	var out []map[string]any
	for _, c := range list(podSpec(o), "containers") {
		if m, ok := c.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}
