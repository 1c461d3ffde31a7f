//go:build !race

package differ_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// Any pattern is an error, or works without a panic. The text of a path is a pattern that matches
// the path.
func FuzzParsePattern(f *testing.F) {
	for _, s := range []string{
		"", ".spec.replicas", `.spec.template.spec.containers[name="c"].image`, `.spec.ports[port=80,protocol="TCP"].nodePort`,
		`.metadata.annotations["example.com/x"]`, `.metadata.finalizers[="a/b"]`, ".spec.*[*].x", ".a[0]", ".a[", `.a["\"]"]`, ".a[k=1.5]", ".a..b", "a",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := differ.ParsePattern(s)
		if err != nil {
			return
		}
		p.Matches(nil)
		name := s
		for _, path := range []fieldpath.Path{
			{{FieldName: &name}}, fieldpath.MakePathOrDie("spec", fieldpath.KeyByFields("name", s), "x"), fieldpath.MakePathOrDie("a", 0),
		} {
			p.Matches(path)
			if strings.ContainsAny(s, "[]{}") || strings.HasPrefix(s, ".") || strings.HasSuffix(s, ".") || strings.Contains(s, "..") || s == "" {
				continue
			}
			shown, err := differ.ParsePattern(path.String())
			if err != nil || !shown.Matches(path) {
				t.Errorf("the pattern %q does not match the path that it was copied from (%v)", path, err)
			}
		}
	})
}

// A masked value does not show the secret value, and is not masked again.
func FuzzMaskValue(f *testing.F) {
	f.Add("hunter2", []byte("key"))
	f.Add("aHVudGVyMg==", []byte(nil))
	f.Add("hmac-sha256:0123456789abcdef0123456789abcdef", []byte("key"))
	f.Add("hmac-sha256:hunter2", []byte("key"))
	f.Fuzz(func(t *testing.T, s string, key []byte) {
		masked, ok := differ.MaskValue(s, key).(string)
		if !ok || !differ.IsMasked(masked) {
			t.Fatalf("%q was masked as %q", s, masked)
		}
		if masked == s && !differ.IsMasked(s) || len(s) > 32 && strings.Contains(masked, s) && masked != s {
			t.Fatalf("%q shows in %q", s, masked)
		}
		if again := differ.MaskValue(masked, key); again != masked {
			t.Fatalf("%q was masked again: %q", masked, again)
		}
	})
}

// Any three objects give a plan, or an error that names the object: of a kind with a schema,
// without a schema, or of another shape than their schema. There is no panic, two plans are the
// same, no argument is modified, and no Secret is shown.
func FuzzCompare(f *testing.F) {
	f.Add(`{"spec":{"replicas":1}}`, `{"spec":{"replicas":2}}`, `{"spec":{"replicas":3}}`, `[{"manager":"kubectl","operation":"Update","fieldsV1":{"f:spec":{"f:replicas":{}}}}]`, uint8(0))
	f.Add(`{"spec":{"ports":[{"port":80}]}}`, `{"spec":{"ports":[{"port":80},{"port":80}]}}`, `{"spec":{"ports":"x"}}`, `[]`, uint8(1))
	f.Add(`{"data":{"a":"b"}}`, `{"data":null,"stringData":{"a":1}}`, `{"data":[]}`, `null`, uint8(3))
	f.Add(`{"spec":{"keyed":[{"id":"a","nested":[{"port":1}]}]}}`, `{"spec":{"keyed":[{"id":null}]}}`, `{"spec":{"set":[1,"a",{}],"atomicMap":[]}}`, `{"a":1}`, uint8(4))
	f.Add(`{}`, ``, `{"metadata":{"labels":{"keelson.io/component":"web"},"deletionTimestamp":1}}`, `[{"manager":"keelson","operation":"Apply","fieldsV1":{"f:spec":{".":{}}}}]`, uint8(5))
	f.Add(strings.Repeat(`{"a":`, 700)+"1"+strings.Repeat("}", 700), `{}`, `{}`, `[]`, uint8(5))
	rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{
		{Name: "keep", Path: ".spec.*.*", Effect: v1alpha1.EffectKeep}, {Name: "deny", Path: ".spec.*[*].k", Effect: v1alpha1.EffectDeny},
	}})
	if err != nil {
		f.Fatal(err)
	}
	all := schemas(f)
	f.Fuzz(func(t *testing.T, recorded, target, live, managers string, kind uint8) {
		s := shapes[int(kind)%len(shapes)]
		state := differ.State{ID: objectName(s), OwnersRead: kind%2 == 0}
		state.Recorded = fuzzed(recorded, s, "")
		if o := fuzzed(target, s, ""); o != nil {
			state.Target = &renderer.Object{Content: o}
		}
		state.Live = fuzzed(live, s, managers)
		policy := differ.Policy{Component: component, Rules: rules, Adopt: kind%3 == 0, MaskKey: []byte("key")}
		if kind%5 == 0 {
			policy.Drift = v1alpha1.DriftReport
		}
		before := marshal(t, state)
		plan, err := differ.Compare(t.Context(), all, []differ.State{state}, policy)
		if err != nil {
			if !strings.Contains(err.Error(), state.ID.String()) {
				t.Errorf("the error does not name the object: %v", err)
			}
			return
		}
		again, err := differ.Compare(t.Context(), all, []differ.State{state}, policy)
		if err != nil || marshal(t, plan.Changes) != marshal(t, again.Changes) {
			t.Errorf("the same arguments gave another plan (%v)", err)
		}
		if marshal(t, state) != before {
			t.Error("an argument was modified")
		}
		var b bytes.Buffer
		if err := plan.WriteText(&b, true); err != nil {
			t.Error(err)
		}
		out := b.String() + marshal(t, plan)
		if plan.Changes[0].Op == differ.OpUpdate { // else the record is the caller's own
			out += marshal(t, plan.Changes[0].Record)
		}
		if strings.Contains(out, canary) {
			t.Errorf("a Secret is shown:\n%s", out)
		}
		if c := plan.Changes[0]; c.Patch != nil {
			differ.Residue(all, c, state.Live, policy)
		}
	})
}

