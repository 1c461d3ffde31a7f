package cluster_test

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/lab/cluster"
)

// policy is audit.k8s.io/v1 Policy as far as ours goes; decoding is strict, so
// a field that isn't here fails the test.
type policy struct {
	APIVersion        string   `json:"apiVersion"`
	Kind              string   `json:"kind"`
	OmitStages        []string `json:"omitStages"`
	OmitManagedFields bool     `json:"omitManagedFields"`
	Rules             []struct {
		Level             string   `json:"level"`
		Users             []string `json:"users"`
		Verbs             []string `json:"verbs"`
		NonResourceURLs   []string `json:"nonResourceURLs"`
		OmitManagedFields *bool    `json:"omitManagedFields"`
		Resources         []struct {
			Group     string
			Resources []string
		} `json:"resources"`
	} `json:"rules"`
}

// level returns what the API server's own evaluation gives (policy.ruleMatches
// in k8s.io/apiserver/pkg/audit/policy): the first rule that matches.
func (p policy) level(user, verb, group, resource string) string {
	for _, r := range p.Rules {
		if len(r.Users) > 0 && !slices.Contains(r.Users, user) || len(r.Verbs) > 0 && !slices.Contains(r.Verbs, verb) {
			continue
		}
		path := strings.HasPrefix(resource, "/")
		match := len(r.NonResourceURLs) == 0 && len(r.Resources) == 0
		for _, url := range r.NonResourceURLs {
			prefix, isPrefix := strings.CutSuffix(url, "*")
			match = match || path && (resource == url || isPrefix && strings.HasPrefix(resource, prefix))
		}
		for _, gr := range r.Resources {
			parent, _, _ := strings.Cut(resource, "/")
			match = match || !path && gr.Group == group &&
				(len(gr.Resources) == 0 || slices.Contains(gr.Resources, resource) || parent != resource && slices.Contains(gr.Resources, parent+"/*"))
		}
		if match {
			return r.Level
		}
	}
	return "None"
}

// readPolicy decodes the policy of a level as strictly as an API server does.
func readPolicy(t *testing.T, level cluster.Audit) policy {
	t.Helper()
	data := cluster.Policy(level)
	var p policy
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		t.Fatalf("%s\n%s", err, data)
	}
	if !slices.Equal(p.OmitStages, []string{"RequestReceived"}) {
		t.Errorf("stages %v are left out; a watch shows only when it has begun", p.OmitStages)
	}
	return p
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	const kcm = "system:kube-controller-manager"
	cases := []struct {
		why                         string
		level                       cluster.Audit
		user, verb, group, resource string
		want                        string
	}{
		{"What Keelson sends is compared.", "", "keelson", "patch", "apps", "deployments", "RequestResponse"},
		{"A rendered custom resource, too.", "", "keelson", "create", "example.org", "things", "RequestResponse"},
		{"Reads are counted.", "", "keelson", "list", "", "configmaps", "Metadata"},
		{"Watches are told from reads.", "", "keelson", "watch", "", "pods", "Metadata"},
		{"The record is a Secret.", "", "keelson", "patch", "", "secrets", "Metadata"},
		{"A token is as good as a secret.", "", "keelson", "create", "", "serviceaccounts/token", "Metadata"},
		{"Token reviews carry tokens.", "", "keelson", "create", "authentication.k8s.io", "tokenreviews", "Metadata"},
		{"Keelson's leases are Keelson's calls.", "", "keelson", "update", "coordination.k8s.io", "leases", "RequestResponse"},
		{"And its events.", "", "keelson", "create", "", "events", "RequestResponse"},
		{"And its health requests.", "", "keelson", "get", "", "/readyz", "Metadata"},
		{"Others' heartbeats are noise.", "", kcm, "update", "coordination.k8s.io", "leases", "None"},
		{"Others' events are noise.", "", "kwok", "create", "events.k8s.io", "events", "None"},
		{"Probes are noise.", "", "admin", "get", "", "/readyz/etcd", "None"},
		{"What a person changes is compared.", "", "admin", "patch", "apps", "deployments", "RequestResponse"},
		{"Secrets of other users are logged without a body.", "", "admin", "create", "", "secrets", "Metadata"},
		{"Tokens of other users are logged without a body.", "", kcm, "create", "", "serviceaccounts/token", "Metadata"},
		{"Pods that kwok plays.", "", "kwok", "patch", "", "pods/status", "Metadata"},
		{"Discovery is a read.", "", "keelson", "get", "", "/openapi/v3", "Metadata"},
		{"A chaos run has none but made-up secrets, and compares them.", cluster.AuditSecrets, "keelson", "update", "", "secrets", "RequestResponse"},
		{"To read one shows who read it.", cluster.AuditSecrets, "keelson", "get", "", "secrets", "Metadata"},
		{"What a person changes has a body.", cluster.AuditSecrets, "admin", "patch", "apps", "deployments", "RequestResponse"},
		{"A benchmark counts writes, and doesn't look into them.", cluster.AuditMetadata, "keelson", "patch", "apps", "deployments", "Metadata"},
		{"Nor into records.", cluster.AuditMetadata, "keelson", "update", "", "secrets", "Metadata"},
		{"But into what a person changes.", cluster.AuditMetadata, "admin", "patch", "apps", "deployments", "RequestResponse"},
	}
	for _, tc := range cases {
		if got := readPolicy(t, tc.level).level(tc.user, tc.verb, tc.group, tc.resource); got != tc.want {
			t.Errorf("level %q: %s %s %s/%s: %s, want %s; %s", tc.level, tc.user, tc.verb, tc.group, tc.resource, got, tc.want, tc.why)
		}
	}
}

// stage is kwok.x-k8s.io/v1alpha1 Stage as far as ours go.
type stage struct {
	APIVersion string                `json:"apiVersion"`
	Kind       string                `json:"kind"`
	Metadata   struct{ Name string } `json:"metadata"`
	Spec       struct {
		ResourceRef map[string]string `json:"resourceRef"`
		Weight      int               `json:"weight"`
		Selector    map[string]any    `json:"selector"`
		Delay       map[string]any    `json:"delay"`
		Steps       []map[string]any  `json:"steps"`
	} `json:"spec"`
}

func TestStages(t *testing.T) {
	t.Parallel()
	data := cluster.Stages()
	names := map[string]bool{}
	for i, document := range strings.Split(string(data), "\n---\n") {
		var s stage
		if err := yaml.UnmarshalStrict([]byte(document), &s); err != nil {
			t.Errorf("document %d: %v", i, err)
			continue
		}
		if s.Kind != "Stage" || names[s.Metadata.Name] || len(s.Spec.Steps) == 0 {
			t.Errorf("document %d: %s %s with %d steps; names must differ", i, s.Kind, s.Metadata.Name, len(s.Spec.Steps))
		}
		names[s.Metadata.Name] = true
	}
	if len(names) != 6 {
		t.Errorf("stages %v, want 6", names)
	}
}
