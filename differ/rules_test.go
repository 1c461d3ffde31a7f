package differ_test

import (
	"fmt"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// Every built-in rule can be shown and overridden: it has a name of its own, a
// reason, and a known effect.
func TestBuiltIn(t *testing.T) {
	t.Parallel()
	rules, err := differ.BuiltIn()
	if err != nil {
		t.Fatal(err)
	}
	type meaning struct{ because, effect, on, kinds string }
	named := map[string]meaning{}
	for _, r := range rules {
		if r.Name == "" || r.Because == "" {
			t.Errorf("rule %+v has no name or no reason", r.DangerRule)
		}
		if r.Effect != v1alpha1.EffectKeep && r.Effect != v1alpha1.EffectHold {
			t.Errorf("rule %s has effect %q", r.Name, r.Effect)
		}
		m := meaning{r.Because, string(r.Effect), fmt.Sprint(r.On), fmt.Sprint(r.Match.Kinds)}
		if other, twice := named[r.Name]; twice && other != m {
			t.Errorf("two rules are called %s: %v and %v", r.Name, other, m)
		}
		named[r.Name] = m
	}
	for _, name := range []string{
		"autoscaled-replicas", "service-allocations", "workload-selector", "service-selector", "volume-claim-templates", "service-name",
		"delete-Namespace", "delete-CustomResourceDefinition", "delete-PersistentVolumeClaim", "delete-PersistentVolume", "delete-StorageClass",
	} {
		if _, ok := named[name]; !ok {
			t.Errorf("rule %s is missing", name)
		}
		delete(named, name)
	}
	if len(named) > 0 {
		t.Errorf("these rules have no case in testdata: %v", named)
	}
}

// A danger must not pass because of a typing mistake in its rule.
func TestNewRulesRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		rule v1alpha1.DangerRule
		want string
	}{
		"Path":        {"It would match nothing.", v1alpha1.DangerRule{Path: "spec.replicas"}, "starts with . or ["},
		"EmptyField":  {"It would match nothing.", v1alpha1.DangerRule{Path: ".spec..replicas"}, "has no name"},
		"OpenBracket": {"It would match nothing.", v1alpha1.DangerRule{Path: `.a[name="x]`}, "not closed"},
		"Unquoted":    {"A key's value is JSON, and a bare word is none.", v1alpha1.DangerRule{Path: ".a[name=x].b"}, "quoted string"},
		"BareField":   {"A field in brackets stands in quotes.", v1alpha1.DangerRule{Path: ".a[x]"}, `"field"`},
		"KeyStar":     {"* stands for an element, not for a value.", v1alpha1.DangerRule{Path: ".a[name=*]"}, "quoted string"},
		"Mixed":       {"A key needs a value.", v1alpha1.DangerRule{Path: `.a[name="x",y]`}, "key=value"},
		"Effect":      {"An unknown effect must not fall through.", v1alpha1.DangerRule{Path: ".a", Effect: "forbid"}, `effect "forbid"`},
		"NoEffect":    {"Neither must a missing one.", v1alpha1.DangerRule{Path: ".a"}, "effect"},
		"Event":       {"It would match nothing.", v1alpha1.DangerRule{Path: ".a", On: []v1alpha1.Event{"delete"}}, `event "delete"`},
		"Glob":        {"It would match nothing.", v1alpha1.DangerRule{Path: ".a", Match: v1alpha1.ObjectMatch{Name: "[a"}}, `match "[a"`},
		"When":        {"A condition that is no CEL has no answer.", v1alpha1.DangerRule{Path: ".a", When: "new <\n  "}, "when: line 2, column 3"},
		"WhenName":    {"Neither has one that speaks of what there is not.", v1alpha1.DangerRule{Path: ".a", When: "before != new"}, "undeclared reference to 'before'"},
		"WhenType":    {"Nor one that is no condition.", v1alpha1.DangerRule{Path: ".a", When: "'yes'"}, "of type string"},
		"WhenLength":  {"A condition is read by people.", v1alpha1.DangerRule{Path: ".a", When: strings.Repeat(" ", 3000) + "true"}, "too long"},
		"KindGlob":    {"It would match nothing.", v1alpha1.DangerRule{Path: ".a", Match: v1alpha1.ObjectMatch{Kinds: []string{"a", "[b"}}}, `match "[b"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.rule.Name = "mine"
			if c.rule.Effect == "" && name != "NoEffect" {
				c.rule.Effect = v1alpha1.EffectHold
			}
			_, err := differ.NewRules([]v1alpha1.DangerRule{c.rule})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"mine"`) {
				t.Errorf("%s Error is %v, want it to name the rule and say %s", c.why, err, c.want)
			}
		})
	}
}