// A danger rule of any text works, or gives an error that names the rule. There is no panic, and
// two plans are the same. With a rule that holds or denies, no field or object moves that does not
// move without the rule.
func FuzzRules(f *testing.F) {
	const before, after = `{"spec":{"replicas":4,"template":{"spec":{"containers":[{"name":"c","image":"a"}]}}}}`, `{"spec":{"replicas":1,"template":{"spec":{"containers":[{"name":"c","image":"b"}]}}}}`
	const owners = `[{"manager":"keelson","operation":"Apply","fieldsV1":{"f:spec":{"f:replicas":{}}}},{"manager":"kubectl","operation":"Update","fieldsV1":{"f:spec":{"f:template":{}}}}]`
	f.Add(`{"path": ".spec.replicas", "effect": "hold"}`, before, after, before, owners, uint8(0))
	f.Add(`{"path": ".spec.template.spec.containers[name=\"c\"].image", "effect": "deny", "on": ["change"]}`, before, after, before, owners, uint8(2))
	f.Add(`{"path": ".spec", "effect": "hold", "scope": "field", "when": "new != old"}`, before, after, `{"spec":{"replicas":9}}`, owners, uint8(6))
	f.Add(`{"path": ".spec.*[*]", "effect": "keep", "match": {"group": "example.*", "kinds": ["W*"], "name": "[a-z]"}}`,
		`{"spec":{"keyed":[{"id":"a","v":"1"}],"atomicList":[{"k":"a"}]}}`, `{"spec":{"keyed":[{"id":"b"}],"atomicList":[]}}`, `{"spec":{"set":["x"]}}`, `[]`, uint8(4))
	f.Add(`{"path": "", "effect": "hold", "on": ["delete-object"]}`, before, ``, `{"metadata":{"labels":{"keelson.io/component":"web"}}}`, `[]`, uint8(2))
	f.Add(`{"path": ".data[\"a\"]", "effect": "allow"}`, `{"data":{"a":"x"}}`, `{"data":{"a":"y"}}`, `{"data":{"a":"z"}}`, `null`, uint8(8))
	f.Add(`{"path": ".spec.a", "effect": "hold", "when": "quantity(new) < 1.0"}`, `{"spec":{"a":[1,{"b":null}]}}`, `{"spec":{"a":{}}}`, `{}`, ``, uint8(5))
	base := []v1alpha1.DangerRule{
		{Name: "wait", Path: ".spec.replicas", Effect: v1alpha1.EffectHold, Scope: v1alpha1.ScopeField, When: "new != recorded"},
		{Name: "keep", Path: ".spec.keyed[*].v", Effect: v1alpha1.EffectKeep},
		{Name: "deny", Path: ".spec.struct", Effect: v1alpha1.EffectDeny},
		{Name: "allow", Path: ".spec.selector", Effect: v1alpha1.EffectAllow},
		{Name: "hold", Path: ".spec.atomicList[*].k", Effect: v1alpha1.EffectHold},
	}
	without, err := differ.NewRules(differ.Scopes{Component: base})
	if err != nil {
		f.Fatal(err)
	}
	all := schemas(f)
	f.Fuzz(func(t *testing.T, text, recorded, target, live, managers string, kind uint8) {
		var r v1alpha1.DangerRule
		strict := json.NewDecoder(strings.NewReader(text))
		strict.DisallowUnknownFields()
		if strict.Decode(&r) != nil {
			return
		}
		r.Name = "fuzzed" // not the name of another rule, which this rule would replace
		with, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{r}, Fleet: base})
		if err != nil {
			if !strings.Contains(err.Error(), `danger rule "fuzzed": `) {
				t.Errorf("the error does not name the rule: %v", err)
			}
			return
		}
		s := shapes[int(kind)%len(shapes)]
		state := differ.State{ID: objectName(s), OwnersRead: kind%2 == 0, Recorded: fuzzed(recorded, s, ""), Live: fuzzed(live, s, managers)}
		if o := fuzzed(target, s, ""); o != nil {
			state.Target = &renderer.Object{Content: o}
		}
		policy := differ.Policy{Component: component, Rules: without, Adopt: kind%3 == 0, MaskKey: []byte("key")}
		free, err := differ.Compare(t.Context(), all, []differ.State{state}, policy)
		if err != nil {
			return // FuzzCompare checks this
		}
		policy.Rules = with
		ruled, err := differ.Compare(t.Context(), all, []differ.State{state}, policy)
		if err != nil {
			t.Fatalf("a rule makes an error of a plan: %v", err)
		}
		again, err := differ.Compare(t.Context(), all, []differ.State{state}, policy)
		if err != nil || marshal(t, ruled) != marshal(t, again) {
			t.Errorf("the same arguments gave another plan (%v)", err)
		}
		if _, err := differ.Try(t.Context(), all, []differ.State{state}, policy); err != nil {
			t.Errorf("what can be compared can't be tried: %v", err)
		}
		if r.Scope == v1alpha1.ScopeField || r.Effect != v1alpha1.EffectHold && r.Effect != v1alpha1.EffectDeny {
			return // a more specific rule may allow changes that a broader rule stops
		}
		before := moves(free.Changes[0])
		for what := range moves(ruled.Changes[0]) {
			if !before[what] {
				t.Errorf("with a rule to %s %s moves, and did not without:\n%s\n%s", r.Effect, what, marshal(t, free), marshal(t, ruled))
			}
		}
	})
}

