package differ_test

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// Every built-in rule can be shown and overridden: all rules of a name have the same reason and a
// known effect.
func TestBuiltIn(t *testing.T) {
	t.Parallel()
	rules, err := differ.BuiltIn()
	if err != nil {
		t.Fatal(err)
	}
	type meaning struct{ because, effect, on, when string }
	named := map[string]meaning{}
	ours := map[string]bool{"immutable": true, "owner-gained": true} // about how Keelson itself works
	for _, r := range rules {
		if r.Name == "" || r.Because == "" {
			t.Errorf("rule %+v has no name or no reason", r.DangerRule)
		}
		if r.Effect != v1alpha1.EffectKeep && r.Effect != v1alpha1.EffectHold && r.Effect != v1alpha1.EffectWarn {
			t.Errorf("rule %s has effect %q", r.Name, r.Effect)
		}
		if kept := r.Effect == v1alpha1.EffectKeep || ours[r.Name]; !kept && (r.Fix == "" || r.Source == "") {
			t.Errorf("rule %s does not say what to do instead, or where the danger is described", r.Name)
		}
		if err := r.Compiles(); err != nil {
			t.Errorf("rule %s: %v", r.Name, err)
		}
		m := meaning{r.Because, string(r.Effect), fmt.Sprint(r.On), r.When}
		if other, twice := named[r.Name]; twice && other != m {
			t.Errorf("two rules are called %s: %v and %v", r.Name, other, m)
		}
		named[r.Name] = m
	}
	for _, name := range []string{
		"autoscaled-replicas", "service-allocations", "workload-selector", "service-selector", "volume-claim-templates", "service-name",
		"fewer-replicas", "fewer-claims", "claims-not-kept", "chosen-claims", "recreated-claims", "other-ordinals", "delete-with-claims", "service-type", "storage-class", "claim-class", "claim-shrunk", "crd-scope", "crd-served-version", "crd-stored-version", "crd-schema",
		"ca-bundle", "webhook-fails-closed", "webhook-widened", "webhook-selector", "rbac-escalation",
		"privileged", "host-path", "host-namespaces", "new-capability", "immutable",
		"autoscaled-requests", "autoscaled-limits", "finalizers", "owner-references", "owner-gained",
		"delete-Namespace", "delete-CustomResourceDefinition", "delete-PersistentVolumeClaim", "delete-PersistentVolume", "delete-StorageClass",
	} {
		if _, ok := named[name]; !ok {
			t.Errorf("rule %s is missing", name)
		}
		delete(named, name)
	}
	for name := range named {
		if _, err := os.Stat("testdata/catalogue/" + name + ".yaml"); err != nil {
			t.Errorf("rule %s has no cases: %v", name, err)
		}
	}
}

