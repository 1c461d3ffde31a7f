package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// difference is one difference between a CRD and the reference that it replaces.
type difference struct {
	// Path is NAME/VERSION.path.to.field, with [] for the items of a list.
	Path string `json:"path"`
	// What describes the difference, the reference's side first.
	What string `json:"what"`
}

// compare returns where a CRD rejects, prunes, defaults or merges values that the reference accepts
// unchanged, and where it shows less. A wider CRD is no difference, except for additional fields:
// the reference would lose them after a switch back.
func compare(reference, ours *apiextensionsv1.CustomResourceDefinition) []difference {
	c := comparison{path: reference.Spec.Names.Plural}
	for what, pair := range map[string][2]any{
		"group":    {reference.Spec.Group, ours.Spec.Group},
		"kind":     {reference.Spec.Names.Kind, ours.Spec.Names.Kind},
		"listKind": {reference.Spec.Names.ListKind, ours.Spec.Names.ListKind},
		"plural":   {reference.Spec.Names.Plural, ours.Spec.Names.Plural},
		"singular": {reference.Spec.Names.Singular, ours.Spec.Names.Singular},
		"scope":    {reference.Spec.Scope, ours.Spec.Scope},
	} {
		c.same(what, pair[0], pair[1])
	}
	c.has("shortName", reference.Spec.Names.ShortNames, ours.Spec.Names.ShortNames)
	for _, version := range reference.Spec.Versions {
		i := slices.IndexFunc(ours.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version.Name })
		if i < 0 {
			c.found("version %s is missing", version.Name)
			continue
		}
		c.at("/"+version.Name, func(c *comparison) { c.version(version, ours.Spec.Versions[i]) })
	}
	slices.SortFunc(c.differences, func(a, b difference) int { return strings.Compare(a.Path+" "+a.What, b.Path+" "+b.What) })
	return c.differences
}

type comparison struct {
	path        string
	differences []difference
}

func (c *comparison) found(format string, args ...any) {
	c.differences = append(c.differences, difference{c.path, fmt.Sprintf(format, args...)})
}

// at runs do for a path below the current one.
func (c *comparison) at(step string, do func(*comparison)) {
	below := comparison{path: c.path + step}
	do(&below)
	c.differences = append(c.differences, below.differences...)
}

func (c *comparison) same(what string, reference, ours any) {
	if !reflect.DeepEqual(reference, ours) {
		c.found("%s: %s, ours %s", what, show(reference), show(ours))
	}
}

// has reports the values that are missing from ours.
func (c *comparison) has(what string, reference, ours []string) {
	for _, r := range reference {
		if !slices.Contains(ours, r) {
			c.found("%s %s is missing", what, r)
		}
	}
}

func (c *comparison) version(reference, ours apiextensionsv1.CustomResourceDefinitionVersion) {
	c.same("served", reference.Served, ours.Served)
	c.same("storage", reference.Storage, ours.Storage)
	c.same("subresources", reference.Subresources, ours.Subresources)
	column := func(p apiextensionsv1.CustomResourceColumnDefinition) string {
		return fmt.Sprintf("%s (%s, priority %d)", p.Name, p.JSONPath, p.Priority)
	}
	c.has("column", columns(reference, column), columns(ours, column))
	if reference.Schema == nil || ours.Schema == nil {
		c.same("schema", reference.Schema, ours.Schema)
		return
	}
	c.schema(reference.Schema.OpenAPIV3Schema, ours.Schema.OpenAPIV3Schema)
}

func columns(v apiextensionsv1.CustomResourceDefinitionVersion, as func(apiextensionsv1.CustomResourceColumnDefinition) string) []string {
	var out []string
	for _, p := range v.AdditionalPrinterColumns {
		out = append(out, as(p))
	}
	return out
}