// moves returns the operation of a change, and the fields that it changes.
func moves(c differ.Change) map[string]bool {
	out := map[string]bool{}
	if c.Op == differ.OpNone {
		return out
	}
	out[c.Op.String()] = true
	for _, f := range c.Fields {
		switch f.Action {
		case differ.ActionSet, differ.ActionRestore, differ.ActionRemove, differ.ActionAdopt:
			out[f.Path] = true
		case differ.ActionKeep, differ.ActionRelease, differ.ActionHold, differ.ActionDeny:
		}
	}
	return out
}

// A condition of any text gives an error that names the field, or one of three answers about any
// values: yes, no, or unknown, which stops the change. There is no panic, and the evaluation is
// fast.
func FuzzWhen(f *testing.F) {
	for _, when := range []string{
		"new != old", "new > 1.0 && new * 2 < old", "quantity(new[0]) < quantity(old[0])", "new == null", "'yes'", "new", "object.spec.v[0].a in live.spec.v",
		"new.exists(n, !(n in old))", "cluster.labels.?tier.orValue('x') == 'x'", "new[0].matches('^(a|b)*$')", "old[0].split(',').size() > 1", "[1, 2].all(x, new.all(y, x != y))",
		"timestamp(new[0]) < timestamp(old[0])", "duration(new[0]) > duration('1h')", "object.metadata.labels.filter(k, k.startsWith('a')).size() == 0",
		"{'a': new} == {'a': old}", "type(new[0]) == int", "b'a' == bytes(new[0])", "new[0].substring(1, 3) == 'x'", "optional.of(new).hasValue()",
		"1/0 == 1", "9223372036854775807 + 1 > 0", "new[99999999999]", "dyn(new).a.b.c", "'%s'.format([1]) == ''", "\"\\U0010FFFF\" == new[0]", "new.map(a, new.map(b, new)).size() > 0",
	} {
		f.Add(when, `[1]`, `[2]`)
		f.Add(when, `["a,b"]`, `["1Gi", {"a": null}]`)
	}
	all := schemas(f)
	f.Fuzz(func(t *testing.T, when, old, target string) {
		before, after := fuzzed(`{"spec":{"v":`+old+`}}`, things, ""), fuzzed(`{"spec":{"v":`+target+`}}`, things, "")
		if before == nil || after == nil {
			return
		}
		rule := v1alpha1.DangerRule{Name: "w", Path: ".spec.v", When: when}
		state := differ.State{ID: objectName(things), Recorded: before, Live: before, Target: &renderer.Object{Content: after}, OwnersRead: true}
		// outcome returns the result for the one field if no other rule can stop the field.
		outcome := func(effect v1alpha1.Effect, more ...v1alpha1.DangerRule) (differ.ObjectState, string) {
			rule.Effect = effect
			rules, err := differ.NewRules(differ.Scopes{Component: append([]v1alpha1.DangerRule{rule}, more...)})
			if err != nil {
				if !strings.HasPrefix(err.Error(), `danger rule "w": when: `) {
					t.Errorf("the error does not say what is wrong: %v", err)
				}
				return 0, ""
			}
			start := time.Now()
			plan, err := differ.Compare(t.Context(), all, []differ.State{state}, differ.Policy{Component: component, Rules: rules})
			if took := time.Since(start); err != nil || took > 2*time.Minute {
				t.Fatalf("it took %s, and the error is %v", took, err)
			}
			if c := plan.Changes[0]; len(c.Fields) == 1 && c.Fields[0].Path == ".spec.v" {
				return c.State, c.Fields[0].Because
			}
			return 0, ""
		}
		held, because := outcome(v1alpha1.EffectHold)
		if held == 0 {
			return // more than one field differs, or the text is no condition
		}
		again, too := outcome(v1alpha1.EffectHold)
		denied, _ := outcome(v1alpha1.EffectDeny)
		allowed, _ := outcome(v1alpha1.EffectAllow, v1alpha1.DangerRule{Name: "d", Path: ".spec.v", Effect: v1alpha1.EffectDeny})
		got := [4]differ.ObjectState{held, again, denied, allowed}
		const changed, stopped, forbidden = differ.StateChanged, differ.StateHeld, differ.StateDenied
		want := [4]differ.ObjectState{changed, changed, changed, forbidden} // the answer is no
		switch unknown := strings.Contains(because, "whether it applies is not known"); {
		case unknown:
			want = [4]differ.ObjectState{stopped, stopped, forbidden, stopped}
		case held == stopped:
			want = [4]differ.ObjectState{stopped, stopped, forbidden, changed}
		}
		if got != want || because != too {
			t.Errorf("to hold makes it %s and %s again, to deny %s, to allow what is denied %s (%s, %s)", held, again, denied, allowed, because, too)
		}
	})
}

