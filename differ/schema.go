package differ

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
	smdschema "sigs.k8s.io/structured-merge-diff/v4/schema"
	"sigs.k8s.io/structured-merge-diff/v4/typed"
	smdv6 "sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/keelson-io/keelson/differ/jsonsize"
)

// Schema holds the field types of the kinds that one document describes. It is immutable and safe
// for concurrent use.
type Schema struct {
	types  map[schema.GroupVersionKind]kindType
	values int // of the document
}

// Values returns the number of JSON values in the OpenAPI v3 document of [ParseOpenAPI]; 0 for any
// other schema. A schema takes up to 200 bytes of memory for each value.
func (s *Schema) Values() int { return s.values }

// kindType is the type of one kind.
type kindType struct {
	typed.ParseableType
	hash string // of the kind's document
}

// Bounds of an OpenAPI v3 document, of which any API server may be the author. Documents of
// Kubernetes have up to 30,000 values, and those of the largest groups of CRDs up to 150,000. A
// definition of a CRD is at most as large as the CRD, which is 1.5 MiB.
const (
	maxDocumentBytes    = 32 << 20
	maxDocumentValues   = 250_000
	maxDefinitions      = 10_000
	maxDefinitionBytes  = 4 << 20
	maxDefinitionValues = 80_000
)