func (c *comparison) schema(reference, ours *apiextensionsv1.JSONSchemaProps) {
	for what, pair := range map[string][2]any{
		"default":                        {reference.Default, ours.Default},
		"x-kubernetes-list-type":         {reference.XListType, ours.XListType},
		"x-kubernetes-list-map-keys":     {reference.XListMapKeys, ours.XListMapKeys},
		"x-kubernetes-map-type":          {reference.XMapType, ours.XMapType},
		"x-kubernetes-embedded-resource": {reference.XEmbeddedResource, ours.XEmbeddedResource},
		"x-kubernetes-int-or-string":     {reference.XIntOrString, ours.XIntOrString},
		"x-kubernetes-preserve-unknown-fields": {
			reference.XPreserveUnknownFields != nil && *reference.XPreserveUnknownFields, ours.XPreserveUnknownFields != nil && *ours.XPreserveUnknownFields,
		},
	} {
		c.same(what, pair[0], pair[1])
	}
	if ours.Type != "" {
		c.same("type", reference.Type, ours.Type)
	}
	for what, pair := range limits(reference, ours) {
		if set := reflect.ValueOf(pair[1]); !set.IsZero() {
			c.same(what, pair[0], pair[1])
		}
	}
	if reference.Nullable && !ours.Nullable {
		c.found("null is refused")
	}
	for _, name := range ours.Required {
		if !slices.Contains(reference.Required, name) {
			c.found("%s is required", name)
		}
	}
	c.below(reference, ours)
}

// limits returns the constraints that reject values. Each of ours must be absent or equal to the
// reference's.
func limits(reference, ours *apiextensionsv1.JSONSchemaProps) map[string][2]any {
	return map[string][2]any{
		"format":                   {reference.Format, ours.Format},
		"pattern":                  {reference.Pattern, ours.Pattern},
		"enum":                     {reference.Enum, ours.Enum},
		"minimum":                  {reference.Minimum, ours.Minimum},
		"maximum":                  {reference.Maximum, ours.Maximum},
		"exclusiveMinimum":         {reference.ExclusiveMinimum, ours.ExclusiveMinimum},
		"exclusiveMaximum":         {reference.ExclusiveMaximum, ours.ExclusiveMaximum},
		"multipleOf":               {reference.MultipleOf, ours.MultipleOf},
		"minLength":                {reference.MinLength, ours.MinLength},
		"maxLength":                {reference.MaxLength, ours.MaxLength},
		"minItems":                 {reference.MinItems, ours.MinItems},
		"maxItems":                 {reference.MaxItems, ours.MaxItems},
		"uniqueItems":              {reference.UniqueItems, ours.UniqueItems},
		"minProperties":            {reference.MinProperties, ours.MinProperties},
		"maxProperties":            {reference.MaxProperties, ours.MaxProperties},
		"allOf":                    {reference.AllOf, ours.AllOf},
		"anyOf":                    {reference.AnyOf, ours.AnyOf},
		"oneOf":                    {reference.OneOf, ours.OneOf},
		"not":                      {reference.Not, ours.Not},
		"x-kubernetes-validations": {reference.XValidations, ours.XValidations},
	}
}

// below compares fields, items and values of maps.
func (c *comparison) below(reference, ours *apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(reference.Properties)) {
		field, ok := ours.Properties[name]
		if !ok {
			c.found("field %s is missing", name)
			continue
		}
		c.at("."+name, func(c *comparison) { c.schema(new(reference.Properties[name]), &field) })
	}
	for _, name := range slices.Sorted(maps.Keys(ours.Properties)) {
		if _, ok := reference.Properties[name]; !ok {
			c.found("field %s is ours", name)
		}
	}
	var r, o *apiextensionsv1.JSONSchemaProps
	if reference.Items != nil {
		r = reference.Items.Schema
	}
	if ours.Items != nil {
		o = ours.Items.Schema
	}
	c.inner("[]", r, o)
	r, o = nil, nil
	if reference.AdditionalProperties != nil {
		r = reference.AdditionalProperties.Schema
	}
	if ours.AdditionalProperties != nil {
		o = ours.AdditionalProperties.Schema
	}
	c.inner("{}", r, o)
}

func (c *comparison) inner(step string, reference, ours *apiextensionsv1.JSONSchemaProps) {
	switch {
	case reference != nil && ours != nil:
		c.at(step, func(c *comparison) { c.schema(reference, ours) })
	case reference != nil || ours != nil:
		c.at(step, func(c *comparison) { c.found("a schema: %t, ours %t", reference != nil, ours != nil) })
	}
}

// show formats a value as JSON, or as "none" if it is empty.
func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	if slices.Contains([]string{`""`, "null", "[]"}, string(text)) {
		return "none"
	}
	return string(text)
}