// things have no schema: their lists are compared as a whole.
var things = shape{apiVersion: "unknown.test/v1", kind: "Thing"}

// fuzzed makes an object of the shape's kind from any JSON map.
func fuzzed(text string, s shape, managers string) map[string]any {
	var u unstructured.Unstructured
	if json.Unmarshal([]byte(text), &map[string]any{}) != nil {
		return nil
	}
	// Numbers as in the answers of an API server.
	if err := u.UnmarshalJSON([]byte(`{"kind":"List","items":[],"o":` + text + `}`)); err != nil {
		return nil
	}
	o, ok := u.Object["o"].(map[string]any)
	if !ok {
		return nil
	}
	o["apiVersion"], o["kind"] = s.apiVersion, s.kind
	if s.kind == "Secret" {
		o["data"], o["stringData"] = marked(o["data"]), marked(o["stringData"])
	}
	meta, ok := o["metadata"].(map[string]any)
	if !ok {
		meta = map[string]any{"labels": map[string]any{v1alpha1.LabelComponent: component}}
	}
	meta["name"], meta["namespace"] = "o", "prod"
	var fields any
	if managers != "" && json.Unmarshal([]byte(managers), &fields) == nil {
		meta["managedFields"] = fields
	}
	o["metadata"] = meta
	return o
}

const canary = "canary-"

// marked adds a prefix to every string of a Secret, so that a test can find the string again.
func marked(v any) any {
	switch v := v.(type) {
	case string:
		return canary + v
	case map[string]any:
		for name, child := range v {
			v[name] = marked(child)
		}
	case []any:
		for i, item := range v {
			v[i] = marked(item)
		}
	}
	return v
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