// The objects and fields of each built-in rule, as a list to read: testdata/built-in.txt, which
// -update rewrites. TestGolden and TestCatalogue check the effects of the rules.
func TestBuiltInConcerns(t *testing.T) {
	t.Parallel()
	rules, err := differ.BuiltInRules(v1alpha1.ProfileBaseline)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range rules {
		path, group, kinds := r.Path, r.Match.Group, strings.Join(r.Match.Kinds, ", ")
		for of, all := range map[*string]string{&path: "the object", &group: "any", &kinds: "any"} {
			if *of == "" {
				*of = all
			}
		}
		fmt.Fprintf(&b, "%s: %s %s on %v\n\tgroup %s, kind %s\n", r.Name, r.Effect, path, r.On, group, kinds)
	}
	const file = "testdata/built-in.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil { //nolint:gosec // test data
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("%s (-want +got); go test ./differ -run TestBuiltInConcerns -update rewrites it:\n%s", file, diff)
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
		"Scope":       {"An unknown scope must not fall through.", v1alpha1.DangerRule{Path: ".a", Scope: "list"}, `scope "list"`},
		"ScopeDeny":   {"What is denied stops the delivery.", v1alpha1.DangerRule{Path: ".a", Scope: "field", Effect: v1alpha1.EffectDeny}, "is for hold"},
		"When":        {"A condition that is no CEL has no answer.", v1alpha1.DangerRule{Path: ".a", When: "new <\n  "}, "when: line 2, column 3"},
		"WhenName":    {"Neither has one that speaks of what there is not.", v1alpha1.DangerRule{Path: ".a", When: "before != new"}, "undeclared reference to 'before'"},
		"WhenType":    {"Nor one that is no condition.", v1alpha1.DangerRule{Path: ".a", When: "'yes'"}, "of type string"},
		"WhenLength":  {"A condition is read by people.", v1alpha1.DangerRule{Path: ".a", When: strings.Repeat(" ", 3000) + "true"}, "too long"},
		"GroupGlob":   {"It would match nothing.", v1alpha1.DangerRule{Path: ".a", Match: v1alpha1.ObjectMatch{Group: "[a"}}, `match "[a"`},
		"SpaceGlob":   {"It would match nothing.", v1alpha1.DangerRule{Path: ".a", Match: v1alpha1.ObjectMatch{Namespace: "[a"}}, `match "[a"`},
		"Replace":     {"Text in place of nothing in itself fills all memory.", v1alpha1.DangerRule{Path: ".a", When: "true &&\n new.replace('', new) == ''"}, "when: line 2, column 13: there is no function replace here"},
		"Join":        {"So does text between the letters of itself.", v1alpha1.DangerRule{Path: ".a", When: "[1].exists(x, new.split('').join(new) == '')"}, "no function join"},
		"Format":      {"So does a long text many times.", v1alpha1.DangerRule{Path: ".a", When: "'%s%s'.format([new, new]) == ''"}, "no function format"},
		"Sets":        {"Each with each takes for ever.", v1alpha1.DangerRule{Path: ".a", When: "sets.contains(new, old)"}, "undeclared reference to 'sets'"},
		"KindGlob":    {"It would match nothing.", v1alpha1.DangerRule{Path: ".a", Match: v1alpha1.ObjectMatch{Kinds: []string{"a", "[b"}}}, `match "[b"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.rule.Name = "mine"
			if c.rule.Effect == "" && name != "NoEffect" {
				c.rule.Effect = v1alpha1.EffectHold
			}
			_, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{c.rule}})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"mine"`) {
				t.Errorf("%s Error is %v, want it to name the rule and say %s", c.why, err, c.want)
			}
		})
	}
}

// A rule says what it means by default, too, and is taken for the same rule.
func TestNewRulesAccepts(t *testing.T) {
	t.Parallel()
	for why, rule := range map[string]v1alpha1.DangerRule{
		"The default scope may be written.":        {Path: ".a", Effect: v1alpha1.EffectDeny, Scope: v1alpha1.ScopeObject},
		"A rule may hold a field and no more.":     {Path: ".a", Effect: v1alpha1.EffectHold, Scope: v1alpha1.ScopeField},
		"No scope is the scope of a whole object.": {Path: ".a", Effect: v1alpha1.EffectDeny},
	} {
		rule.Name = "mine"
		if _, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{rule}}); err != nil {
			t.Errorf("%s It is refused: %v", why, err)
		}
	}
}

