package differ

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// SchemaViolation is a field of a rendered object that does not fit the schema of its kind.
type SchemaViolation struct {
	ID     ID
	Source yamlfile.Position
	// Path of the field: ".spec.replicas".
	Path string
	// Problem describes the problem without the value: "must be of type integer".
	Problem string
	// Value is the field's value; nil: none. It may be a secret.
	Value any
	// Warning: an API server may accept the object all the same. It may have another version, drop
	// an unknown field, or not require the missing field.
	Warning bool
}

// String returns the object, the field and the problem.
func (m SchemaViolation) String() string { return fmt.Sprintf("%s: %s %s", m.ID, m.Path, m.Problem) }

// maxMisfits bounds the misfits that are reported for one object: one mistake in a template can
// affect every field of a large object.
const maxMisfits = 10

// Checker compares rendered objects with the schemas of their kinds: the schemas of a stock
// Kubernetes v1.36, and of CRDs. For other kinds, it checks only metadata. It does not check what
// an API server fills in or computes: defaults, CEL rules, admission. A Checker is safe for
// concurrent use, and caches its results by the hashes of targets.
type Checker struct {
	mu      sync.Mutex
	builtIn map[schema.GroupVersionKind]*kindSchema
	known   map[string]*targetKinds      // by hash of the target
	found   map[string][]SchemaViolation // by hash of the target, and of the targets that define its kinds
}

// targetKinds are the kinds that a target uses or defines.
type targetKinds struct {
	hash    string
	uses    []schema.GroupVersionKind
	defines map[schema.GroupVersionKind]*kindSchema
	err     error // of its CRDs
}

// kindSchema is the schema of one kind. It is made for the kind's first object.
type kindSchema struct {
	once sync.Once
	make func() (*versionSchema, error)
	made *versionSchema
	err  error
	// stock schemas are of one version of Kubernetes, and a cluster may have another version.
	stock bool
}

// NewChecker returns a Checker with an empty cache.
func NewChecker() *Checker {
	return &Checker{builtIn: map[schema.GroupVersionKind]*kindSchema{}, known: map[string]*targetKinds{}, found: map[string][]SchemaViolation{}}
}

// ClusterChecker checks the targets of one cluster with the CRDs among these targets.
type ClusterChecker struct {
	*Checker
	definers map[schema.GroupVersionKind]*targetKinds
}

// Cluster returns the checker for a cluster that gets the given targets.
func (c *Checker) Cluster(targets []*renderer.Target) *ClusterChecker {
	out := &ClusterChecker{c, map[schema.GroupVersionKind]*targetKinds{}}
	for _, t := range targets {
		k := c.kindsOf(t)
		for gvk := range k.defines {
			out.definers[gvk] = k
		}
	}
	return out
}

// Misfits returns the misfits of a target's objects and hooks, warnings last. The error names a CRD
// or an object whose schema can't be read.
func (c *ClusterChecker) Misfits(t *renderer.Target) ([]SchemaViolation, error) {
	k := c.kindsOf(t)
	if k.err != nil {
		return nil, k.err
	}
	key, kinds := t.Hash, map[schema.GroupVersionKind]*kindSchema{}
	for _, gvk := range k.uses {
		if d := c.definers[gvk]; d != nil {
			key, kinds[gvk] = key+" "+d.hash, d.defines[gvk]
		} else {
			kinds[gvk] = c.stock(gvk)
		}
	}
	c.mu.Lock()
	found, known := c.found[key]
	c.mu.Unlock()
	if known {
		return found, nil
	}
	for _, o := range slices.Concat(t.Objects, t.Hooks) {
		id, gvk := Identify(o.Content)
		of, err := kinds[gvk].misfits(o.Content)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: the schema of its kind: %w", o.Source, id, err)
		}
		for i := range of {
			of[i].ID, of[i].Source = id, o.Source
		}
		found = append(found, of...)
	}
	slices.SortStableFunc(found, func(a, b SchemaViolation) int { return cmp.Compare(a.rank(), b.rank()) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found[key] = found
	return found, nil
}

// kindsOf returns the kinds that a target uses or defines. The result is cached by hash, so that a
// schema is compiled once.
func (c *Checker) kindsOf(t *renderer.Target) *targetKinds {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.known[t.Hash]; k != nil {
		return k
	}
	k := &targetKinds{hash: t.Hash, defines: map[schema.GroupVersionKind]*kindSchema{}}
	for _, o := range slices.Concat(t.Objects, t.Hooks) {
		id, gvk := Identify(o.Content)
		if !slices.Contains(k.uses, gvk) {
			k.uses = append(k.uses, gvk)
		}
		if IsCRD(id) {
			if err := define(k.defines, o.Content); err != nil {
				k.err = errors.Join(k.err, fmt.Errorf("%s: %w", o.Source, err))
			}
		}
	}
	c.known[t.Hash] = k
	return k
}

// define adds the kinds of a CRD.
func define(to map[schema.GroupVersionKind]*kindSchema, content map[string]any) error {
	crd, err := decodeCRD(content)
	if err != nil {
		return err
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		to[schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind}] = &kindSchema{
			make: func() (*versionSchema, error) { return newVersionSchema(crd, v) },
		}
	}
	return nil
}

