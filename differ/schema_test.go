package differ_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	smdschema "sigs.k8s.io/structured-merge-diff/v4/schema"
	"sigs.k8s.io/structured-merge-diff/v4/typed"

	"github.com/keelson-io/keelson/differ"
)

// A nullable field must not make the schemas of its whole group unreadable, wherever it is:
// structured-merge-diff v4 has no such fields.
func TestParseOpenAPINullable(t *testing.T) {
	t.Parallel()
	s, err := differ.ParseOpenAPI([]byte(`{"openapi": "3.0.0", "components": {"schemas": {"org.example.v1.Thing": {
		"type": "object", "x-kubernetes-group-version-kind": [{"group": "example.org", "version": "v1", "kind": "Thing"}],
		"properties": {
			"a": {"type": "string", "nullable": true},
			"b": {"type": "array", "items": {"type": "object", "nullable": true, "properties": {"c": {"type": "string", "nullable": true}}}},
			"d": {"type": "object", "additionalProperties": {"type": "string", "nullable": true}},
			"e": {"type": "object", "default": {"nullable": true}, "properties": {"nullable": {"type": "boolean"}}},
			"f": {"nullable": true, "allOf": [{"$ref": "#/components/schemas/org.example.v1.Part"}]}
		}}, "org.example.v1.Part": {"type": "string", "nullable": true}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	schemas := differ.Schemas{{Group: "example.org", Version: "v1"}: s}
	got := resolved(schemas.TypeOf(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Thing"}))
	for path, want := range map[string]string{
		".a": "scalar string", ".b[*].c": "scalar string", ".d.*": "scalar string", ".e.nullable": "scalar boolean", ".f": "scalar string",
	} {
		if got[path] != want {
			t.Errorf("%s is %q, want %q", path, got[path], want)
		}
	}
}

// resolved describes the type at each path, without names of types.
func resolved(typ typed.ParseableType) map[string]string {
	out := map[string]string{}
	var walk func(path string, ref smdschema.TypeRef)
	walk = func(path string, ref smdschema.TypeRef) {
		atom, ok := typ.Schema.Resolve(ref)
		if !ok || strings.Count(path, ".") > 30 {
			return
		}
		var says []string
		if atom.Scalar != nil {
			says = append(says, "scalar "+string(*atom.Scalar))
		}
		if atom.List != nil {
			says = append(says, "list "+string(atom.List.ElementRelationship)+" "+strings.Join(atom.Keys, ","))
		}
		if atom.Map != nil {
			says = append(says, "map "+string(atom.Map.ElementRelationship))
		}
		out[path] = strings.Join(says, ", ")
		if atom.Scalar != nil && atom.Map != nil {
			return // of any type, and so are all values below
		}
		if atom.List != nil {
			walk(path+"[*]", atom.List.ElementType)
		}
		if atom.Map != nil {
			for _, f := range atom.Fields {
				walk(path+"."+f.Name, f.Type)
			}
			walk(path+".*", atom.Map.ElementType)
		}
	}
	walk("", typ.TypeRef)
	return out
}

// Several clusters read documents at the same time, so the conversion must not modify shared data.
// The race detector checks this.
func TestParseConcurrently(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := differ.BuiltInSchemas(schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestHostileOpenAPI: the memory for parsing a document is bounded, also for a hostile document.
func TestHostileOpenAPI(t *testing.T) { //nolint:paralleltest // it counts what is allocated
	document := func(schemas string) []byte {
		return []byte(`{"openapi":"3.0.0","paths":{},"components":{"schemas":{` + schemas + `}}}`)
	}
	many := func(n int, text string) string { return strings.TrimSuffix(strings.Repeat(text, n), ",") }
	var definitions, fields strings.Builder
	for i := range 10_001 {
		fmt.Fprintf(&definitions, `"a%d":{},`, i)
	}
	for i := range 39_000 {
		fmt.Fprintf(&fields, `"a%d":{},`, i)
	}
	for name, c := range map[string]struct {
		why      string
		document []byte
		wantErr  string
	}{
		"Values":      {why: "1 MiB of empty definitions took 300 MiB.", document: document(`"a":{"allOf":[` + many(1<<20/3, "{},") + `]}`), wantErr: "more than 250000 JSON values"},
		"Bytes":       {why: "A document is read as a whole.", document: document(`"a":{"description":"` + many(33<<20, "x") + `"}`), wantErr: "more than 32 MiB"},
		"Definition":  {why: "A definition is decoded as a whole.", document: document(`"a":{"allOf":[` + many(50_000, "{},") + `]}`), wantErr: "the definition a has more than 80000 JSON values"},
		"Text":        {why: "So is its text.", document: document(`"a":{"description":"` + many(5<<20, "x") + `"}`), wantErr: "the definition a has more than 4 MiB"},
		"Definitions": {why: "Each has a price of its own.", document: document(strings.TrimSuffix(definitions.String(), ",")), wantErr: "10001 definitions"},
		"Paths":       {why: "What is not needed is not decoded.", document: []byte(`{"paths":{"/a":[` + many(100_000, "{},") + `]}}`)},
		"Largest":     {why: "What is allowed has a bound, too.", document: document(`"a":{"type":"object","properties":{` + strings.TrimSuffix(fields.String(), ",") + `}}`)},
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // as above
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := differ.ParseOpenAPI(c.document)
			runtime.ReadMemStats(&after)
			if (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s\ngot error %v, want one that says %q", c.why, err, c.wantErr)
			}
			const most = 160 << 20
			if all := after.TotalAlloc - before.TotalAlloc; all > most {
				t.Errorf("%s\n%d MiB were allocated of a document of %d KiB", c.why, all>>20, len(c.document)>>10)
			} else {
				t.Logf("%d KiB allocated %d KiB", len(c.document)>>10, all>>10)
			}
		})
	}
}

// A group and version of many kinds is listed once.
func TestVersionsOnce(t *testing.T) {
	t.Parallel()
	s, err := differ.ParseOpenAPI([]byte(`{"openapi": "3.0.0", "components": {"schemas": {
		"org.example.v1.A": {"type": "object", "x-kubernetes-group-version-kind": [{"group": "example.org", "version": "v1", "kind": "A"}]},
		"org.example.v1.B": {"type": "object", "x-kubernetes-group-version-kind": [{"group": "example.org", "version": "v1", "kind": "B"}]}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Versions(), []schema.GroupVersion{{Group: "example.org", Version: "v1"}}; !slices.Equal(got, want) {
		t.Errorf("The versions are %v, want %v", got, want)
	}
}

// CRDs of the component define kinds. The one of git counts, and an error names the CRD.
func TestAddDefined(t *testing.T) {
	t.Parallel()
	id := differ.ID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "widgets.example.org"}
	gvk := schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Widget"}
	schemas := differ.Schemas{}
	if err := schemas.AddDefined([]differ.State{{ID: id, Live: crdOf(`{"type": "object"}`)}}); err != nil || !schemas.Knows(gvk) {
		t.Errorf("of the cluster: known %v, %v", schemas.Knows(gvk), err)
	}
	bad := crdOf(`{"type": "object"}`)
	bad["spec"].(map[string]any)["versions"] = "v1"
	if err := (differ.Schemas{}).AddDefined([]differ.State{{ID: id, Live: bad}}); err == nil || !strings.Contains(err.Error(), "widgets.example.org") {
		t.Errorf("a malformed one: %v", err)
	}
}