// A field that waits stays in the record as it was. Otherwise its change would count as drift, and
// a change that git takes back would be forgotten.
func TestScopeFieldRecord(t *testing.T) {
	t.Parallel()
	object := func(replicas, zone, image any, more ...any) map[string]any {
		spec := map[string]any{
			"template": map[string]any{"spec": map[string]any{"containers": append([]any{
				map[string]any{"name": "web", "image": image},
			}, more...)}},
		}
		if replicas != nil {
			spec["replicas"] = replicas
		}
		meta := map[string]any{"name": "web", "labels": map[string]any{v1alpha1.LabelComponent: component}}
		if zone != nil {
			meta["annotations"] = map[string]any{"zone": zone}
		}
		return map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
	}
	owners := []byte(`keelson Apply - {"f:metadata":{"f:annotations":{"f:zone":{}}},"f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{` +
		`"k:{\"name\":\"web\"}":{".":{},"f:name":{},"f:image":{}},"k:{\"name\":\"side\"}":{".":{},"f:name":{},"f:image":{}}}}}}}`)
	side := map[string]any{"name": "side", "image": "v1"}
	rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{
		{Name: "replicas", Path: ".spec.replicas", Effect: v1alpha1.EffectHold, Scope: v1alpha1.ScopeField},
		{Name: "zone", Path: ".metadata.annotations", Effect: v1alpha1.EffectHold, Scope: v1alpha1.ScopeField},
		{Name: "side", Path: `.spec.template.spec.containers[name="side"]`, Effect: v1alpha1.EffectHold, Scope: v1alpha1.ScopeField},
	}})
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		why                    string
		recorded, target, want map[string]any
	}{
		"Changed": {"The old value.", object(int64(2), "a", "v1"), object(int64(3), "b", "v2"), object(int64(2), "a", "v2")},
		"Added":   {"It was never applied.", object(nil, nil, "v1"), object(int64(3), "b", "v2"), object(nil, nil, "v2")},
		"Removed": {"It is there, and Keelson's to remove.", object(int64(2), "a", "v1"), object(nil, nil, "v2"), object(int64(2), "a", "v2")},
		"Item":    {"A list item that waits stays whole.", object(nil, nil, "v1", side), object(nil, nil, "v2"), object(nil, nil, "v2", side)},
		"Settled": {"Nothing else is left to do.", object(int64(2), "a", "v1"), object(int64(3), "b", "v1"), object(int64(2), "a", "v1")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			live := maps.Clone(c.recorded)
			meta := maps.Clone(live["metadata"].(map[string]any))
			meta["managedFields"] = managedFields(t, owners)
			live["metadata"] = meta
			plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{
				ID:       differ.ID{Group: "apps", Kind: "Deployment", Name: "web"},
				Recorded: c.recorded, Target: &renderer.Object{Content: c.target}, Live: live,
			}}, differ.Policy{AnyComponent: true, Rules: rules})
			if err != nil {
				t.Fatal(err)
			}
			got := plan.Changes[0]
			if diff := cmp.Diff(c.want, got.Record); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
			if got.State != differ.StateHeld || (got.Op == differ.OpUpdate) == (name == "Settled") || got.RecordStale == (name == "Settled") {
				t.Errorf("it is %s, %s, record stale: %v", got.Op, got.State, got.RecordStale)
			}
		})
	}
}

// An approval of a field that waits alone must remain valid after the rest of the object has
// changed.
func TestScopeFieldHash(t *testing.T) {
	t.Parallel()
	rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{{Name: "a", Path: ".data.a", Effect: v1alpha1.EffectHold, Scope: v1alpha1.ScopeField}}})
	if err != nil {
		t.Fatal(err)
	}
	object := func(a, b string) map[string]any {
		return map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"a": a, "b": b},
			"metadata": map[string]any{"name": "c", "labels": map[string]any{v1alpha1.LabelComponent: component}},
		}
	}
	hash := func(live, target map[string]any) string {
		plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{
			ID: differ.ID{Kind: "ConfigMap", Name: "c"}, OwnersRead: true,
			Recorded: live, Target: &renderer.Object{Content: target}, Live: live,
		}}, differ.Policy{AnyComponent: true, Rules: rules})
		if err != nil {
			t.Fatal(err)
		}
		return plan.Changes[0].Hash
	}
	before, after, other := hash(object("x", "x"), object("z", "z")), hash(object("x", "z"), object("z", "z")), hash(object("x", "x"), object("y", "z"))
	if before != after || before == other {
		t.Errorf("hashes are %s before and %s after the rest went out, and %s of another change", before, after, other)
	}
}

func TestDuplicateStates(t *testing.T) {
	t.Parallel()
	id := differ.ID{Kind: "ConfigMap", Namespace: "a", Name: "b"}
	_, err := differ.Compare(t.Context(), nil, []differ.State{{ID: id}, {ID: differ.ID{Kind: "ConfigMap"}}, {ID: id}}, differ.Policy{})
	if diff := cmp.Diff(&differ.DuplicateError{ID: id}, err); diff != "" {
		t.Error(diff)
	}
}

