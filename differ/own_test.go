package differ_test

import (
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// Keelson's own objects belong to no component. Whatever the rules, adoption or approvals are, none
// is created, changed or deleted. Other objects in the namespace have no such protection, because
// Keelson delivers itself.
func TestOwnObjectsAreDenied(t *testing.T) {
	t.Parallel()
	everything := v1alpha1.DangerRule{Name: "keelson-own-objects", Effect: v1alpha1.EffectAllow, Because: "so that nothing is in the way"}
	deletion := everything
	deletion.On = []v1alpha1.Event{v1alpha1.OnDeleteObject}
	unnamed := everything
	unnamed.Name = "mine"
	rules, err := differ.NewRules(differ.Scopes{
		Fleet: []v1alpha1.DangerRule{everything, deletion}, Project: []v1alpha1.DangerRule{everything}, Component: []v1alpha1.DangerRule{unnamed},
	})
	if err != nil {
		t.Fatal(err)
	}
	for why, c := range map[string]struct {
		apiVersion, kind, namespace, name string
		denied                            bool
	}{
		"the record of another component": {"v1", "Secret", "keelson-system", "record-other", true},
		"a part of it":                    {"v1", "Secret", "keelson-system", "record-other.0123456789abcdef.0", true},
		"the announcements":               {"v1", "Secret", "keelson-system", "keelson-intents", true},
		"the key of masks":                {"v1", "Secret", "keelson-system", "mask-key", true},
		"the Lease of a controller":       {"coordination.k8s.io/v1", "Lease", "keelson-system", "keelson-controller-0123456789", true},
		"that of the workloads":           {"coordination.k8s.io/v1", "Lease", "keelson-system", "keelson-workloads", true},
		"what notifications have told":    {"v1", "ConfigMap", "keelson-system", "keelson-told-01234567-chat", true},
		"what the repository was":         {"v1", "ConfigMap", "keelson-system", "keelson-git-heads", true},
		"the status of a delivery":        {"keelson.io/v1alpha1", "Delivery", "keelson-system", "prod.web", true},
		"in another version":              {"keelson.io/v2", "Rollout", "keelson-system", "web", true},
		"Keelson's Deployment":            {"apps/v1", "Deployment", "keelson-system", "keelson", false},
		"a Secret of a user":              {"v1", "Secret", "keelson-system", "git", false},
		"a ConfigMap of a chart":          {"v1", "ConfigMap", "keelson-system", "record-other", false},
		"a Lease of another":              {"coordination.k8s.io/v1", "Lease", "keelson-system", "other", false},
		"another namespace":               {"v1", "Secret", "prod", "record-other", false},
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			object := func(value string) map[string]any {
				return map[string]any{
					"apiVersion": c.apiVersion, "kind": c.kind, "data": map[string]any{"a": value},
					"metadata": map[string]any{"name": c.name, "namespace": c.namespace, "uid": "u1", "labels": map[string]any{v1alpha1.LabelComponent: component}, "managedFields": []any{map[string]any{
						"manager": v1alpha1.FieldManager, "operation": "Apply", "apiVersion": c.apiVersion, "fieldsType": "FieldsV1",
						"fieldsV1": map[string]any{"f:data": map[string]any{"f:a": map[string]any{}}, "f:metadata": map[string]any{"f:labels": map[string]any{"f:" + v1alpha1.LabelComponent: map[string]any{}}}},
					}}},
				}
			}
			id, _ := differ.Identify(object(""))
			policy := differ.Policy{Component: component, Rules: rules, Adopt: true, MaskKey: []byte("0123456789abcdef")}
			for what, s := range map[string]differ.State{
				"create": {Target: &renderer.Object{Content: object("MQ==")}},
				"change": {Recorded: object("MQ=="), Target: &renderer.Object{Content: object("Mg==")}, Live: object("MQ==")},
				"adopt":  {Target: &renderer.Object{Content: object("Mg==")}, Live: object("MQ==")},
				"delete": {Recorded: object("MQ=="), Live: object("MQ==")},
			} {
				s.ID, s.OwnersRead = id, true
				if s.Recorded != nil {
					s.RecordedUID = "u1"
				}
				plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{s}, policy)
				if err != nil {
					t.Fatal(err)
				}
				policy := policy
				policy.Approved = map[string][]string{id.String(): {plan.Changes[0].Hash}}
				if plan, err = differ.Compare(t.Context(), schemas(t), []differ.State{s}, policy); err != nil {
					t.Fatal(err)
				}
				if got := plan.Changes[0].State == differ.StateDenied; got != c.denied {
					t.Errorf("%s: %s, %q", what, plan.Changes[0].State, plan.Changes[0].Because)
				}
			}
			change, err := differ.JudgeDeletion(t.Context(), schemas(t), id, object("MQ=="), policy)
			if err != nil {
				t.Fatal(err)
			}
			if got := change.State == differ.StateDenied; got != c.denied {
				t.Errorf("deletion by a hook: %s", change.State)
			}
		})
	}
}
