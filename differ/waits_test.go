package differ_test

import (
	"testing"

	"github.com/keelson-io/keelson/differ"
)

// The record of an object that was deleted stays while its deletion waits for something: the record is
// all that says that the object was the component's.
func TestWaitingRecord(t *testing.T) {
	t.Parallel()
	rules, err := differ.NewRules(differ.Scopes{})
	if err != nil {
		t.Fatal(err)
	}
	for waits, want := range map[string]differ.Op{"": differ.OpForget, "another component may want it": differ.OpNone} {
		state := differ.State{
			ID: differ.ID{Kind: "ConfigMap", Namespace: "web", Name: "o"}, OwnersRead: true, Waits: waits,
			Recorded: object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "o", "namespace": "web"}},
		}
		plan, err := differ.Compare(t.Context(), nil, []differ.State{state}, differ.Policy{Component: component, Rules: rules})
		if err != nil {
			t.Fatal(err)
		}
		if c := plan.Changes[0]; c.Op != want || waits != "" && (c.Because != waits || c.State != differ.StateChanged || c.Record == nil) {
			t.Errorf("waits %q: %s, %s, %q, record %v", waits, c.Op, c.State, c.Because, c.Record)
		}
	}
}
