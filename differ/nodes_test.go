package differ_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/expr"
	"github.com/keelson-io/keelson/renderer"
)

func newNodes(t *testing.T, n int) *expr.Nodes {
	t.Helper()
	nodes := &expr.Nodes{}
	for i := range n {
		if err := nodes.Add(object{"metadata": object{"name": fmt.Sprint("n", i), "labels": object{"zone": fmt.Sprint(i % 2)}}}); err != nil {
			t.Fatal(err)
		}
	}
	return nodes
}

// comparing compares a ConfigMap whose change a rule with the condition holds.
func comparing(t *testing.T, when string, policy differ.Policy) (differ.Change, error) {
	t.Helper()
	rules, err := differ.NewRules(differ.Scopes{Fleet: []v1alpha1.DangerRule{{
		Name: "mine", Path: ".data", Effect: v1alpha1.EffectHold, Because: "it is drawn", When: when,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	policy.Component, policy.Rules, policy.AnyComponent, policy.OwnersByRecord = component, rules, true, true
	of := func(v string) object {
		return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "c", "namespace": "prod"}, "data": object{"a": v}}
	}
	plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{
		ID: differ.ID{Kind: "ConfigMap", Namespace: "prod", Name: "c"}, Recorded: of("1"), Live: of("1"), Target: &renderer.Object{Content: of("2")}, OwnersRead: true,
	}}, policy)
	if err != nil {
		return differ.Change{}, fmt.Errorf("compare: %w", err)
	}
	return plan.Changes[0], nil
}

// TestNodesMatching: a condition counts the nodes that a pod may run on.
func TestNodesMatching(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, when string
		held      bool
		because   string
	}{
		"All":      {"A pod without wishes may run anywhere.", `nodes.matching({}) == 4`, true, ""},
		"Selected": {"By a label.", `nodes.matching({'nodeSelector': {'zone': '1'}}) == 2`, true, ""},
		"Named":    {"By name.", `nodes.matching({'nodeName': 'n3'}) == 1`, true, ""},
		"None":     {"No node has such a label.", `nodes.matching({'nodeSelector': {'zone': '7'}}) > 0`, false, ""},
		"Affinity": {"A term that can't be parsed matches no node.", `nodes.matching({'affinity': {'nodeAffinity': {'requiredDuringSchedulingIgnoredDuringExecution':
{'nodeSelectorTerms': [{'matchExpressions': [{'key': '-', 'operator': 'Near'}]}]}}}}) == 0`, true, ""},
		"Malformed": {"What is no pod spec has no answer, and a rule that holds holds.", `nodes.matching({'nodeSelector': 3}) == 1`, true, "not known"},
		"NoNodes":   {"The function is one of nodes.", `object.matching({}) == 1`, true, "not known"},
		"Null":      {"Where they are known, they are not null.", `nodes != null && nodes == nodes`, true, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			change, err := comparing(t, c.when, differ.Policy{Nodes: newNodes(t, 4)})
			if err != nil {
				t.Fatal(err)
			}
			if held := change.State == differ.StateHeld; held != c.held || held && !strings.Contains(change.Fields[0].Because, c.because) {
				t.Errorf("%s\n%s, %s", c.why, change.State, show(change))
			}
			if strings.Contains(show(change), "not known") != (c.because != "") {
				t.Errorf("%s\nThe condition has no answer: %s", c.why, show(change))
			}
		})
	}
}