func TestDuplicateStates(t *testing.T) {
	t.Parallel()
	id := differ.ID{Kind: "ConfigMap", Namespace: "a", Name: "b"}
	_, err := differ.Compare(nil, []differ.State{{ID: id}, {ID: differ.ID{Kind: "ConfigMap"}}, {ID: id}}, differ.Policy{})
	if diff := cmp.Diff(&differ.DuplicateError{ID: id}, err); diff != "" {
		t.Error(diff)
	}
}

// An object that would overflow the stack of a naive recursion is an error that
// names the object and the side, and nothing of the plan is left.
func TestTooDeep(t *testing.T) {
	t.Parallel()
	deep := func(levels int) map[string]any {
		var v any = "x"
		for i := range levels {
			if i%2 == 0 {
				v = []any{v}
			} else {
				v = map[string]any{"a": v}
			}
		}
		return map[string]any{"apiVersion": "nobody.knows/v1", "kind": "Thing", "spec": v}
	}
	flat := deep(1)
	for side, state := range map[string]differ.State{
		"target":   {Target: &renderer.Object{Content: deep(10_000)}},
		"live":     {Target: &renderer.Object{Content: flat}, Recorded: flat, Live: deep(10_000)},
		"recorded": {Target: &renderer.Object{Content: flat}, Recorded: deep(10_000), Live: flat},
	} {
		state.ID = differ.ID{Group: "nobody.knows", Kind: "Thing", Name: "deep"}
		plan, err := differ.Compare(nil, []differ.State{state, {ID: differ.ID{Kind: "Other"}}}, differ.Policy{})
		if err == nil || !strings.Contains(err.Error(), "Thing.nobody.knows deep: the "+side+" object") || len(plan.Changes) > 0 {
			t.Errorf("%s: error is %v with %d changes", side, err, len(plan.Changes))
		}
	}
	deepest := deep(differ.MaxDepth - 1)
	_, err := differ.Compare(nil, []differ.State{{
		ID: differ.ID{Kind: "Thing"}, Recorded: deepest, Target: &renderer.Object{Content: deepest}, Live: deepest,
	}}, differ.Policy{})
	if err != nil {
		t.Errorf("an object at the limit: %v", err)
	}
}

// A stack far smaller than Go's default takes the deepest object.
func TestDeepestObjectNeedsLittleStack(t *testing.T) {
	previous := debug.SetMaxStack(4 << 20)
	defer debug.SetMaxStack(previous)
	var v any = "x"
	for range differ.MaxDepth - 3 {
		v = map[string]any{"a": v}
	}
	o := map[string]any{"apiVersion": "nobody.knows/v1", "kind": "Thing", "spec": v}
	live := map[string]any{"apiVersion": "nobody.knows/v1", "kind": "Thing", "spec": map[string]any{}}
	plan, err := differ.Compare(nil, []differ.State{{
		ID: differ.ID{Group: "nobody.knows", Kind: "Thing"}, Recorded: live, Target: &renderer.Object{Content: o}, Live: live,
	}}, differ.Policy{})
	if err != nil || plan.Count(differ.OpUpdate) != 1 {
		t.Errorf("%d updates, error %v", plan.Count(differ.OpUpdate), err)
	}
}
