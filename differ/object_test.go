package differ_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// The part that is cut out of a Widget's spec along a set of fields, and the rest.
func TestCarve(t *testing.T) {
	t.Parallel()
	const keyedA, keyedB = `"k:{\"id\":\"a\"}"`, `"k:{\"id\":\"b\"}"`
	cases := map[string]struct {
		why                string
		spec               string
		set                string // as in managedFields, below spec
		wantPart, wantRest string // "": nothing
	}{
		"Nothing":        {"No field is named.", `{scalar: a}`, `{}`, ``, `{scalar: a}`},
		"Field":          {"One of two.", `{scalar: a, number: 1}`, `{"f:scalar":{}}`, `{scalar: a}`, `{number: 1}`},
		"NotThere":       {"A field that is not there.", `{scalar: a}`, `{"f:number":{}}`, ``, `{scalar: a}`},
		"AllOfStruct":    {"A struct of which nothing is left goes.", `{scalar: a, struct: {a: x}}`, `{"f:struct":{"f:a":{}}}`, `{struct: {a: x}}`, `{scalar: a}`},
		"Whole":          {"A struct that is named itself.", `{scalar: a, struct: {a: x, b: z}}`, `{"f:struct":{}}`, `{struct: {a: x, b: z}}`, `{scalar: a}`},
		"WholeAndPart":   {"Of what is named itself, with a part, the part is owned; all of it goes.", `{struct: {a: x, b: z}}`, `{"f:struct":{".":{},"f:a":{}}}`, `{struct: {a: x}}`, ``},
		"EmptyMap":       {"An empty map that was empty before.", `{scalar: a, map: {}}`, `{"f:map":{"f:k":{}}}`, ``, `{scalar: a, map: {}}`},
		"EmptyMapNamed":  {"An empty map that is named.", `{scalar: a, map: {}}`, `{"f:map":{}}`, `{map: {}}`, `{scalar: a}`},
		"EmptyList":      {"An empty list that was empty before.", `{keyed: [], set: []}`, `{"f:keyed":{` + keyedA + `:{}},"f:set":{"v:\"x\"":{}}}`, ``, `{keyed: [], set: []}`},
		"Item":           {"An item with all its fields.", `{keyed: [{id: a, v: x}, {id: b}]}`, `{"f:keyed":{` + keyedA + `:{}}}`, `{keyed: [{id: a, v: x}]}`, `{keyed: [{id: b}]}`},
		"ItemField":      {"A field comes with the keys of its item, and leaves them there.", `{keyed: [{id: a, v: x}, {id: b}]}`, `{"f:keyed":{` + keyedA + `:{"f:v":{}}}}`, `{keyed: [{id: a, v: x}]}`, `{keyed: [{id: a}, {id: b}]}`},
		"ItemKey":        {"A key alone stays as long as there is more in the item.", `{keyed: [{id: a, v: x}, {id: b}]}`, `{"f:keyed":{` + keyedA + `:{"f:id":{}},` + keyedB + `:{"f:id":{}}}}`, `{keyed: [{id: a}, {id: b}]}`, `{keyed: [{id: a, v: x}]}`},
		"ItemKeyAndMore": {"An item of which only keys would be left, and they were to go, goes.", `{keyed: [{id: a, v: x}]}`, `{"f:keyed":{` + keyedA + `:{"f:id":{},"f:v":{}}}}`, `{keyed: [{id: a, v: x}]}`, ``},
		"LastItem":       {"A list of which nothing is left goes.", `{scalar: a, keyed: [{id: a}]}`, `{"f:keyed":{` + keyedA + `:{}}}`, `{keyed: [{id: a}]}`, `{scalar: a}`},
		"Member":         {"A member of a set.", `{set: [x, z]}`, `{"f:set":{"v:\"x\"":{}}}`, `{set: [x]}`, `{set: [z]}`},
		"Defaulted": {
			"A key that was left out has its default; what is cut out has it, what is left as before.", `{keyed: [{id: a, nested: [{port: 80, name: n}, {port: 80, protocol: UDP}]}]}`,
			`{"f:keyed":{` + keyedA + `:{"f:nested":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{"f:name":{}}}}}}`, `{keyed: [{id: a, nested: [{port: 80, protocol: TCP, name: n}]}]}`, `{keyed: [{id: a, nested: [{port: 80}, {port: 80, protocol: UDP}]}]}`,
		},
		"DefaultedKey": {
			"A key that was left out is not put back.", `{keyed: [{id: a, nested: [{port: 80, name: n}]}]}`,
			`{"f:keyed":{` + keyedA + `:{"f:nested":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{"f:port":{}}}}}}`, `{keyed: [{id: a, nested: [{port: 80, protocol: TCP}]}]}`, `{keyed: [{id: a, nested: [{port: 80, name: n}]}]}`,
		},
		"Atomic":      {"A part of an atomic list or map can't be cut out.", `{atomicList: [{k: a}], atomicMap: {k: a}}`, `{"f:atomicList":{"i:0":{"f:k":{}}},"f:atomicMap":{}}`, `{atomicMap: {k: a}}`, `{atomicList: [{k: a}]}`},
		"NoKey":       {"An item without a key can't be named, and stays.", `{keyed: [{v: x}, {id: a}]}`, `{"f:keyed":{` + keyedA + `:{}}}`, `{keyed: [{id: a}]}`, `{keyed: [{v: x}]}`},
		"OtherShape":  {"Where the schema has a map there is text: no part of it is named.", `{struct: oops, keyed: {id: a}}`, `{"f:struct":{"f:a":{}},"f:keyed":{` + keyedA + `:{}}}`, ``, `{struct: oops, keyed: {id: a}}`},
		"Unknown":     {"Without a schema maps are taken apart, and lists are whole.", `{unknown: {a: {b: 1, c: [1, 2]}}}`, `{"f:unknown":{"f:a":{"f:c":{}}}}`, `{unknown: {a: {c: [1, 2]}}}`, `{unknown: {a: {b: 1}}}`},
		"ScalarInMap": {"Below a scalar there is nothing.", `{scalar: a}`, `{"f:scalar":{"f:a":{}}}`, ``, `{scalar: a}`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			typ := schemas(t).TypeOf(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"})
			read := func(spec string) object {
				if spec == "" {
					return nil
				}
				return objects(t, []byte("{apiVersion: example.com/v1, kind: Widget, spec: "+spec+"}"))[0]["spec"].(object)
			}
			set := &fieldpath.Set{}
			if err := set.FromJSON(strings.NewReader(strings.Replace(`{"f:spec":`+c.set+`}`, `{"f:spec":{}}`, `{}`, 1))); err != nil {
				t.Fatal(err)
			}
			whole := object{"spec": read(c.spec)}
			before := runtime.DeepCopyJSON(whole)
			part, rest := differ.Carve(typ, whole, set)
			if diff := cmp.Diff(before, whole); diff != "" {
				t.Errorf("the object was changed:\n%s", diff)
			}
			for what, got := range map[string][2]any{"cut out": {read(c.wantPart), part}, "left": {read(c.wantRest), rest}} {
				if got[0].(object) == nil && got[1] == nil {
					continue
				}
				if diff := cmp.Diff(any(object{"spec": got[0]}), got[1]); diff != "" {
					t.Errorf("%s This is %s (-want +got):\n%s", c.why, what, diff)
				}
			}
			set.Leaves().Iterate(func(p fieldpath.Path) {
				if part == nil && differ.Has(typ, whole, p) {
					t.Errorf("it has %s, and nothing is cut out", p)
				}
			})
		})
	}
}