// TestTolerations: a taint repels the pods that don't tolerate it, as in the scheduler.
func TestTolerations(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, taint, toleration string
		want                   int
	}{
		"Same":       {"Key, value and effect are the same.", "key: a, value: x, effect: NoSchedule", "key: a, operator: Equal, value: x, effect: NoSchedule", 1},
		"Default":    {"The operator is Equal where none is set.", "key: a, value: x, effect: NoSchedule", "key: a, value: x", 1},
		"Value":      {"The value is another one.", "key: a, value: x, effect: NoSchedule", "key: a, value: z", 0},
		"Exists":     {"Any value.", "key: a, value: x, effect: NoExecute", "key: a, operator: Exists", 1},
		"Effect":     {"The effect is another one.", "key: a, value: x, effect: NoExecute", "key: a, operator: Exists, effect: NoSchedule", 0},
		"Everything": {"No key, and Exists.", "key: a, value: x, effect: NoExecute", "operator: Exists", 1},
		"NoKey":      {"Equal needs a key.", "key: a, effect: NoExecute", "operator: Equal", 0},
		"Unknown":    {"An operator that is not known tolerates nothing.", "key: a, value: '5', effect: NoExecute", "key: a, operator: Near, value: '5'", 0},
		"Preference": {"A preference repels no pod.", "key: a, effect: PreferNoSchedule", "key: b", 1},
		"Passing":    {"Kubernetes takes such a taint away again.", "key: node.kubernetes.io/not-ready, effect: NoExecute", "key: b", 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var node map[string]any
			if err := yaml.Unmarshal([]byte("{metadata: {name: a}, spec: {taints: [{"+c.taint+"}]}}"), &node); err != nil {
				t.Fatal(err)
			}
			nodes := &expr.Nodes{}
			if err := nodes.Add(node); err != nil {
				t.Fatal(err)
			}
			var toleration map[string]any
			if err := yaml.Unmarshal([]byte("{"+c.toleration+"}"), &toleration); err != nil {
				t.Fatal(err)
			}
			literal, err := json.Marshal(toleration)
			if err != nil {
				t.Fatal(err)
			}
			change, err := comparing(t, fmt.Sprintf(`nodes.matching({'tolerations': [%s]}) == %d`, literal, c.want), differ.Policy{Nodes: nodes})
			if err != nil || change.State != differ.StateHeld || strings.Contains(show(change), "not known") {
				t.Errorf("%s\n%v, %s", c.why, err, show(change))
			}
		})
	}
}

// TestNodesUnread: a plan needs nodes only if a condition reads them. Without these nodes it does
// nothing.
func TestNodesUnread(t *testing.T) {
	t.Parallel()
	change, err := comparing(t, `nodes.matching({}) == 0`, differ.Policy{NodesReadable: true})
	if err != nil || !change.Unread.Nodes || change.Op != differ.OpNone || (differ.Plan{Changes: []differ.Change{change}}).Settled() {
		t.Errorf("%v: unread %t, op %s", err, change.Unread.Nodes, change.Op)
	}
	change, err = comparing(t, `nodes.matching({}) == 0`, differ.Policy{Nodes: newNodes(t, 1), NodesReadable: true})
	if err != nil || change.Unread.Nodes || change.Op != differ.OpUpdate {
		t.Errorf("%v: unread %t, op %s", err, change.Unread.Nodes, change.Op)
	}
	change, err = comparing(t, `nodes == null`, differ.Policy{})
	if err != nil || change.Unread.Nodes || change.State != differ.StateHeld {
		t.Errorf("%v: where nodes can't be known, conditions read null: %s", err, show(change))
	}
	change, err = comparing(t, `old == 'nodesize'`, differ.Policy{NodesReadable: true})
	if err != nil || change.Unread.Nodes {
		t.Errorf("%v: a condition that does not read nodes asks for them", err)
	}
}

// TestNodesCost: the cost of counting is bounded for any number of nodes.
func TestNodesCost(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 5000)
	change, err := comparing(t, `nodes.matching({}) > 4999 && nodes.matching({'nodeSelector': {'zone': '1'}}) == 2500`, differ.Policy{Nodes: nodes})
	if err != nil || change.State != differ.StateHeld || strings.Contains(show(change), "not known") {
		t.Errorf("two counts of 5,000 nodes: %v, %s", err, show(change))
	}
	change, err = comparing(t, `[1,2,3,4,5,6,7,8,9].all(x, [1,2,3,4,5,6,7,8,9].all(y, nodes.matching({'nodeSelector': {'zone': string(x * y)}}) < 5000))`, differ.Policy{Nodes: nodes})
	if !errors.Is(err, differ.ErrTooMuch) && !strings.Contains(show(change), "cost limit exceeded") {
		t.Errorf("81 counts of 5,000 nodes: %v, %s", err, show(change))
	}
}

// TestAddNode: an object that can't be decoded as a Node gives an error with its name.
func TestAddNode(t *testing.T) {
	t.Parallel()
	err := (&expr.Nodes{}).Add(object{"metadata": object{"name": "bad", "labels": 3}})
	if err == nil || !strings.Contains(err.Error(), "node bad") {
		t.Errorf("got %v", err)
	}
}

// show returns the fields of a change, one a line.
func show(c differ.Change) string {
	var b strings.Builder
	for _, f := range c.Fields {
		fmt.Fprintf(&b, "%s %s: recorded %v, target %v, live %v (%s %s)\n", f.Action, f.Path, f.Recorded, f.Target, f.Live, f.Rule, f.Because)
	}
	return b.String()
}
