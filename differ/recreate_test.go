package differ_test

import (
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// TestFormerIsJudged: the record from before an open creation counts as recorded while the object
// is absent. A record that names another object creates none.
func TestFormerIsJudged(t *testing.T) {
	t.Parallel()
	rules, err := differ.NewRules(differ.Scopes{Fleet: []v1alpha1.DangerRule{{Name: "mine", Path: ".data.a", Effect: v1alpha1.EffectHold, Because: "they say so"}}})
	if err != nil {
		t.Fatal(err)
	}
	of := func(name, value string) object {
		return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name, "namespace": "prod", "labels": object{v1alpha1.LabelComponent: component}}, "data": object{"a": value}}
	}
	cases := map[string]struct {
		why              string
		former, recorded object
		op               differ.Op
		state            differ.ObjectState
		sends            any // the value
	}{
		"None":     {"The object is new.", nil, nil, differ.OpCreate, differ.StateChanged, "new"},
		"Former":   {"The object is created as it was, and its change waits.", of("c", "old"), nil, differ.OpCreate, differ.StateHeld, "old"},
		"Same":     {"Nothing of it has changed.", of("c", "new"), nil, differ.OpCreate, differ.StateChanged, "new"},
		"Recorded": {"What is recorded counts, and not what was before.", of("c", "old"), of("c", "new"), differ.OpCreate, differ.StateChanged, "new"},
		"Another":  {"A record that names another object creates none.", of("other", "old"), nil, differ.OpNone, differ.StateHeld, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{
				ID: differ.ID{Kind: "ConfigMap", Namespace: "prod", Name: "c"}, Former: c.former, Recorded: c.recorded, Target: &renderer.Object{Content: of("c", "new")},
			}}, differ.Policy{Component: component, Rules: rules})
			if err != nil {
				t.Fatal(err)
			}
			got := plan.Changes[0]
			data, _ := got.Patch["data"].(object)
			if got.Op != c.op || got.State != c.state || data["a"] != c.sends {
				t.Errorf("%s It is %s, %s, and sends %v; want %s, %s, %v", c.why, got.Op, got.State, data["a"], c.op, c.state, c.sends)
			}
		})
	}
}
