package order_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/applier/order"
	"github.com/keelson-io/keelson/differ"
)

// What others need comes first, what intercepts the API last; waves before
// that; deletions behind everything and the other way round.
func TestOrder(t *testing.T) {
	t.Parallel()
	change := func(op differ.Op, group, kind, name, wave string) differ.Change {
		object := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"keelson.io/wave": wave}}}
		c := differ.Change{ID: differ.ID{Group: group, Kind: kind, Name: name}, Op: op, Requests: differ.Requests{Patch: object}}
		if op == differ.OpDelete {
			c.Patch, c.Live = nil, object
		}
		return c
	}
	plan := differ.Plan{Changes: []differ.Change{
		change(differ.OpDelete, "", "ConfigMap", "gone", ""),
		change(differ.OpDelete, "apps", "Deployment", "gone", ""),
		change(differ.OpCreate, "admissionregistration.k8s.io", "ValidatingWebhookConfiguration", "hook", ""),
		change(differ.OpCreate, "example.com", "Widget", "custom", ""),
		change(differ.OpUpdate, "apps", "Deployment", "web", ""),
		change(differ.OpUpdate, "apps", "Deployment", "api", "0"),
		change(differ.OpCreate, "", "Service", "web", "not a number"),
		change(differ.OpCreate, "", "ConfigMap", "settings", ""),
		change(differ.OpCreate, "rbac.authorization.k8s.io", "RoleBinding", "role", ""),
		change(differ.OpCreate, "rbac.authorization.k8s.io", "Role", "role", ""),
		change(differ.OpCreate, "", "Namespace", "prod", ""),
		change(differ.OpCreate, "apiextensions.k8s.io", "CustomResourceDefinition", "widgets", ""),
		change(differ.OpCreate, "batch", "Job", "migrate", "-1"),
		change(differ.OpCreate, "", "ConfigMap", "late", "1"),
		change(differ.OpNone, "", "ConfigMap", "settled", ""),
		change(differ.OpForget, "", "ConfigMap", "forgotten", ""),
	}}
	want := [][]string{
		{"Job.batch migrate"},
		{"CustomResourceDefinition.apiextensions.k8s.io widgets"},
		{"Namespace prod"},
		{"ConfigMap settings", "Role.rbac.authorization.k8s.io role"},
		{"RoleBinding.rbac.authorization.k8s.io role"},
		{"Service web"},
		{"Deployment.apps web", "Deployment.apps api"},
		{"Widget.example.com custom"},
		{"ValidatingWebhookConfiguration.admissionregistration.k8s.io hook"},
		{"ConfigMap late"},
		{"Deployment.apps gone"},
		{"ConfigMap gone"},
	}
	var got [][]string
	for _, b := range order.Batches(&plan) {
		var names []string
		for _, c := range b.Changes {
			names = append(names, c.ID.String())
		}
		got = append(got, names)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
