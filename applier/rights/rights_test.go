package rights_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/rights"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// served is a cluster of few kinds, that has the ClusterRoles view and admin.
func served() rights.Served {
	return rights.Served{
		Mapping: func(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
			cluster := map[string]string{"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Namespace": "namespaces", "CustomResourceDefinition": "customresourcedefinitions"}
			namespaced := map[string]string{"ConfigMap": "configmaps", "Role": "roles", "RoleBinding": "rolebindings", "Job": "jobs", "HorizontalPodAutoscaler": "horizontalpodautoscalers"}
			if plural, ok := cluster[gvk.Kind]; ok {
				return &meta.RESTMapping{Resource: gvk.GroupVersion().WithResource(plural), Scope: meta.RESTScopeRoot}, nil
			}
			if plural, ok := namespaced[gvk.Kind]; ok {
				return &meta.RESTMapping{Resource: gvk.GroupVersion().WithResource(plural), Scope: meta.RESTScopeNamespace}, nil
			}
			return nil, &apis.NotServedError{GVK: gvk}
		},
		Role: func(namespace, name string) ([]rbacv1.PolicyRule, error) {
			switch namespace + "/" + name {
			case "/view":
				return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}, nil
			case "/cluster-admin":
				return []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}, nil
			}
			return nil, errors.New("not found")
		},
	}
}

func component(t *testing.T, account string, manifests ...string) rights.Component {
	t.Helper()
	c := rights.Component{Name: "app", Namespace: "app", ServiceAccount: account}
	for i, m := range manifests {
		o := &renderer.Object{Source: yamlfile.Position{File: "components/app/template/templates/app.yaml", Line: i + 1}}
		if err := yaml.Unmarshal([]byte(m), &o.Content); err != nil {
			t.Fatal(err)
		}
		c.Objects = append(c.Objects, o)
	}
	return c
}

func running(c rights.Component) rights.Component {
	c.Jobs = true
	return c
}

// shown is one line for each rule that is not the same for every component.
func shown(r *rights.Rights) []string {
	var out []string
	line := func(where string, rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			on := append(append([]string{}, rule.Resources...), rule.NonResourceURLs...)
			text := where + ": " + strings.Join(rule.Verbs, ",") + " " + strings.Join(on, ",")
			if len(rule.ResourceNames) > 0 {
				text += " " + strings.Join(rule.ResourceNames, ",")
			}
			out = append(out, text)
		}
	}
	for _, o := range r.Objects("keelson", rbacv1.Subject{}) {
		switch o := o.(type) {
		case *rbacv1.Role:
			if o.Namespace != v1alpha1.Namespace {
				line(o.Namespace, o.Rules)
			}
		case *rbacv1.ClusterRole:
			line("cluster", o.Rules)
		}
	}
	return out
}

