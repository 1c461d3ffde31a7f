package differ_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/expr"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// catalogueCase is one edit of one object, and the expected effect of one built-in rule.
type catalogueCase struct {
	// Why explains the case in a sentence.
	Why string `json:"why"`
	// Before is recorded and live; null: the object is created. After is the target; null: the
	// object is deleted.
	Before map[string]any `json:"before"`
	After  map[string]any `json:"after"`
	// Objects are other objects of the component, which don't change.
	Objects []map[string]any `json:"objects"`
	// Status of the live object.
	Status map[string]any `json:"status"`
	// Nodes of the cluster; null: not known.
	Nodes []map[string]any `json:"nodes"`
	// Fires is the effect of the rule: hold, warn, keep or none.
	Fires string `json:"fires"`
}

// TestCatalogue runs the cases of testdata/catalogue: one file a rule, named after the rule. Each
// has at least three cases. The rule fires on one of them at least, and does not fire on another.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	rules, err := differ.NewRules(differ.Scopes{})
	if err != nil {
		t.Fatal(err)
	}
	builtIn, err := differ.BuiltInRules(v1alpha1.ProfileBaseline)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/catalogue/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		rule := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			if !slices.ContainsFunc(builtIn, func(r v1alpha1.DangerRule) bool { return r.Name == rule }) {
				t.Fatalf("there is no built-in rule %s", rule)
			}
			runCatalogueCases(t, file, rule, rules)
		})
	}
}

func runCatalogueCases(t *testing.T, file, rule string, rules differ.Rules) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []catalogueCase
	if err := yaml.UnmarshalStrict(data, &cases); err != nil {
		t.Fatal(err)
	}
	fired := 0
	for _, c := range cases {
		if len(c.Why) < 10 {
			t.Errorf("a case does not say why: %+v", c)
		}
		if c.Fires != "none" {
			fired++
		}
		plan, err := differ.Compare(t.Context(), schemas(t), c.states(t), differ.Policy{Component: component, Rules: rules, Nodes: c.nodes(t)})
		if err != nil {
			t.Fatalf("%s: %v", c.Why, err)
		}
		if text := asJSON(t, plan); strings.Contains(text, "whether it applies is not known") {
			t.Errorf("%s\nA condition has no answer:\n%s", c.Why, text)
		}
		if got := firesOf(plan, rule); got != c.Fires {
			t.Errorf("%s\nThe rule fires: %s, want %s. The plan:\n%s", c.Why, got, c.Fires, asJSON(t, plan))
		}
	}
	if len(cases) < 3 || fired == 0 || fired == len(cases) {
		t.Errorf("%d cases, of which %d fire: at least 3 are needed, one that fires and one that does not", len(cases), fired)
	}
}

func (c catalogueCase) states(t *testing.T) []differ.State {
	t.Helper()
	states := []differ.State{stateOf(t, c.Before, c.After)}
	if c.Status != nil {
		states[0].Live["status"] = c.Status
	}
	for _, o := range c.Objects {
		states = append(states, stateOf(t, o, o))
	}
	return states
}

func (c catalogueCase) nodes(t *testing.T) *expr.Nodes {
	t.Helper()
	if c.Nodes == nil {
		return nil
	}
	nodes := &expr.Nodes{}
	for _, n := range c.Nodes {
		if err := nodes.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	return nodes
}

// stateOf returns an object of the component whose record and live object are before.
func stateOf(t *testing.T, before, after map[string]any) differ.State {
	t.Helper()
	labelled := func(object map[string]any) map[string]any {
		if object == nil {
			return nil
		}
		object = deepCopy(t, object)
		metadata := object["metadata"].(map[string]any)
		labels, _ := metadata["labels"].(map[string]any)
		if labels == nil {
			labels = map[string]any{}
			metadata["labels"] = labels
		}
		labels[v1alpha1.LabelComponent] = component
		return object
	}
	s := differ.State{Recorded: labelled(before), Live: labelled(before), OwnersRead: true}
	if after != nil {
		s.ID, _ = differ.Identify(after)
		s.Target = &renderer.Object{Content: labelled(after), Source: yamlfile.Position{File: "web.yaml", Line: 1}}
	} else {
		s.ID, _ = differ.Identify(before)
	}
	if s.Live != nil {
		s.Live["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{
			"manager": v1alpha1.FieldManager, "operation": "Apply", "apiVersion": before["apiVersion"], "fieldsType": "FieldsV1",
			"fieldsV1": ownedFields(t, s.Recorded),
		}}
	}
	return s
}

// ownedFields returns all fields of an object in the form of managedFields.
func ownedFields(t *testing.T, object map[string]any) map[string]any {
	t.Helper()
	_, gvk := differ.Identify(object)
	value, err := schemas(t).TypeOf(gvk).FromUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	set, err := value.ToFieldSet()
	if err != nil {
		t.Fatal(err)
	}
	data, err := set.ToJSON()
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// deepCopy converts numbers to the types that an API server's client returns.
func deepCopy(t *testing.T, object map[string]any) map[string]any {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// firesOf returns the effect of a rule in a plan.
func firesOf(plan differ.Plan, rule string) string {
	for i := range plan.Changes {
		c := &plan.Changes[i]
		if slices.ContainsFunc(c.Warnings, func(w differ.Warning) bool { return w.Rule == rule }) {
			return "warn"
		}
		if c.Rule == rule {
			return "hold"
		}
		for _, f := range c.Fields {
			if f.Rule == rule {
				return f.Action.String()
			}
		}
	}
	return "none"
}
