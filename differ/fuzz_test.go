package differ_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// A pattern is an error or works: no panic, and the path that it was made of
// matches.
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

// A masked value shows nothing of what it hides, stays equal to itself, and is
// not masked twice.
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

// Any three objects, of a kind with a schema, without one, or of another shape
// than their schema says: an error that names the object, or a plan; no panic,
// the same plan twice, nothing modified, no Secret shown.
func FuzzCompare(f *testing.F) {
	f.Add(`{"spec":{"replicas":1}}`, `{"spec":{"replicas":2}}`, `{"spec":{"replicas":3}}`, `[{"manager":"kubectl","operation":"Update","fieldsV1":{"f:spec":{"f:replicas":{}}}}]`, uint8(0))
	f.Add(`{"spec":{"ports":[{"port":80}]}}`, `{"spec":{"ports":[{"port":80},{"port":80}]}}`, `{"spec":{"ports":"x"}}`, `[]`, uint8(1))
	f.Add(`{"data":{"a":"b"}}`, `{"data":null,"stringData":{"a":1}}`, `{"data":[]}`, `null`, uint8(3))
	f.Add(`{"spec":{"keyed":[{"id":"a","nested":[{"port":1}]}]}}`, `{"spec":{"keyed":[{"id":null}]}}`, `{"spec":{"set":[1,"a",{}],"atomicMap":[]}}`, `{"a":1}`, uint8(4))
	f.Add(`{}`, ``, `{"metadata":{"labels":{"keelson.io/component":"web"},"deletionTimestamp":1}}`, `[{"manager":"keelson","operation":"Apply","fieldsV1":{"f:spec":{".":{}}}}]`, uint8(5))
	f.Add(strings.Repeat(`{"a":`, 700)+"1"+strings.Repeat("}", 700), `{}`, `{}`, `[]`, uint8(5))
	rules, err := differ.NewRules([]v1alpha1.DangerRule{
		{Name: "keep", Path: ".spec.*.*", Effect: v1alpha1.EffectKeep}, {Name: "deny", Path: ".spec.*[*].k", Effect: v1alpha1.EffectDeny},
	})
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
		plan, err := differ.Compare(all, []differ.State{state}, policy)
		if err != nil {
			if !strings.Contains(err.Error(), state.ID.String()) {
				t.Errorf("the error does not name the object: %v", err)
			}
			return
		}
		again, err := differ.Compare(all, []differ.State{state}, policy)
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

// fuzzed makes an object of the shape's kind of any JSON map.
func fuzzed(text string, s shape, managers string) map[string]any {
	var u unstructured.Unstructured
	if json.Unmarshal([]byte(text), &map[string]any{}) != nil {
		return nil
	}
	// Numbers as an API server's answers have them.
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

// marked makes every text of a Secret one that can be found again.
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
