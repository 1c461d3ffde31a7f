package differ

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const (
	extensionsGroup = "apiextensions.k8s.io"
	crdKind         = "CustomResourceDefinition"
	objectMeta      = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
)

// IsCRD reports whether an ID is of a CustomResourceDefinition.
func IsCRD(id ID) bool { return id.Group == extensionsGroup && id.Kind == crdKind }

// ParseCRD reads the schemas of a CustomResourceDefinition's served versions, as an API server
// publishes them: with metadata and embedded resources. A schema that is not structural becomes
// only a type.
//
// apiextensions-apiserver's own builder of the published document needs a web framework and the
// generic API server, to do the work of forty lines.
func ParseCRD(crd map[string]any) (*Schema, error) {
	d, err := decodeCRD(crd)
	if err != nil {
		return nil, err
	}
	document, err := json.Marshal(d.Spec)
	if err != nil {
		return nil, fmt.Errorf("encode CustomResourceDefinition: %w", err)
	}
	models, err := metaDefinitions()
	if err != nil {
		return nil, err
	}
	for i := range d.Spec.Versions {
		v := &d.Spec.Versions[i]
		if !v.Served {
			continue
		}
		s, err := structuralOf(v)
		if err != nil {
			s = nil // the API server publishes the kind without a schema, too
		}
		one := published(s)
		one.AddExtension("x-kubernetes-group-version-kind", []any{
			map[string]any{"group": d.Spec.Group, "version": v.Name, "kind": d.Spec.Names.Kind},
		})
		models[d.Spec.Group+"."+v.Name+"."+d.Spec.Names.Kind] = one
	}
	s, err := newSchema(document, models, d.Spec.PreserveUnknownFields)
	if err != nil {
		return nil, fmt.Errorf("CustomResourceDefinition %s: %w", d.Name, err)
	}
	return s, nil
}

var errCRD = errors.New("this is no CustomResourceDefinition of " + extensionsGroup + "/v1")

// decodeCRD decodes an object. A decoding error names the object and the field.
func decodeCRD(crd map[string]any) (*apiextensionsv1.CustomResourceDefinition, error) {
	data, err := json.Marshal(crd)
	if err != nil {
		return nil, fmt.Errorf("encode CustomResourceDefinition: %w", err)
	}
	d := &apiextensionsv1.CustomResourceDefinition{}
	if err := json.Unmarshal(data, d); err != nil {
		return nil, fmt.Errorf("CustomResourceDefinition %v: %w", nested(crd, "metadata", "name"), err)
	}
	if d.APIVersion != extensionsGroup+"/v1" || d.Kind != crdKind {
		return nil, fmt.Errorf("%s %s, %s: %w", d.APIVersion, d.Kind, d.Name, errCRD)
	}
	if d.Spec.Group == "" || d.Spec.Names.Kind == "" || len(d.Spec.Versions) == 0 {
		return nil, fmt.Errorf("CustomResourceDefinition %s: %w: it has no spec.group, spec.names.kind or spec.versions", d.Name, errCRD)
	}
	return d, nil
}

var errNoStructural = errors.New("the schema is not structural")

// propsOf returns the schema of a version as it is written; nil without a schema.
func propsOf(v *apiextensionsv1.CustomResourceDefinitionVersion) (*apiextensions.JSONSchemaProps, error) {
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return nil, nil
	}
	props := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, props, nil); err != nil {
		return nil, fmt.Errorf("version %s: %w", v.Name, err)
	}
	return props, nil
}

// structuralOf returns the structural schema of a version; nil without a schema.
func structuralOf(v *apiextensionsv1.CustomResourceDefinitionVersion) (*structural.Structural, error) {
	props, err := propsOf(v)
	if props == nil || err != nil {
		return nil, err
	}
	s, err := structural.NewStructural(props)
	if err != nil {
		return nil, fmt.Errorf("version %s: %w: %w", v.Name, errNoStructural, err)
	}
	if problems := structural.ValidateStructural(nil, s); len(problems) > 0 {
		return nil, fmt.Errorf("version %s: %w: %w", v.Name, errNoStructural, problems.ToAggregate())
	}
	return s, nil
}

// published returns the definition of a kind.
func published(s *structural.Structural) *spec.Schema {
	if s == nil {
		return &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	}
	out := s.Unfold().ToKubeOpenAPI()
	withTypeMeta(out)
	embedResources(out)
	return out
}

func withTypeMeta(s *spec.Schema) {
	s.SetProperty("apiVersion", *spec.StringProperty())
	s.SetProperty("kind", *spec.StringProperty())
	s.SetProperty("metadata", *spec.RefSchema("#/components/schemas/" + objectMeta))
}

// embedResources gives the embedded resources of a schema apiVersion, kind and metadata.
func embedResources(s *spec.Schema) {
	if s == nil {
		return
	}
	for name, p := range s.Properties {
		embedResources(&p)
		s.Properties[name] = p
	}
	if s.Items != nil {
		embedResources(s.Items.Schema)
	}
	if s.AdditionalProperties != nil {
		embedResources(s.AdditionalProperties.Schema)
	}
	if yes, _ := s.Extensions.GetBool("x-kubernetes-embedded-resource"); yes {
		withTypeMeta(s)
	}
}

var errNoDefinition = errors.New("no such definition")

// metaDefinitions returns the definitions of metadata, from one of the smallest documents that has
// them.
func metaDefinitions() (map[string]*spec.Schema, error) {
	document, err := BuiltInDocument(schema.GroupVersion{Group: "scheduling.k8s.io", Version: "v1"})
	if err != nil {
		return nil, fmt.Errorf("schema of metadata: %w", err)
	}
	var doc spec3.OpenAPI
	if err := json.Unmarshal(document, &doc); err != nil {
		return nil, fmt.Errorf("schema of metadata: %w", err)
	}
	out := map[string]*spec.Schema{}
	for _, name := range []string{"ObjectMeta", "ManagedFieldsEntry", "FieldsV1", "OwnerReference", "Time"} {
		name = "io.k8s.apimachinery.pkg.apis.meta.v1." + name
		if out[name] = doc.Components.Schemas[name]; out[name] == nil {
			return nil, fmt.Errorf("schema of metadata: %w: %s", errNoDefinition, name)
		}
	}
	return out, nil
}