// misfits returns the misfits of an object of the kind, without the ID of the object.
func (k *kindSchema) misfits(content map[string]any) ([]SchemaViolation, error) {
	k.once.Do(func() {
		if k.made, k.err = k.make(); k.err == nil && k.made.schema != nil {
			k.err = k.made.prepareValues()
		}
	})
	if k.err != nil && !errors.Is(k.err, errNoStructural) { // an API server reports such a schema itself
		return nil, k.err
	}
	v := k.made
	if v == nil || v.schema == nil {
		return nil, nil
	}
	o := runtime.DeepCopyJSON(content)
	unknown := v.prune(o)
	if k.stock {
		dropNulls(o) // as decoding does
	} else {
		defaulting.PruneNonNullableNullsWithoutDefaults(o, v.schema)
	}
	found := k.refused(v.invalid(o), content)
	found = append(found, dropped(unknown, found)...)
	slices.SortStableFunc(found, func(a, b SchemaViolation) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), strings.Compare(a.Path, b.Path))
	})
	return found[:min(len(found), maxMisfits)], nil
}

// refused returns the first maxMisfits misfits from the problems that a schema finds.
func (k *kindSchema) refused(invalid []problem, content map[string]any) []SchemaViolation {
	slices.SortStableFunc(invalid, func(a, b problem) int { return strings.Compare(a.path, b.path) })
	var found []SchemaViolation
	for _, p := range invalid {
		if len(found) == maxMisfits {
			break
		}
		if k.stock && p.path == "." {
			continue // of a quantity: the problem of its first alternative is reported, too
		}
		value, known := valueAt(content, strings.TrimPrefix(p.path, "."))
		if known && value == nil {
			continue // a null for which the schema has a default
		}
		found = append(found, SchemaViolation{
			Path: p.path, Problem: strings.TrimSpace(p.what), Value: value,
			Warning: p.absent || k.stock && p.listed,
		})
	}
	return found
}

// dropped returns misfits for fields that a schema does not know: the first maxMisfits that are not
// below another misfit.
func dropped(unknown []problem, besides []SchemaViolation) []SchemaViolation {
	var found []SchemaViolation
	for _, p := range unknown {
		if len(found) == maxMisfits {
			break
		}
		if !slices.ContainsFunc(besides, func(m SchemaViolation) bool { return strings.HasPrefix(p.path, m.Path+".") }) {
			found = append(found, SchemaViolation{Path: p.path, Problem: "is unknown, and an API server drops it", Warning: true})
		}
	}
	return found
}

// Blame returns the misfit as a problem. It is at a value of the meta-config if exactly that value
// has the field's value, and else in the template. The message quotes the value unless any of the
// values is confidential, the object is a Secret, or the value is long.
func (m SchemaViolation) Blame(values *registry.Values) yamlfile.Problem {
	p := yamlfile.Problem{At: m.Source, Message: m.String()}
	if text, ok := m.Value.(string); ok && m.ID.Kind != "Secret" && !values.Confidential() && len(text) <= maxValueShown {
		p.Message += fmt.Sprintf(", and is %q", text)
	}
	path, ok := values.Only(m.Value)
	if !ok {
		return p
	}
	at, ok := values.Origin(path...)
	if !ok {
		return p
	}
	p.At = at
	p.Hint = fmt.Sprintf("the value is that of %s alone; the template is at %s", registry.FormatPath(path), m.Source)
	return p
}

// maxValueShown bounds the text of a value in a message, in bytes.
const maxValueShown = 40

// rank sorts warnings last.
func (m SchemaViolation) rank() int {
	if m.Warning {
		return 1
	}
	return 0
}

// dropNulls removes null values from maps.
func dropNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			if v == nil {
				delete(value, key)
				continue
			}
			dropNulls(v)
		}
	case []any:
		for _, v := range value {
			dropNulls(v)
		}
	}
}

// valueAt returns the value at a path in the form of validators: a.b[0].c. Keys may contain dots
// and brackets.
func valueAt(in any, path string) (any, bool) {
	if path == "" {
		return in, true
	}
	switch in := in.(type) {
	case map[string]any:
		for key, v := range in {
			rest, ok := strings.CutPrefix(path, key)
			if !ok || rest != "" && rest[0] != '.' && rest[0] != '[' {
				continue
			}
			if found, ok := valueAt(v, strings.TrimPrefix(rest, ".")); ok {
				return found, true
			}
		}
	case []any:
		for i, v := range in {
			if rest, ok := strings.CutPrefix(path, fmt.Sprintf("[%d]", i)); ok {
				return valueAt(v, strings.TrimPrefix(rest, "."))
			}
		}
	}
	return nil, false
}

