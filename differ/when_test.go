package differ_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/expr"
	"github.com/keelson-io/keelson/renderer"
)

// asked compares a thing whose .spec.v changes from old to target, under the rules. It returns the
// state and the reason of the deciding rule.
func asked(t *testing.T, old, target any, more object, rules ...v1alpha1.DangerRule) (differ.ObjectState, string) {
	t.Helper()
	for i := range rules {
		rules[i].Path = ".spec.v"
	}
	compiled, err := differ.NewRules(differ.Scopes{Component: rules})
	if err != nil {
		t.Fatal(err)
	}
	live, wanted := object{"more": more, "v": old}, object{"more": more, "v": target}
	plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{
		ID:       differ.ID{Group: "unknown.test", Kind: "Thing", Namespace: "prod", Name: "o"},
		Recorded: thing(live), Target: &renderer.Object{Content: thing(wanted)}, Live: thing(live), OwnersRead: true,
	}}, differ.Policy{Component: component, Rules: compiled})
	if err != nil {
		t.Fatal(err)
	}
	c := plan.Changes[0]
	for _, f := range c.Fields {
		if f.Path == ".spec.v" {
			return c.State, f.Because
		}
	}
	return c.State, ""
}

// A condition may read any part of the largest object. It has an answer or is stopped, and then
// counts as true. Without the bounds each of these conditions would take minutes, or all memory.
func TestConditionsAreBounded(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 500<<10)
	items := make(list, 50_000)
	for i := range items {
		items[i] = fmt.Sprint(i)
	}
	for name, when := range map[string]string{
		"PatternOfText": "new.matches(new)",
		"PatternInList": "object.spec.more.items.exists(i, new.matches(i + 'x{900}y'))",
		"LongPattern":   "new.matches('(x?){1000}y')",
		"NestedLoops":   "object.spec.more.items.all(a, object.spec.more.items.all(b, a != b + 'x'))",
		"NestedMaps":    "[1, 2, 3, 4].map(a, object.spec.more.items.map(b, object.spec.more.items.map(c, [a, b, c]))).size() > 0",
		"Quadratic":     "object.spec.more.items.all(a, a in object.spec.more.items)",
		"Growing":       "new.split('').map(a, new + new).size() > 0",
		"Letters":       "new.split('').map(a, [a, a]).size() > 0",
		"Quantity":      "quantity(new) > 1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			state, because := asked(t, "x", text, object{"items": items}, v1alpha1.DangerRule{Name: "w", Effect: v1alpha1.EffectHold, When: when, Because: "it is bounded"})
			if state != differ.StateHeld || !strings.HasPrefix(because, "it is bounded (whether it applies is not known: ") || len(because) > 300 {
				t.Errorf("it is %s, because %.500s", state, because)
			}
			if took := time.Since(start); took > 2*time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// Conditions have these functions and variables, with these results.
func TestConditions(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		when string
		want bool
	}{
		"Matches":      {"As in CEL: anywhere in the text.", `new.matches('^v[0-9]+') && matches(new, '2$') && !new.matches('^2')`, true},
		"MatchesNot":   {"A pattern that is not there.", `new.matches('[a-u]')`, false},
		"Split":        {"The parts of a version.", `new.split('.')[0] == 'v1' && int(new.split('.')[1]) - int(old.split('.')[1]) > 1`, true},
		"Lower":        {"Case is often no difference.", `new.upperAscii().lowerAscii() == new`, true},
		"Recorded":     {"What was applied before.", `recorded == old`, true},
		"Absent":       {"A field that is not there can be asked for.", `has(object.spec.nosuch) || object.?spec.nosuch.orValue(1) == 1`, true},
		"Numbers":      {"Of any kind.", `1 < 1.5 && dyn(2u) == 2`, true},
		"MatchesLimit": {"As many steps as are allowed.", `'` + strings.Repeat("x", 1900) + `'.matches('x{200}$')`, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state, because := asked(t, "v1.0", "v1.2", nil, v1alpha1.DangerRule{Name: "w", Effect: v1alpha1.EffectHold, When: c.when, Because: "it is true"})
			want, reason := differ.StateChanged, ""
			if c.want {
				want, reason = differ.StateHeld, "it is true"
			}
			if state != want || because != reason {
				t.Errorf("%s It is %s, because %s", c.why, state, because)
			}
		})
	}
}

// A condition about an object sees everything of a Secret but its data, which an error could quote.
func TestConditionsOfSecrets(t *testing.T) {
	t.Parallel()
	secret := object{
		"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": object{"name": "s"},
		"data": object{"a": "eA=="}, "stringData": object{"b": "y"},
	}
	for when, want := range map[string]bool{
		"object.kind == 'Secret' && object.type == 'Opaque' && object.metadata.name == 's'": true,
		"has(object.data)":       false,
		"has(object.stringData)": false,
	} {
		c, err := expr.NewConditions().Compile("when", when)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.Holds(secret, nil); err != nil || got != want {
			t.Errorf("%s is %t, want %t; error %v", when, got, want, err)
		}
	}
}

// A condition about an object reads the labels of the cluster, also where there are none.
func TestConditionsOfClusters(t *testing.T) {
	t.Parallel()
	c, err := expr.NewConditions().Compile("when", "has(cluster.labels.stage) && cluster.labels.stage == 'production'")
	if err != nil {
		t.Fatal(err)
	}
	for stage, want := range map[string]bool{"production": true, "testing": false} {
		if got, err := c.Holds(object{}, map[string]string{"stage": stage}); err != nil || got != want {
			t.Errorf("in %s: %t, want %t; error %v", stage, got, want, err)
		}
	}
	if got, err := c.Holds(object{}, nil); err != nil || got {
		t.Errorf("without labels: %t; error %v", got, err)
	}
}

// A condition without an answer gives the reason, in one line.
func TestConditionsWithoutAnswer(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ why, when, want string }{
		"Pattern":      {"It is no regular expression.", `new.matches('(')`, "error parsing regexp: missing closing ): `(`"},
		"PatternDepth": {"Nor is one that is repeated too often.", `new.matches('((x{99}){99}){99}')`, "invalid repeat count"},
		"PatternLong":  {"It would take too long to read.", `old.matches('` + strings.Repeat("x", 1000) + `' + '` + strings.Repeat("x", 917) + `' + old + old + old + old)`, "2049 bytes: 2048 are allowed"},
		"Steps":        {"It would take too long to match.", `(new + new).matches('x{1000}')`, "1004004 steps"},
		"TextPattern":  {"A number is no text.", `dyn(1).matches('a')`, "no such overload"},
		"Pattern1":     {"A number is no pattern.", `new.matches(dyn(1))`, "no such overload"},
		"Key":          {"There is no such field.", `object.spec.nosuch == 1`, "no such key: nosuch"},
		"Type":         {"Text is no number.", `new > 1`, "no such overload"},
		"Quantity":     {"Long text is not quoted, not in part either: a part of a secret would not be redacted.", `quantity(new) > 1`, "longer than 200 bytes"},
		"Boolean":      {"It depends on the value whether it is a condition.", `new`, "of type string"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, because := asked(t, strings.Repeat("o", 33), strings.Repeat("v", 501), nil, v1alpha1.DangerRule{Name: "w", Effect: v1alpha1.EffectHold, When: c.when})
			if !strings.Contains(because, c.want) || len(because) > 300 || strings.Contains(because, "\n") {
				t.Errorf("%s Because: %s", c.why, because)
			}
		})
	}
}