// ParseOpenAPI reads one OpenAPI v3 document as an API server publishes it under
// /openapi/v3/apis/GROUP/VERSION. The error is about a document or a definition that is malformed
// or beyond its bounds.
//
// A definition takes a hundred times its text while it is decoded. So definitions are decoded one
// by one, and the rest of the document is not decoded.
func ParseOpenAPI(document []byte) (*Schema, error) {
	all := jsonsize.Meter{MaxBytes: maxDocumentBytes, MaxValues: maxDocumentValues, Each: jsonsize.Never}
	if err := all.Count(document); err != nil {
		return nil, fmt.Errorf("the OpenAPI v3 document has %w, which Keelson does not read", err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(document, &doc); err != nil {
		return nil, fmt.Errorf("decode OpenAPI v3 document: %w", err)
	}
	if n := len(doc.Components.Schemas); n > maxDefinitions {
		return nil, fmt.Errorf("the OpenAPI v3 document has %d definitions, and Keelson reads at most %d", n, maxDefinitions)
	}
	c := newConversion(document)
	c.schema.values = int(all.Values())
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		text := doc.Components.Schemas[name]
		one := jsonsize.Meter{MaxBytes: maxDefinitionBytes, MaxValues: maxDefinitionValues, Each: jsonsize.Never}
		if err := one.Count(text); err != nil {
			return nil, fmt.Errorf("the definition %.200s has %w, which Keelson does not read", name, err)
		}
		model := &spec.Schema{}
		if err := model.UnmarshalJSON(text); err != nil {
			return nil, fmt.Errorf("decode OpenAPI v3 document: definition %.200s: %w", name, err)
		}
		if err := c.add(map[string]*spec.Schema{name: model}, false); err != nil {
			return nil, fmt.Errorf("convert OpenAPI v3 document: definition %.200s: %w", name, err)
		}
	}
	return c.finish(), nil
}

// ParseOpenAPIV2 reads the OpenAPI v2 (Swagger) document of all groups and versions of an API
// server, under /openapi/v2. It has less information than version 3, and none about a custom
// resource that preserves unknown fields.
func ParseOpenAPIV2(document []byte) (*Schema, error) {
	var doc spec.Swagger
	if err := json.Unmarshal(document, &doc); err != nil {
		return nil, fmt.Errorf("decode OpenAPI v2 document: %w", err)
	}
	models := make(map[string]*spec.Schema, len(doc.Definitions))
	for name, s := range doc.Definitions {
		models[name] = &s
	}
	s, err := newSchema(document, models, false)
	if err != nil {
		return nil, fmt.Errorf("convert OpenAPI v2 document: %w", err)
	}
	return s, nil
}

// newSchema converts the definitions of a document, which refer to each other by name.
func newSchema(document []byte, models map[string]*spec.Schema, preserveUnknown bool) (*Schema, error) {
	c := newConversion(document)
	if err := c.add(models, preserveUnknown); err != nil {
		return nil, err
	}
	return c.finish(), nil
}

// conversion makes a schema of definitions, which may be added in parts.
//
// kube-openapi converts to the schema of structured-merge-diff v6. v6 has the same format as v4, so
// it is copied type by type. (A copy by YAML took half of the time of a parse.)
type conversion struct {
	schema *Schema
	hash   string // of the document
	parser *typed.Parser
	kinds  map[schema.GroupVersionKind]string // names of definitions
	common map[string]bool                    // types that each part has
}

func newConversion(document []byte) *conversion {
	sum := sha256.Sum256(document)
	return &conversion{
		schema: &Schema{types: map[schema.GroupVersionKind]kindType{}}, hash: hex.EncodeToString(sum[:8]),
		parser: &typed.Parser{}, kinds: map[schema.GroupVersionKind]string{}, common: map[string]bool{},
	}
}

func (c *conversion) add(models map[string]*spec.Schema, preserveUnknown bool) error {
	converted, err := schemaconv.ToSchemaFromOpenAPI(models, preserveUnknown)
	if err != nil {
		return fmt.Errorf("read definitions: %w", err)
	}
	for _, t := range converted.Types {
		if models[t.Name] == nil {
			if c.common[t.Name] {
				continue
			}
			c.common[t.Name] = true
		}
		c.parser.Schema.Types = append(c.parser.Schema.Types, smdschema.TypeDef{Name: t.Name, Atom: atomV4(t.Atom)})
	}
	for name, s := range models {
		for _, gvk := range kindsOf(s) {
			c.kinds[gvk] = name
		}
	}
	return nil
}

// finish returns the schema; no definition may be added afterwards.
func (c *conversion) finish() *Schema {
	for gvk, name := range c.kinds {
		c.schema.types[gvk] = kindType{c.parser.Type(name), c.hash}
	}
	return c.schema
}

// atomV4 copies an atom of structured-merge-diff v6. It omits nullable, which v4 lacks and v6 does
// not use, and unions, which neither version uses.
func atomV4(a smdv6.Atom) smdschema.Atom {
	var out smdschema.Atom
	if a.Scalar != nil {
		out.Scalar = new(smdschema.Scalar(*a.Scalar))
	}
	if l := a.List; l != nil {
		out.List = &smdschema.List{
			ElementType: typeV4(l.ElementType), ElementRelationship: smdschema.ElementRelationship(l.ElementRelationship), Keys: l.Keys,
		}
	}
	if m := a.Map; m != nil {
		out.Map = &smdschema.Map{
			ElementType: typeV4(m.ElementType), ElementRelationship: smdschema.ElementRelationship(m.ElementRelationship),
		}
		for _, f := range m.Fields {
			out.Fields = append(out.Fields, smdschema.StructField{Name: f.Name, Type: typeV4(f.Type), Default: f.Default})
		}
	}
	return out
}

// typeV4 copies a reference to a type of structured-merge-diff v6.
func typeV4(t smdv6.TypeRef) smdschema.TypeRef {
	out := smdschema.TypeRef{NamedType: t.NamedType, Inlined: atomV4(t.Inlined)}
	if t.ElementRelationship != nil {
		out.ElementRelationship = new(smdschema.ElementRelationship(*t.ElementRelationship))
	}
	return out
}

// kindsOf returns the kinds that a definition describes, by the definition's extension.
func kindsOf(s *spec.Schema) []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	list, _ := s.Extensions["x-kubernetes-group-version-kind"].([]any)
	for _, item := range list {
		m, _ := item.(map[string]any)
		group, _ := m["group"].(string)
		version, _ := m["version"].(string)
		kind, _ := m["kind"].(string)
		if version != "" && kind != "" {
			kinds = append(kinds, schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
		}
	}
	return kinds
}

// Schemas holds the schemas of one cluster by group and version.
type Schemas map[schema.GroupVersion]*Schema

// Add adds the kinds of another schema, and replaces kinds that both have. Schemas that are already
// there are not modified.
func (s Schemas) Add(more *Schema) {
	for gvk, t := range more.types {
		gv := gvk.GroupVersion()
		one := &Schema{types: map[schema.GroupVersionKind]kindType{}}
		if s[gv] != nil {
			maps.Copy(one.types, s[gv].types)
		}
		one.types[gvk] = t
		s[gv] = one
	}
}

// AddDefined adds the kinds that CRDs among the objects define. If git changes a CRD, the target's
// definition counts, because custom resources in git are written for it. The error names the CRD
// that can't be read.
func (s Schemas) AddDefined(states []State) error {
	for i := range states {
		if !IsCRD(states[i].ID) {
			continue
		}
		for _, crd := range []map[string]any{states[i].Live, content(states[i].Target)} {
			if crd == nil || crd["apiVersion"] != "apiextensions.k8s.io/v1" {
				continue
			}
			found, err := ParseCRD(crd)
			if err != nil {
				return fmt.Errorf("%s: %w", states[i].ID, err)
			}
			s.Add(found)
		}
	}
	return nil
}

// Knows reports whether the kind has a schema.
func (s Schemas) Knows(gvk schema.GroupVersionKind) bool {
	one := s[gvk.GroupVersion()]
	if one == nil {
		return false
	}
	_, ok := one.types[gvk]
	return ok
}

// typeOf returns the kind's type, else the deduced type. In the deduced type maps merge and lists
// are atomic, as the API server treats custom resources without a schema. The hash is that of the
// schema's document; empty for the deduced type.
func (s Schemas) typeOf(gvk schema.GroupVersionKind) (t typed.ParseableType, hash string) {
	if one := s[gvk.GroupVersion()]; one != nil {
		if t, ok := one.types[gvk]; ok {
			return t.ParseableType, t.hash
		}
	}
	return typed.DeducedParseableType, ""
}

// fieldType returns the type of a map's or struct's field.
func fieldType(m *smdschema.Map, name string) smdschema.TypeRef {
	if f, ok := m.FindField(name); ok {
		return f.Type
	}
	return m.ElementType
}
