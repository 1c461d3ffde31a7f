package differ_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/differ"
)

// crdOf returns a CRD whose spec has the given schema, in JSON.
func crdOf(spec string) map[string]any {
	var crd map[string]any
	text := `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.org"},
		"spec": {"group": "example.org", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"}, "versions": [
		{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": ` + spec + `}}}}]}}`
	if err := json.Unmarshal([]byte(text), &crd); err != nil {
		panic(fmt.Sprintf("%v: %s", err, text))
	}
	return crd
}

func widgetOf(name string, spec any) map[string]any {
	return map[string]any{
		"apiVersion": "example.org/v1", "kind": "Widget", "metadata": map[string]any{"name": name, "namespace": "prod"}, "spec": spec,
	}
}

func judgeOf(t *testing.T, live, target string) *differ.CRDJudge {
	t.Helper()
	j, err := differ.NewCRDJudge(crdOf(live), crdOf(target))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// The counts of pages are added, and the result mentions objects that were not read.
func TestCRDJudgePages(t *testing.T) {
	t.Parallel()
	open, closed := `{"type": "object", "properties": {"size": {"type": "integer"}}}`,
		`{"type": "object", "required": ["size"], "properties": {"size": {"type": "integer"}}}`
	j := judgeOf(t, open, closed)
	if got := j.Versions(); len(got) != 1 || j.Resource(got[0]).String() != "example.org/v1, Resource=widgets" {
		t.Errorf("it asks for %v of %s", got, j.Resource("v1"))
	}
	if !j.Takes(differ.ID{Group: "example.org", Kind: "Widget", Name: "a"}) || j.Takes(differ.ID{Group: "example.com", Kind: "Widget", Name: "a"}) {
		t.Error("it takes the wrong objects")
	}
	for page := range 3 {
		good := widgetOf(fmt.Sprint("good", page), map[string]any{"size": int64(1)})
		bad := widgetOf(fmt.Sprint("bad", page), map[string]any{})
		before := fmt.Sprint(good, bad)
		if err := j.Look(t.Context(), "v1", good, bad); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(good, bad) != before {
			t.Error("an object was modified")
		}
	}
	j.More()
	const want = "3 of the first 6 widgets no longer satisfy the schema: prod/bad0: .spec.size is required; prod/bad1: .spec.size is required; " +
		"prod/bad2: .spec.size is required; there are more, which were not checked"
	if diff := cmp.Diff(want, j.Instances().String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := judgeOf(t, open, open).Versions(); len(got) > 0 {
		t.Errorf("nothing changes, and it asks for %v", got)
	}
}

// An object is judged by the schema of the version in which it was read. Other versions may want
// other fields: a conversion sets them.
func TestCRDJudgeVersions(t *testing.T) {
	t.Parallel()
	versions := func(v1, v2 string) map[string]any {
		crd := crdOf(v1)
		spec := crd["spec"].(map[string]any)
		second := crdOf(v2)["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
		second["name"], second["storage"] = "v2", false
		spec["versions"] = append(spec["versions"].([]any), second)
		spec["conversion"] = map[string]any{"strategy": "Webhook"}
		return crd
	}
	const open = `{"type": "object", "properties": {"size": {"type": "integer"}, "length": {"type": "integer"}}}`
	requires := func(field string) string {
		return `{"type": "object", "required": ["` + field + `"], "properties": {"size": {"type": "integer"}, "length": {"type": "integer"}}}`
	}
	j, err := differ.NewCRDJudge(versions(open, open), versions(requires("size"), requires("length")))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Look(t.Context(), "v1", widgetOf("sized", map[string]any{"size": int64(1)}), widgetOf("long", map[string]any{"length": int64(1)})); err != nil {
		t.Fatal(err)
	}
	const want = "1 of 2 widgets no longer satisfies the schema: prod/long: .spec.size is required"
	if diff := cmp.Diff(want, j.Instances().String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An API server removes a null that a schema does not allow when it reads an object, so the null is
// no problem.
func TestCRDJudgeNulls(t *testing.T) {
	t.Parallel()
	j := judgeOf(t, `{"type": "object", "x-kubernetes-preserve-unknown-fields": true}`,
		`{"type": "object", "properties": {"size": {"type": "integer"}}}`)
	if err := j.Look(t.Context(), "v1", widgetOf("null", map[string]any{"size": nil}), widgetOf("text", map[string]any{"size": "1"})); err != nil {
		t.Fatal(err)
	}
	if got := j.Instances(); got.Refused != 1 || got.First[0].Name != "text" {
		t.Errorf("got %s, want only text", got)
	}
}

// A target that an API server would refuse is judged as far as it goes, or is an error that says which
// side it is. It never ends the process.
func TestCRDJudgeOfMalformedTarget(t *testing.T) {
	t.Parallel()
	const open = `{"type": "object", "properties": {"size": {"type": "integer"}}}`
	unstored := crdOf(`{"type": "object", "required": ["size"], "properties": {"size": {"type": "integer"}}}`)
	unstored["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)["storage"] = false
	j, err := differ.NewCRDJudge(crdOf(open), unstored)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Look(t.Context(), "v1", widgetOf("bare", map[string]any{})); err != nil || j.Instances().Refused != 1 {
		t.Errorf("no version is stored: %s, %v", j.Instances(), err)
	}
	if _, err := differ.NewCRDJudge(crdOf(open), crdOf(`{"properties": {"size": {"type": "integer"}}}`)); err == nil || !strings.Contains(err.Error(), "as it is wanted") {
		t.Errorf("a schema without a type: %v", err)
	}
}

// A context that has ended and an object that is nested too deeply are errors, and no verdict.
func TestCRDJudgeEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j := judgeOf(t, `{"type": "object"}`, `{"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-validations": [{"rule": "true"}]}`)
	if err := j.Look(ctx, "v1", widgetOf("a", map[string]any{})); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	deep := any("x")
	for range differ.MaxDepth + 1 {
		deep = []any{deep}
	}
	if err := j.Look(t.Context(), "v1", widgetOf("deep", deep)); err == nil || !strings.Contains(err.Error(), "prod/deep") {
		t.Errorf("error is %v, want one that names the object", err)
	}
}

// FuzzCRDJudge: any schema and any object give a verdict or an error, without the object's values.
func FuzzCRDJudge(f *testing.F) {
	f.Add(`{"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}}`, `{"a": "y"}`)
	f.Add(`{"type": "object", "additionalProperties": {"type": "string", "format": "date-time", "pattern": "("}}`, `{"a": "y"}`)
	f.Add(`{"type": "array", "items": {"type": "object", "x-kubernetes-embedded-resource": true}}`, `[{"a": null}]`)
	f.Add(`{"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}}`, `{"a": ["y", "y"]}`)
	f.Add(`{"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
		"items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}}}}`, `{"a": [{"k": "y"}, {"k": "y"}, 3]}`)
	f.Add(`{"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-validations": [
		{"rule": "timestamp(self.a) < timestamp('2020-01-01T00:00:00Z')", "messageExpression": "self.a"}, {"rule": "int(self.a) > 1"}, {"rule": "self.b"}]}`, `{"a": "y"}`)
	f.Add(`{"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"required": ["c"]}, "properties": {
		"a": {"x-kubernetes-int-or-string": true}, "b": {"type": "string", "maxLength": 1}, "c": {"type": "integer", "default": "z"}}}`, `{"a": [], "b": "yy", "c": 1}`)
	f.Fuzz(func(t *testing.T, schema, object string) {
		var spec, value any
		if json.Unmarshal([]byte(schema), &spec) != nil || json.Unmarshal([]byte(object), &value) != nil {
			return
		}
		const secret = "hunter2hunter2"
		value = withStrings(value, secret)
		j, err := differ.NewCRDJudge(crdOf(`{"type": "object", "x-kubernetes-preserve-unknown-fields": true}`), crdOf(schema))
		if err != nil {
			return
		}
		if err := j.Look(t.Context(), "v1", widgetOf("a", value)); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows a value: %v", err)
		}
		if said := j.Instances().String(); strings.Contains(said, secret) {
			t.Errorf("a value is shown: %s", said)
		}
	})
}

// withStrings replaces every string that is a value.
func withStrings(v any, s string) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = withStrings(v[k], s)
		}
	case []any:
		for i := range v {
			v[i] = withStrings(v[i], s)
		}
	case string:
		return s
	}
	return v
}

// BenchmarkCRDJudge measures one page of 500 widgets.
func BenchmarkCRDJudge(b *testing.B) {
	const open = `{"type": "object", "properties": {"size": {"type": "integer"}, "parts": {"type": "array", "items":
		{"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}}}}`
	const closed = `{"type": "object", "x-kubernetes-validations": [{"rule": "self.size > 0"}], "properties": {"size": {"type": "integer"}, "parts": {"type": "array", "maxItems": 50, "items":
		{"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}}}}`
	var parts []any
	for i := range 10 {
		parts = append(parts, map[string]any{"name": fmt.Sprint(i), "n": int64(i)})
	}
	page := slices.Repeat([]map[string]any{widgetOf("a", map[string]any{"size": int64(1), "parts": parts})}, 500)
	j, err := differ.NewCRDJudge(crdOf(open), crdOf(closed))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := j.Look(b.Context(), "v1", page...); err != nil {
			b.Fatal(err)
		}
	}
	if j.Instances().Refused > 0 {
		b.Fatal(j.Instances())
	}
}

// What was found is one line, whatever was found.
func TestInstancesSay(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		found differ.CustomResources
		want  string
	}{
		"All":    {differ.CustomResources{Resource: "widgets", Looked: 3}, "3 widgets satisfy the new schema"},
		"Partly": {differ.CustomResources{Resource: "widgets", Looked: 500, Partly: true}, "the first 500 widgets satisfy the new schema; there are more, which were not checked"},
		"One": {
			differ.CustomResources{Resource: "widgets", Looked: 3, Refused: 1, First: []differ.RefusedResource{{Namespace: "a", Name: "b", Problems: []string{".spec is required"}}}},
			"1 of 3 widgets no longer satisfies the schema: a/b: .spec is required",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.found.String(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
