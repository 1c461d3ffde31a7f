package differ_test

import (
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// The rules decide about the deletion of an object that is in no plan. The caller checks its label,
// owners and annotations.
func TestJudgeDeletion(t *testing.T) {
	t.Parallel()
	rule := func(effect v1alpha1.Effect) []v1alpha1.DangerRule {
		return []v1alpha1.DangerRule{{
			Name: "mine", Match: v1alpha1.ObjectMatch{Kinds: []string{"PersistentVolumeClaim"}},
			On: []v1alpha1.Event{v1alpha1.OnDeleteObject}, Effect: effect, When: `old.spec.volumeName == "bound"`, Because: "of the test",
		}}
	}
	id := differ.ID{Kind: "PersistentVolumeClaim", Namespace: "prod", Name: "data"}
	cases := map[string]struct {
		why      string
		rules    []v1alpha1.DangerRule
		volume   string
		approved bool
		op       differ.Op
		state    differ.ObjectState
		rule     string
	}{
		"BuiltIn":   {why: "A claim may have data.", volume: "bound", op: differ.OpNone, state: differ.StateHeld, rule: "delete-PersistentVolumeClaim"},
		"Approved":  {why: "Git says that it may go.", volume: "bound", approved: true, op: differ.OpDelete, state: differ.StateChanged},
		"Allowed":   {why: "The fleet's own rule comes first.", rules: rule(v1alpha1.EffectAllow), volume: "bound", op: differ.OpDelete, state: differ.StateChanged},
		"Condition": {why: "The rule is asked about the live object.", rules: rule(v1alpha1.EffectAllow), volume: "free", op: differ.OpNone, state: differ.StateHeld, rule: "delete-PersistentVolumeClaim"},
		"Denied":    {why: "No approval counts.", rules: rule(v1alpha1.EffectDeny), volume: "bound", approved: true, op: differ.OpNone, state: differ.StateDenied, rule: "mine"},
		"Kept":      {why: "It stays, and is of no component.", rules: rule(v1alpha1.EffectKeep), volume: "bound", op: differ.OpForget, state: differ.StateSynced},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules, err := differ.NewRules(differ.Scopes{Component: c.rules})
			if err != nil {
				t.Fatal(err)
			}
			live := map[string]any{
				"apiVersion": "v1", "kind": id.Kind, "metadata": map[string]any{"name": id.Name, "namespace": id.Namespace, "uid": "u1", "annotations": map[string]any{"helm.sh/resource-policy": "keep"}},
				"spec": map[string]any{"volumeName": c.volume},
			}
			policy := differ.Policy{Component: "web", Rules: rules, MaskKey: []byte("k")}
			got, err := differ.JudgeDeletion(t.Context(), schemas(t), id, live, policy)
			if err != nil {
				t.Fatal(err)
			}
			if c.approved {
				policy.Approved = map[string][]string{id.String(): {got.Hash}}
				if got, err = differ.JudgeDeletion(t.Context(), schemas(t), id, live, policy); err != nil {
					t.Fatal(err)
				}
			}
			if got.Op != c.op || got.State != c.state || got.Rule != c.rule {
				t.Errorf("%s It is %s, %s by rule %q; want %s, %s by rule %q", c.why, got.Op, got.State, got.Rule, c.op, c.state, c.rule)
			}
		})
	}
}