// stock returns the schema of a kind that a stock Kubernetes serves. For any other kind, the schema
// describes only metadata.
func (c *Checker) stock(gvk schema.GroupVersionKind) *kindSchema {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.builtIn[gvk] == nil {
		c.builtIn[gvk] = &kindSchema{stock: true, make: func() (*versionSchema, error) { return stockSchema(gvk) }}
	}
	return c.builtIn[gvk]
}

// stockSchema makes the schema of a kind from the document that a stock Kubernetes publishes. For a
// kind without a document, the schema describes only metadata.
func stockSchema(gvk schema.GroupVersionKind) (*versionSchema, error) {
	document, err := BuiltInDocument(gvk.GroupVersion())
	unknown := errors.Is(err, fs.ErrNotExist)
	if unknown {
		document, err = BuiltInDocument(schema.GroupVersion{Group: "scheduling.k8s.io", Version: "v1"})
	}
	if err != nil {
		return nil, err
	}
	var doc struct {
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(document, &doc); err != nil {
		return nil, fmt.Errorf("decode the OpenAPI document: %w", err)
	}
	in := inliner{definitions: doc.Components.Schemas, open: map[string]bool{}}
	root := map[string]any{
		"type": "object", "x-kubernetes-preserve-unknown-fields": true,
		"properties": map[string]any{"metadata": in.reference(objectMeta)},
	}
	for name, definition := range doc.Components.Schemas {
		if !unknown && describes(definition, gvk) {
			root = in.reference(name)
		}
	}
	text, err := json.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("encode the schema: %w", err)
	}
	var props apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal(text, &props); err != nil {
		return nil, fmt.Errorf("decode the schema: %w", err)
	}
	v := &versionSchema{props: &apiextensions.JSONSchemaProps{}, prunes: true, stock: true}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&props, v.props, nil); err != nil {
		return nil, fmt.Errorf("convert the schema: %w", err)
	}
	if v.schema, err = structural.NewStructural(v.props); err != nil {
		return nil, fmt.Errorf("convert the schema: %w", err)
	}
	return v, nil
}

// describes reports whether a definition is of the given kind.
func describes(definition map[string]any, gvk schema.GroupVersionKind) bool {
	list, _ := definition["x-kubernetes-group-version-kind"].([]any)
	return slices.ContainsFunc(list, func(one any) bool {
		m, _ := one.(map[string]any)
		return m["group"] == gvk.Group && m["version"] == gvk.Version && m["kind"] == gvk.Kind
	})
}

// inliner replaces references by their definitions, because schemas of CRDs have no references.
type inliner struct {
	definitions map[string]map[string]any
	open        map[string]bool // names of definitions that are being inlined
}

// reference returns the definition of a name. Where a definition contains itself, as a CRD's schema
// does, the inner one allows any fields.
func (in *inliner) reference(name string) map[string]any {
	if in.open[name] {
		return map[string]any{"x-kubernetes-preserve-unknown-fields": true}
	}
	in.open[name] = true
	defer delete(in.open, name)
	return in.schema(in.definitions[name])
}

func (in *inliner) schema(of map[string]any) map[string]any {
	if name, ok := referred(of); ok {
		return in.reference(name)
	}
	if of["format"] == "int-or-string" {
		return map[string]any{"x-kubernetes-int-or-string": true}
	}
	out := map[string]any{}
	for _, key := range []string{"type", "format", "enum", "required", "oneOf"} {
		if v, ok := of[key]; ok {
			out[key] = v
		}
	}
	closed := out["type"] != nil && out["type"] != "object" || out["oneOf"] != nil
	if properties, ok := of["properties"].(map[string]any); ok {
		below := map[string]any{}
		for name, p := range properties {
			if p, ok := p.(map[string]any); ok {
				below[name] = in.schema(p)
			}
		}
		out["properties"], closed = below, true
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if s, ok := of[key].(map[string]any); ok {
			out[key], closed = in.schema(s), true
		}
	}
	if !closed {
		out["x-kubernetes-preserve-unknown-fields"] = true
	}
	return out
}

// referred returns the name that a schema refers to. A reference with a default is inside of allOf.
func referred(of map[string]any) (string, bool) {
	if all, ok := of["allOf"].([]any); ok && len(all) == 1 {
		of, _ = all[0].(map[string]any)
	}
	ref, ok := of["$ref"].(string)
	return strings.TrimPrefix(ref, "#/components/schemas/"), ok
}