func TestForCluster(t *testing.T) {
	t.Parallel()
	const (
		names    = "cluster: get namespaces app,keelson-system,kube-system"
		nodes    = "cluster: list nodes"
		scalers  = "cluster: list,watch horizontalpodautoscalers"
		settings = `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: app}}`
		version  = `{apiVersion: v1, kind: ConfigMap, metadata: {name: a-1, namespace: app, annotations: {keelson.io/configmap-name: a, keelson.io/configmap-version: "1"}}}`
		role     = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: app}, rules: [RULE]}`
	)
	rule := func(text string) string { return strings.Replace(role, "RULE", text, 1) }
	roles := []string{"cluster: create,delete,get,list,patch,watch clusterroles"}
	bindings := []string{"cluster: create,delete,get,list,patch,watch clusterrolebindings"}
	binding := func(to string) string {
		return `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: app}, roleRef: {kind: ClusterRole, name: ` + to + `}}`
	}
	cases := map[string]struct {
		why     string
		with    rights.Component
		want    []string
		leftOut []string
	}{
		"Namespaced": {
			why: "One watch sees all namespaces; what is written is written where it is.", with: component(t, "", settings),
			want: []string{"cluster: list,watch configmaps", names, nodes, scalers, "app: create,delete,get,patch configmaps", "app: list events"},
		},
		"Versions": {
			why: "Whether an earlier version of configuration may be deleted depends on pods and on the revisions that make pods.", with: component(t, "deployer", version),
			want: []string{
				"cluster: list,watch configmaps", names, nodes, scalers,
				"app: list controllerrevisions,replicasets", "app: list jobs", "app: get configmaps", "app: impersonate serviceaccounts deployer", "app: list events,pods",
			},
		},
		"Account": {
			why: "Keelson writes nothing of it, and may be this account alone.", with: component(t, "deployer", settings),
			want: []string{"cluster: list,watch configmaps", names, nodes, scalers, "app: get configmaps", "app: impersonate serviceaccounts deployer", "app: list events"},
		},
		"Jobs": {
			why: "Checks of its rollouts run Jobs beside its objects.", with: running(component(t, "", settings)),
			want: []string{
				"cluster: list,watch jobs", "cluster: list,watch configmaps", names, nodes, scalers,
				"app: create,delete,get,patch jobs", "app: create,delete,get,patch configmaps", "app: list events,pods",
			},
		},
		"JobsOfAccount": {
			why: "The account has the right to create them, so Keelson does not need it.", with: running(component(t, "deployer", settings)),
			want: []string{
				"cluster: list,watch jobs", "cluster: list,watch configmaps", names, nodes, scalers,
				"app: get jobs", "app: get configmaps", "app: impersonate serviceaccounts deployer", "app: list events,pods",
			},
		},
		"AccountOfRoles": {
			why:  "The API server compares the granted rights with the account's rights, not Keelson's.",
			with: component(t, "deployer", rule(`{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}`)),
			want: []string{names, nodes, scalers, "cluster: get,list,watch clusterroles", "app: impersonate serviceaccounts deployer"},
		},
		"Roles": {
			why:  "A client can grant only rights that it has itself.",
			with: component(t, "", rule(`{apiGroups: [""], resources: [pods], resourceNames: [x], verbs: [get, update]}, {nonResourceURLs: [/metrics], verbs: [get]}`)),
			want: append([]string{names, "cluster: get,update pods x", "cluster: get /metrics", nodes, scalers}, roles...),
		},
		"BoundFromElsewhere": {
			why: "The bound role exists in the cluster, not in the component.", with: component(t, "", binding("view")),
			want: append([]string{names, "cluster: get pods", nodes, scalers}, bindings...),
		},
		"BoundToEverything": {
			why: "Keelson would need all rights to bind cluster-admin.", with: component(t, "", settings, binding("cluster-admin")),
			want:    append([]string{"cluster: list,watch configmaps", names, nodes, scalers, bindings[0]}, "app: create,delete,get,patch configmaps", "app: list events"),
			leftOut: []string{"app.yaml:2: ClusterRoleBinding app of component app is left out: it binds ClusterRole cluster-admin: a rule of it has a wildcard (* *.*)"},
		},
		"BoundUnknown": {
			why: "If the rules of the bound role are unknown, the binding is left out.", with: component(t, "", binding("gone")),
			want: append([]string{names, nodes, scalers}, bindings...), leftOut: []string{"whose rules are not known: not found"},
		},
		"Wildcard": {
			why: "A role with a wildcard is reported with its line, and none of its rules is granted.", with: component(t, "", rule(`{apiGroups: [""], resources: [pods], verbs: [get]}, {apiGroups: [apps], resources: ["*"], verbs: [get]}`)),
			want: append([]string{names, nodes, scalers}, roles...), leftOut: []string{"app.yaml:1: ClusterRole app of component app is left out: a rule of it has a wildcard (get *.apps); name a serviceAccount in its component.yaml"},
		},
		"Escalate": {
			why: "With escalate, Keelson could give itself all rights.", with: component(t, "", rule(`{apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], verbs: [escalate]}`)),
			want: append([]string{names, nodes, scalers}, roles...), leftOut: []string{"grants escalate or bind"},
		},
		"Impersonate": {
			why: "So is this, without names.", with: component(t, "", rule(`{apiGroups: [""], resources: [users], verbs: [impersonate]}`)),
			want: append([]string{names, nodes, scalers}, roles...), leftOut: []string{"grants impersonate without names"},
		},
		"Aggregation": {
			why:  "The API server wants everything from who writes one.",
			with: component(t, "", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: app}, aggregationRule: {}}`),
			want: append([]string{names, nodes, scalers}, roles...), leftOut: []string{"aggregationRule"},
		},
		"OwnNamespace": {
			why:  "No role can stand in a namespace that is yet to come.",
			with: component(t, "", settings, `{apiVersion: v1, kind: Namespace, metadata: {name: app}}`),
			want: []string{"cluster: create,delete,get,list,patch,watch configmaps,namespaces", "cluster: list events,nodes", scalers},
		},
		"CustomResources": {
			why: "A CRD brings its kind, and what exists of it is looked at before the CRD changes.",
			with: component(t, "", `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gadgets.x}, spec: {group: x, scope: Namespaced, names: {kind: Gadget, plural: gadgets}}}`,
				`{apiVersion: x/v1, kind: Gadget, metadata: {name: g, namespace: app}}`),
			want: []string{names, "cluster: create,delete,get,list,patch,watch customresourcedefinitions", nodes, scalers, "cluster: get,list,watch gadgets", "app: create,delete,patch gadgets", "app: list events"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, leftOut, err := rights.ForCluster([]rights.Component{c.with}, served())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(sorted(c.want), sorted(shown(got))); diff != "" {
				t.Errorf("%s (-want +got)\n%s", c.why, diff)
			}
			if len(leftOut) != len(c.leftOut) {
				t.Fatalf("%s\nleft out: %v, want %v", c.why, leftOut, c.leftOut)
			}
			for i, l := range leftOut {
				if !strings.Contains(l.String(), c.leftOut[i]) {
					t.Errorf("%s\nleft out: %s\nwant it to say %s", c.why, l, c.leftOut[i])
				}
			}
		})
	}
}

func TestForClusterKnowsAllKinds(t *testing.T) {
	t.Parallel()
	_, _, err := rights.ForCluster([]rights.Component{component(t, "", `{apiVersion: x/v1, kind: Gadget, metadata: {name: g}}`)}, served())
	if !apis.IsNotServed(err) || !strings.Contains(err.Error(), "component app: components/app/template/templates/app.yaml:1") {
		t.Errorf("got %v", err)
	}
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// TestProbe: a probe may do nothing outside of its namespace, and there to its kinds
// alone; one that is not served is none.
func TestProbe(t *testing.T) {
	t.Parallel()
	r, _, err := rights.ForCluster(nil, served())
	if err != nil {
		t.Fatal(err)
	}
	p := rights.Probe{Namespace: "probes", Kinds: []schema.GroupVersionKind{
		{Version: "v1", Kind: "ConfigMap"}, {Group: "example.com", Version: "v1", Kind: "Nowhere"},
	}}
	if err := r.Allow(p, served()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cluster: get namespaces keelson-system,kube-system", "cluster: list nodes", "cluster: list,watch horizontalpodautoscalers",
		"probes: create,delete,get,patch,watch configmaps", "probes: list events",
	}
	got := shown(r)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
