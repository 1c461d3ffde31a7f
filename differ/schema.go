package differ

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	smdschema "sigs.k8s.io/structured-merge-diff/v4/schema"
	"sigs.k8s.io/structured-merge-diff/v4/typed"
	smdv6 "sigs.k8s.io/structured-merge-diff/v6/schema"
)

// Schema knows the field types of the kinds that one document describes. It is
// immutable and safe for concurrent use.
type Schema struct {
	types map[schema.GroupVersionKind]kindType
}

// kindType is the type of one kind.
type kindType struct {
	typed.ParseableType
	hash string // of the document that it is from
}

// ParseOpenAPI reads one OpenAPI v3 document as an API server publishes it
// under /openapi/v3/apis/GROUP/VERSION.
func ParseOpenAPI(document []byte) (*Schema, error) {
	var doc spec3.OpenAPI
	// Not by json.Unmarshal, which would read the document a second time to check it.
	if err := doc.UnmarshalJSON(document); err != nil {
		return nil, fmt.Errorf("decode OpenAPI v3 document: %w", err)
	}
	if doc.Components == nil {
		return &Schema{}, nil
	}
	s, err := newSchema(document, doc.Components.Schemas, false)
	if err != nil {
		return nil, fmt.Errorf("convert OpenAPI v3 document: %w", err)
	}
	return s, nil
}

// ParseOpenAPIV2 reads the OpenAPI v2 (Swagger) document in which an API server
// publishes all its groups and versions, under /openapi/v2. It says less than
// version 3: of a custom resource that preserves unknown fields, nothing at all.
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

// newSchema converts the definitions of a document, which refer to each other by
// name.
//
// kube-openapi converts to the schema of structured-merge-diff v6. It is the same
// document as v4's, so it is copied type by type. (YAML in between took half of the time
// of a parse.)
func newSchema(document []byte, models map[string]*spec.Schema, preserveUnknown bool) (*Schema, error) {
	converted, err := schemaconv.ToSchemaFromOpenAPI(models, preserveUnknown)
	if err != nil {
		return nil, fmt.Errorf("read definitions: %w", err)
	}
	parser := &typed.Parser{}
	for _, t := range converted.Types {
		parser.Schema.Types = append(parser.Schema.Types, smdschema.TypeDef{Name: t.Name, Atom: atomV4(t.Atom)})
	}
	sum := sha256.Sum256(document)
	hash := hex.EncodeToString(sum[:8])
	out := &Schema{types: map[schema.GroupVersionKind]kindType{}}
	for name, s := range models {
		for _, gvk := range kindsOf(s) {
			out.types[gvk] = kindType{parser.Type(name), hash}
		}
	}
	return out, nil
}

// atomV4 copies an atom of structured-merge-diff v6. Nullable is left out, which v4 lacks and
// v6 does not use, and so are unions, which neither uses.
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

// kindsOf reads the extension that ties a definition to the kinds it describes.
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

// Schemas finds the schema of a kind among those of one cluster.
type Schemas map[schema.GroupVersion]*Schema

// Add makes the kinds of another schema known; where both know one, the added
// schema describes it. Schemas that are there already are not modified.
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

// AddDefined makes the kinds known that CRDs among the objects define: where one
// is changed, the custom resources that come with it are written for the new one.
// The error names the CRD that can't be read.
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

// Knows reports whether the schema of a kind is there.
func (s Schemas) Knows(gvk schema.GroupVersionKind) bool {
	one := s[gvk.GroupVersion()]
	if one == nil {
		return false
	}
	_, ok := one.types[gvk]
	return ok
}

// typeOf returns the kind's type, or the deduced type, in which maps merge and
// lists are atomic, as the API server treats custom resources without a schema.
// The hash is that of the schema's document; empty for the deduced type.
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