// A rule applies inside a value that only changes as a whole. The rule counts if the value at its
// path is added, changed or removed, and nowhere else.
func TestRulesInsideAtomicValues(t *testing.T) {
	t.Parallel()
	item := func(k string, more ...any) object {
		o := object{"k": k}
		for i := 0; i+1 < len(more); i += 2 {
			o[more[i].(string)] = more[i+1]
		}
		return o
	}
	cases := []struct {
		why, path string
		old, new  any
		want      bool
	}{
		{"The item at a place.", ".spec.v[1]", list{"a", "b"}, list{"a", "c"}, true},
		{"The item at another place.", ".spec.v[1]", list{"a", "b"}, list{"c", "b"}, false},
		{"A place that is new.", ".spec.v[1]", list{"a"}, list{"a", "b"}, true},
		{"A place that is gone.", ".spec.v[1]", list{"a", "b"}, list{"b"}, true},
		{"A member that comes.", `.spec.v[="b"]`, list{"a"}, list{"a", "b"}, true},
		{"A member that moves only.", `.spec.v[="b"]`, list{"b", "a"}, list{"a", "b"}, false},
		{"Another member.", `.spec.v[="b"]`, list{"b"}, list{"b", "c"}, false},
		{"A member that is a number.", `.spec.v[=1]`, list{}, list{1.0}, true},
		{"A field of an item with a key.", `.spec.v[k="a"].x`, list{item("a", "x", "1"), item("b")}, list{item("a", "x", "2"), item("b")}, true},
		{"The field of another item.", `.spec.v[k="a"].x`, list{item("a"), item("b", "x", "1")}, list{item("a"), item("b", "x", "2")}, false},
		{"Another field.", `.spec.v[k="a"].x`, list{item("a", "y", "1")}, list{item("a", "y", "2")}, false},
		{"An item with both keys.", `.spec.v[k="a",l="b"]`, list{item("a", "l", "b", "x", "1")}, list{item("a", "l", "b", "x", "2")}, true},
		{"An item with one of them.", `.spec.v[k="a",l="b"]`, list{item("a", "l", "c", "x", "1")}, list{item("a", "l", "c", "x", "2")}, false},
		{"What has no keys.", `.spec.v[k="a"]`, list{"a"}, list{"b"}, false},
		{"Any item.", ".spec.v[*].x", list{item("a"), item("b")}, list{item("a"), item("b", "x", "1")}, true},
		{"A field of the list is none of its items'.", ".spec.v[*].x", list{item("a", "y", object{"x": "1"})}, list{item("a", "y", object{"x": "2"})}, false},
		{"Further below.", ".spec.v[*].x[*].y", list{item("a", "x", list{object{"y": "1"}})}, list{item("a", "x", list{object{"y": "2"}})}, true},
		{"A name with dots, quoted.", `.spec.v[0]["x.y"]`, list{object{"x.y": "1"}}, list{object{"x.y": "2"}}, true},
		{"A name with dots, not quoted.", ".spec.v[0].x.y", list{object{"x.y": "1"}}, list{object{"x.y": "2"}}, true},
		{"Any field.", ".spec.v[0].*", list{object{"x.y": "1"}}, list{object{"x.y": "2"}}, true},
		{"No such field.", ".spec.v[0].x.z", list{object{"x.y": "1"}}, list{object{"x.y": "2"}}, false},
		{"A place in a map.", ".spec.v[0][1]", list{object{"1": "1"}}, list{object{"1": "2"}}, false},
	}
	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			t.Parallel()
			rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{{Name: "r", Path: c.path, Effect: v1alpha1.EffectHold}}})
			if err != nil {
				t.Fatal(err)
			}
			live := thing(object{"v": c.old})
			plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{
				ID:       differ.ID{Group: "unknown.test", Kind: "Thing", Namespace: "prod", Name: "o"},
				Recorded: live, Target: &renderer.Object{Content: thing(object{"v": c.new})}, Live: live, OwnersRead: true,
			}}, differ.Policy{AnyComponent: true, Rules: rules})
			if err != nil {
				t.Fatal(err)
			}
			if got := plan.Changes[0].State == differ.StateHeld; got != c.want {
				t.Errorf("%s held: %v", c.path, got)
			}
		})
	}
}

