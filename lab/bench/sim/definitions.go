package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// definition is the kind of a CRD at its storage version, the only version that is served.
type definition struct {
	kind      *kind
	discovery apidiscoveryv2.APIResourceDiscovery
	document  document
}

// definitions caches the definitions of CRDs. All clusters share the cache.
type definitions struct {
	mu    sync.Mutex
	known map[string]*definition
}

func (d *definitions) parse(crd map[string]any) (*definition, error) {
	spec, err := json.Marshal(crd["spec"])
	if err != nil {
		return nil, fmt.Errorf("read a CRD: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.known[string(spec)]; known != nil {
		return known, nil
	}
	var c apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(crd, &c); err != nil {
		return nil, fmt.Errorf("read a CRD: %w", err)
	}
	made, err := must.TryGet(func() *definition { return define(&c) })
	if err != nil {
		return nil, fmt.Errorf("CRD %s: %w", c.Name, err)
	}
	d.known[string(spec)] = made
	return made, nil
}

// define returns the definition of a CRD. It is a step of package must.
func define(crd *apiextensionsv1.CustomResourceDefinition) *definition {
	at := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage && v.Served })
	if at < 0 {
		must.Failf("no version is stored and served, and nothing here converts")
	}
	v := &crd.Spec.Versions[at]
	gvk := schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind}
	out := &definition{discovery: discoveryOf(crd, v, gvk)}
	out.kind = newKind(gvk, &out.discovery)
	out.kind.generation, out.kind.unshared = true, isUnshared(gvk.Kind)
	data := must.Get(json.Marshal(must.Get(builder.BuildOpenAPIV3(crd, v.Name, builder.Options{}))))
	out.document, out.kind.complete = newDocument(data), completeCustom(v)
	out.kind.manageFields(convertersOf(data))
	return out
}

func discoveryOf(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion, gvk schema.GroupVersionKind) apidiscoveryv2.APIResourceDiscovery {
	names := crd.Spec.Names
	of := metav1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
	r := apidiscoveryv2.APIResourceDiscovery{
		Resource: names.Plural, ResponseKind: &of, SingularResource: names.Singular, ShortNames: names.ShortNames, Categories: names.Categories,
		Scope: apidiscoveryv2.ScopeNamespace,
		Verbs: []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
	}
	if crd.Spec.Scope == apiextensionsv1.ClusterScoped {
		r.Scope = apidiscoveryv2.ScopeCluster
	}
	if v.Subresources != nil && v.Subresources.Status != nil {
		r.Subresources = []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "status", ResponseKind: &of, Verbs: []string{"get", "patch", "update"}}}
	}
	return r
}

// completeCustom returns a function that drops unknown fields and sets the schema's defaults.
func completeCustom(v *apiextensionsv1.CustomResourceDefinitionVersion) func(runtime.Object) {
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return func(runtime.Object) {}
	}
	var internal apiextensions.JSONSchemaProps
	must.Do(apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, &internal, nil))
	s := must.Get(structural.NewStructural(&internal))
	return func(o runtime.Object) {
		if u, ok := o.(*unstructured.Unstructured); ok {
			pruning.Prune(u.Object, s, true)
			defaulting.Default(u.Object, s)
		}
	}
}
