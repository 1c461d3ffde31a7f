package differ_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// Try returns every rule whose object and path match, up to the rule that decides, in the order of
// objects, fields and rules.
func TestTry(t *testing.T) {
	t.Parallel()
	rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{
		{Name: "other object", Path: ".data.a", Effect: v1alpha1.EffectHold, Match: v1alpha1.ObjectMatch{Name: "z"}},
		{Name: "other path", Path: ".data.c", Effect: v1alpha1.EffectHold},
		{Name: "other event", Path: ".data.a", Effect: v1alpha1.EffectHold, On: []v1alpha1.Event{v1alpha1.OnRemove}},
		{Name: "condition", Path: ".data.a", Effect: v1alpha1.EffectHold, When: "new == 'never'"},
		{Name: "fails", Path: ".data.b", Effect: v1alpha1.EffectHold, When: "new.nosuch == 1"},
		{Name: "fires", Path: ".data", Effect: v1alpha1.EffectDeny},
		{Name: "too late", Path: ".data", Effect: v1alpha1.EffectHold},
		{Name: "deletion", Path: "", Effect: v1alpha1.EffectHold, On: []v1alpha1.Event{v1alpha1.OnDeleteObject}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	configMap := func(name string, data object) object {
		return object{"apiVersion": "v1", "kind": "ConfigMap", "data": data, "metadata": object{
			"name": name, "labels": object{v1alpha1.LabelComponent: component},
		}}
	}
	id := func(name string) differ.ID { return differ.ID{Kind: "ConfigMap", Name: name} }
	changed, gone := configMap("b", object{"a": "x", "c": "same"}), configMap("a", object{"a": "x"})
	states := []differ.State{
		{ID: id("b"), OwnersRead: true, Recorded: changed, Live: changed, Target: &renderer.Object{Content: configMap("b", object{"a": "y", "b": "new", "c": "same"})}},
		{ID: id("a"), OwnersRead: true, Recorded: gone, Live: gone},
	}
	before := []differ.ID{states[0].ID, states[1].ID}
	got, err := differ.Try(t.Context(), schemas(t), states, differ.Policy{AnyComponent: true, Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	trial := func(name, path string, event v1alpha1.Event, rule string, outcome differ.Outcome) differ.Trial {
		return differ.Trial{ID: id(name), Path: path, Event: event, Rule: rule, Outcome: outcome}
	}
	want := []differ.Trial{
		trial("a", "", v1alpha1.OnDeleteObject, "other path", differ.OutcomeOtherEvent),
		trial("a", "", v1alpha1.OnDeleteObject, "other event", differ.OutcomeOtherEvent),
		trial("a", "", v1alpha1.OnDeleteObject, "condition", differ.OutcomeOtherEvent),
		trial("a", "", v1alpha1.OnDeleteObject, "fails", differ.OutcomeOtherEvent),
		trial("a", "", v1alpha1.OnDeleteObject, "fires", differ.OutcomeOtherEvent),
		trial("a", "", v1alpha1.OnDeleteObject, "too late", differ.OutcomeOtherEvent),
		trial("a", "", v1alpha1.OnDeleteObject, "deletion", differ.OutcomeFires),
		trial("b", ".data.a", v1alpha1.OnChange, "other event", differ.OutcomeOtherEvent),
		trial("b", ".data.a", v1alpha1.OnChange, "condition", differ.OutcomeCondition),
		trial("b", ".data.a", v1alpha1.OnChange, "fires", differ.OutcomeFires),
		trial("b", ".data.b", v1alpha1.OnAdd, "fails", differ.OutcomeFires),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if states[0].ID != before[0] || states[1].ID != before[1] {
		t.Error("the order of the arguments was changed")
	}
}