// Each rule applies to the objects that it matches.
func TestRulesMatch(t *testing.T) {
	t.Parallel()
	id := func(group, kind, namespace, name string) differ.ID {
		return differ.ID{Group: group, Kind: kind, Namespace: namespace, Name: name}
	}
	cases := map[string]struct {
		why     string
		match   v1alpha1.ObjectMatch
		yes, no []differ.ID
	}{
		"Any": {
			why: "Nothing narrows it.",
			yes: []differ.ID{id("", "ConfigMap", "prod", "c"), id("apps", "Deployment", "prod", "d"), id("example.com", "Cluster", "", "c")},
		},
		"Group": {
			why: "One group.", match: v1alpha1.ObjectMatch{Group: "apps"},
			yes: []differ.ID{id("apps", "Deployment", "prod", "d")},
			no:  []differ.ID{id("", "ConfigMap", "prod", "c"), id("myapps", "Deployment", "prod", "d"), id("apps.example.com", "X", "", "x")},
		},
		"Core": {
			why: "The group that has no name.", match: v1alpha1.ObjectMatch{Group: "core"},
			yes: []differ.ID{id("", "ConfigMap", "prod", "c"), id("core", "X", "", "x")},
			no:  []differ.ID{id("apps", "Deployment", "prod", "d")},
		},
		"Groups": {
			why: "Groups by glob, in which dots are letters.", match: v1alpha1.ObjectMatch{Group: "*.example.com"},
			yes: []differ.ID{id("a.example.com", "X", "", "x"), id("a.b.example.com", "X", "", "x")},
			no:  []differ.ID{id("example.com", "X", "", "x"), id("", "ConfigMap", "prod", "c")},
		},
		"Kinds": {
			why: "Any of the kinds.", match: v1alpha1.ObjectMatch{Kinds: []string{"Config*", "Secret"}},
			yes: []differ.ID{id("", "ConfigMap", "prod", "c"), id("", "Secret", "prod", "s"), id("example.com", "Secret", "", "s")},
			no:  []differ.ID{id("", "SecretClass", "", "s"), id("apps", "Deployment", "prod", "d")},
		},
		"Namespace": {
			why: "One namespace, in which nothing of the whole cluster is.", match: v1alpha1.ObjectMatch{Namespace: "prod"},
			yes: []differ.ID{id("", "ConfigMap", "prod", "c")},
			no:  []differ.ID{id("", "ConfigMap", "prod2", "c"), id("example.com", "Cluster", "", "prod")},
		},
		"Name": {
			why: "Names by glob.", match: v1alpha1.ObjectMatch{Name: "c?"},
			yes: []differ.ID{id("", "ConfigMap", "prod", "c1")},
			no:  []differ.ID{id("", "ConfigMap", "prod", "c"), id("", "ConfigMap", "prod", "c12")},
		},
		"All": {
			why: "All of it has to be right.", match: v1alpha1.ObjectMatch{Group: "apps", Kinds: []string{"Deployment"}, Namespace: "prod", Name: "d"},
			yes: []differ.ID{id("apps", "Deployment", "prod", "d")},
			no:  []differ.ID{id("app", "Deployment", "prod", "d"), id("apps", "DaemonSet", "prod", "d"), id("apps", "Deployment", "pro", "d"), id("apps", "Deployment", "prod", "e")},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{{Name: "r", Match: c.match, Effect: v1alpha1.EffectDeny, On: []v1alpha1.Event{v1alpha1.OnDeleteObject}}}})
			if err != nil {
				t.Fatal(err)
			}
			for i, id := range append(c.yes, c.no...) {
				o := object{"apiVersion": "v1", "kind": id.Kind, "metadata": object{"labels": object{v1alpha1.LabelComponent: component}}}
				plan, err := differ.Compare(t.Context(), nil, []differ.State{{ID: id, Recorded: o, Live: o}}, differ.Policy{AnyComponent: true, Rules: rules})
				if err != nil {
					t.Fatal(err)
				}
				if got := plan.Changes[0].State == differ.StateDenied; got != (i < len(c.yes)) {
					t.Errorf("%s It is about %s: %v", c.why, id, got)
				}
			}
		})
	}
}