// Two parts that were cut give the whole again. No part has a field of the other part, except keys.
func TestGraft(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SampledFrom(shapes).Draw(t, "shape")
		gvk := schema.FromAPIVersionAndKind(shape.apiVersion, shape.kind)
		typ := schemas(t).TypeOf(gvk)
		whole := shape.drawObject(t)
		typed, err := typ.FromUnstructured(dropNulls(runtime.DeepCopyJSON(whole)))
		if err != nil {
			t.Fatal(err)
		}
		all, err := typed.ToFieldSet()
		if err != nil {
			t.Fatal(err)
		}
		set, others := &fieldpath.Set{}, &fieldpath.Set{}
		all.Leaves().Iterate(func(p fieldpath.Path) {
			if rapid.Bool().Draw(t, p.String()) {
				set.Insert(p.Copy())
			} else {
				others.Insert(p.Copy())
			}
		})
		before := fingerprint(t, whole)
		part, rest := differ.Carve(typ, whole, set)
		if lacks := differ.Lacking(typ, part, set); !lacks.Empty() {
			t.Fatalf("%s are not in what is cut out: %v", lacks, part)
		}
		keys := &fieldpath.Set{}
		all.Iterate(func(p fieldpath.Path) {
			if isKey(p) {
				keys.Insert(p.Copy())
			}
		})
		if has := set.Difference(differ.Lacking(typ, rest, set)).Difference(keys); !has.Empty() {
			t.Fatalf("%s are still in what is left: %v", has, rest)
		}
		set.Iterate(func(p fieldpath.Path) {
			if !differ.Has(typ, part, p) {
				t.Fatalf("%s is not in what is cut out: %v", p, part)
			}
			if !isKey(p) && differ.Has(typ, rest, p) {
				t.Fatalf("%s is still in what is left: %v", p, rest)
			}
		})
		others.Iterate(func(p fieldpath.Path) {
			if isKey(p) {
				return // added and removed with the rest of its item
			}
			if !differ.Has(typ, rest, p) {
				t.Fatalf("%s is not in what is left: %v", p, rest)
			}
			if differ.Has(typ, part, p) {
				t.Fatalf("%s is in what is cut out: %v", p, part)
			}
		})
		again, ok := differ.Graft(typ, rest, part).(object)
		if !ok && !all.Empty() {
			t.Fatalf("%v and %v make nothing", rest, part)
		}
		if fingerprint(t, whole) != before {
			t.Fatal("the object was changed")
		}
		id := differ.ID{Group: gvk.Group, Kind: gvk.Kind, Name: "o"}
		plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{ID: id, Recorded: whole, Target: &renderer.Object{Content: again}, Live: whole}}, differ.Policy{AnyComponent: true})
		if err != nil || len(plan.Changes[0].Fields) > 0 {
			t.Fatalf("%v: the parts make another object: %s", err, fmt.Sprint(plan.Changes[0].Fields))
		}
	})
}

// isKey reports whether a field is a key of its item.
func isKey(p fieldpath.Path) bool {
	if len(p) < 2 || p[len(p)-2].Key == nil || p[len(p)-1].FieldName == nil {
		return false
	}
	for _, f := range *p[len(p)-2].Key {
		if f.Name == *p[len(p)-1].FieldName {
			return true
		}
	}
	return false
}