// A rule without a name replaces no rule.
func TestRulesWithoutName(t *testing.T) {
	t.Parallel()
	rules, err := differ.NewRules(differ.Scopes{
		Component: []v1alpha1.DangerRule{{Path: ".data.a", Effect: v1alpha1.EffectHold}, {Path: ".data.b", Effect: v1alpha1.EffectHold}},
		Fleet:     []v1alpha1.DangerRule{{Path: ".data.c", Effect: v1alpha1.EffectHold}},
	})
	if err != nil {
		t.Fatal(err)
	}
	configMap := func(v string) object {
		return object{"apiVersion": "v1", "kind": "ConfigMap", "data": object{"a": v, "b": v, "c": v, "d": v}, "metadata": object{
			"name": "c", "labels": object{v1alpha1.LabelComponent: component},
		}}
	}
	plan, err := differ.Compare(t.Context(), nil, []differ.State{{
		ID: differ.ID{Kind: "ConfigMap", Name: "c"}, Recorded: configMap("x"), Target: &renderer.Object{Content: configMap("z")}, Live: configMap("x"),
	}}, differ.Policy{AnyComponent: true, Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	var held []string
	for _, f := range plan.Changes[0].Fields {
		if f.Action == differ.ActionHold {
			held = append(held, f.Path)
		}
	}
	if diff := cmp.Diff([]string{".data.a", ".data.b", ".data.c"}, held); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

// A profile makes the catalogue stricter or looser, and no rule of git. A component of a project
// may only make the catalogue stricter.
func TestProfiles(t *testing.T) {
	t.Parallel()
	effects := func(profile v1alpha1.DangerProfile) map[v1alpha1.Effect]int {
		rules, err := differ.BuiltInRules(profile)
		if err != nil {
			t.Fatal(err)
		}
		n := map[v1alpha1.Effect]int{}
		for _, r := range rules {
			n[r.Effect]++
		}
		return n
	}
	baseline, strict, off := effects(v1alpha1.ProfileBaseline), effects(v1alpha1.ProfileStrict), effects(v1alpha1.ProfileOff)
	if strict[v1alpha1.EffectWarn] != 0 || strict[v1alpha1.EffectHold] != baseline[v1alpha1.EffectHold]+baseline[v1alpha1.EffectWarn] {
		t.Errorf("strict has %v, and baseline %v: what is warned of is to be held", strict, baseline)
	}
	if len(off) != 1 || off[v1alpha1.EffectKeep] != baseline[v1alpha1.EffectKeep] {
		t.Errorf("off has %v: only what keeps is to stay of %v", off, baseline)
	}
	cases := map[string]struct {
		why    string
		scopes differ.Scopes
		want   v1alpha1.DangerProfile // empty: an error
	}{
		"Default":        {"A fleet says nothing.", differ.Scopes{}, v1alpha1.ProfileBaseline},
		"Fleet":          {"It is for all components.", differ.Scopes{FleetProfile: "strict"}, v1alpha1.ProfileStrict},
		"Component":      {"A component decides for itself.", differ.Scopes{FleetProfile: "strict", ComponentProfile: "off"}, v1alpha1.ProfileOff},
		"FencedLooser":   {"One of a project can't loosen.", differ.Scopes{ComponentProfile: "off", InProject: true}, ""},
		"FencedLooser2":  {"Nor go back to the default.", differ.Scopes{FleetProfile: "strict", ComponentProfile: "baseline", InProject: true}, ""},
		"FencedStricter": {"It may be stricter.", differ.Scopes{ComponentProfile: "strict", InProject: true}, v1alpha1.ProfileStrict},
		"Unknown":        {"A typing mistake is no profile.", differ.Scopes{FleetProfile: "stricter"}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := c.scopes.Profile()
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%s Profile() = %q, %v, want %q", c.why, got, err, c.want)
			}
			if _, err := differ.NewRules(c.scopes); (err == nil) != (c.want != "") {
				t.Errorf("%s NewRules: %v", c.why, err)
			}
		})
	}
}
