package sim

import (
	"compress/gzip"
	"crypto/sha512"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// recorded holds the discovery documents of a real Kubernetes API server. make openapi records
// them.
//
//go:embed surface
var recorded embed.FS

// kind is one served kind.
type kind struct {
	schema.GroupVersionKind

	resource   string
	namespaced bool
	status     bool // has a status subresource
	generation bool
	// unshared kinds have bodies that are never equal, so sharing them is useless.
	unshared bool
	// fields and statusFields track which manager owns which fields.
	fields, statusFields *managedfields.FieldManager
	// complete sets the defaults that the API server sets, and drops unknown fields.
	complete func(runtime.Object)
}

func (k *kind) gvr() schema.GroupVersionResource { return k.GroupVersion().WithResource(k.resource) }

func (k *kind) groupResource() schema.GroupResource { return k.gvr().GroupResource() }

// document is a published OpenAPI document.
type document struct {
	hash string
	data []byte
}

func newDocument(data []byte) document {
	return document{hash: fmt.Sprintf("%X", sha512.Sum512(data)), data: data}
}

// surface describes what an API server serves: the recorded kinds and the kinds of CRDs.
type surface struct {
	version   []byte
	core      apidiscoveryv2.APIGroupDiscovery
	groups    []apidiscoveryv2.APIGroupDiscovery
	kinds     map[schema.GroupVersionResource]*kind
	documents map[string]document // by path: api/v1, apis/apps/v1
}

// leftOut reports whether a version is omitted because its kinds are served at another version,
// too. The simulation cannot convert between versions.
func leftOut(gv string) bool { return gv == "autoscaling/v1" || gv == "events.k8s.io/v1" }

// readSurface returns what is recorded. As the functions that it calls, it is a step of package must.
func readSurface() *surface {
	s := &surface{version: unpacked("version"), kinds: map[schema.GroupVersionResource]*kind{}, documents: map[string]document{}}
	var core, groups apidiscoveryv2.APIGroupDiscoveryList
	must.Do(json.Unmarshal(unpacked("api"), &core))
	must.Do(json.Unmarshal(unpacked("apis"), &groups))
	s.core = core.Items[0]
	for _, g := range groups.Items {
		g.Versions = slices.DeleteFunc(g.Versions, func(v apidiscoveryv2.APIVersionDiscovery) bool { return leftOut(g.Name + "/" + v.Version) })
		if len(g.Versions) > 0 {
			s.groups = append(s.groups, g)
		}
	}
	for _, g := range append([]apidiscoveryv2.APIGroupDiscovery{s.core}, s.groups...) {
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			must.Wrap(func() { s.readDocument(gv); s.addBuiltIn(gv, v.Resources) }, "%s", gv)
		}
	}
	return s
}

// unpacked returns the content of a recorded file.
func unpacked(name string) []byte {
	packed := must.Get(recorded.Open("surface/" + name + ".json.gz"))
	return must.Get(io.ReadAll(must.Get(gzip.NewReader(packed))))
}

// readDocument adds differ's schema of a group and version, recorded from the same API server.
func (s *surface) readDocument(gv schema.GroupVersion) {
	data, err := differ.BuiltInDocument(gv)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	must.Do(err)
	s.documents[pathOf(gv)] = newDocument(data)
}

// pathOf returns the path under which a group and version is served.
func pathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

func (s *surface) addBuiltIn(gv schema.GroupVersion, resources []apidiscoveryv2.APIResourceDiscovery) {
	doc, ok := s.documents[pathOf(gv)]
	if !ok {
		return // the group contains only reviews
	}
	types := convertersOf(doc.data)
	for i := range resources {
		r := &resources[i]
		if !slices.Contains(r.Verbs, "get") || !slices.Contains(r.Verbs, "patch") {
			continue
		}
		k := newKind(gv.WithKind(r.ResponseKind.Kind), r)
		k.complete = completeBuiltIn(k.GroupVersionKind)
		if k.Kind == "Secret" {
			k.complete = withStringData(k.complete)
		}
		k.generation, k.unshared = hasGeneration(k.Kind), isUnshared(k.Kind)
		k.manageFields(types)
		s.kinds[k.gvr()] = k
	}
}

func newKind(gvk schema.GroupVersionKind, r *apidiscoveryv2.APIResourceDiscovery) *kind {
	return &kind{
		GroupVersionKind: gvk, resource: r.Resource, namespaced: r.Scope == apidiscoveryv2.ScopeNamespace,
		status: slices.ContainsFunc(r.Subresources, func(s apidiscoveryv2.APISubresourceDiscovery) bool { return s.Subresource == "status" }),
	}
}

// convertersOf returns a type converter for the schemas of an OpenAPI document.
func convertersOf(data []byte) managedfields.TypeConverter {
	var doc spec3.OpenAPI
	must.Do(json.Unmarshal(data, &doc))
	return must.Get(managedfields.NewTypeConverter(doc.Components.Schemas, false))
}

// isUnshared reports whether no two objects of the kind have equal content.
func isUnshared(kind string) bool {
	return kind == "Secret" || kind == "Lease" || kind == "Event" || kind == "Delivery"
}

// hasGeneration reports whether the API server counts spec changes of this built-in kind.
func hasGeneration(kind string) bool {
	return slices.Contains([]string{
		"CronJob", "CSIDriver", "CustomResourceDefinition", "DaemonSet", "Deployment", "EndpointSlice", "FlowSchema", "Ingress", "IngressClass", "Job",
		"MutatingWebhookConfiguration", "NetworkPolicy", "Pod", "PodDisruptionBudget", "PriorityClass", "PriorityLevelConfiguration",
		"ReplicaSet", "ReplicationController", "StatefulSet", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
	}, kind)
}

// with returns a copy of the surface with the kind of a CRD added.
func (s *surface) with(d *definition) *surface {
	out := s.without(d.kind.groupResource())
	out.kinds[d.kind.gvr()] = d.kind
	out.documents[pathOf(d.kind.GroupVersion())] = d.document
	at := slices.IndexFunc(out.groups, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == d.kind.Group })
	if at < 0 {
		out.groups = append(out.groups, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: d.kind.Group}})
		at = len(out.groups) - 1
	}
	g := *out.groups[at].DeepCopy()
	of := slices.IndexFunc(g.Versions, func(v apidiscoveryv2.APIVersionDiscovery) bool { return v.Version == d.kind.Version })
	if of < 0 {
		g.Versions = append(g.Versions, apidiscoveryv2.APIVersionDiscovery{Version: d.kind.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent})
		of = len(g.Versions) - 1
	} else if doc, err := mergedDocument(s.documents[pathOf(d.kind.GroupVersion())], d.document); err == nil {
		out.documents[pathOf(d.kind.GroupVersion())] = doc
	}
	g.Versions[of].Resources = append(g.Versions[of].Resources, d.discovery)
	out.groups[at] = g
	return out
}

// without returns a copy of the surface without a resource.
func (s *surface) without(gr schema.GroupResource) *surface {
	out := &surface{version: s.version, core: s.core, kinds: map[schema.GroupVersionResource]*kind{}, documents: map[string]document{}}
	for gvr, k := range s.kinds {
		if gvr.GroupResource() != gr {
			out.kinds[gvr] = k
		}
	}
	maps.Copy(out.documents, s.documents)
	for _, g := range s.groups {
		if g.Name != gr.Group {
			out.groups = append(out.groups, g)
			continue
		}
		g = *g.DeepCopy()
		for i := range g.Versions {
			v := &g.Versions[i]
			v.Resources = slices.DeleteFunc(v.Resources, func(r apidiscoveryv2.APIResourceDiscovery) bool { return r.Resource == gr.Resource })
		}
		g.Versions = slices.DeleteFunc(g.Versions, func(v apidiscoveryv2.APIVersionDiscovery) bool {
			if len(v.Resources) > 0 {
				return false
			}
			delete(out.documents, pathOf(schema.GroupVersion{Group: g.Name, Version: v.Version}))
			return true
		})
		if len(g.Versions) > 0 {
			out.groups = append(out.groups, g)
		}
	}
	return out
}

// mergedDocument merges the documents of two kinds of the same group and version.
func mergedDocument(a, b document) (document, error) {
	var one, other spec3.OpenAPI
	if err := json.Unmarshal(a.data, &one); err != nil {
		return document{}, fmt.Errorf("read an OpenAPI document: %w", err)
	}
	if err := json.Unmarshal(b.data, &other); err != nil {
		return document{}, fmt.Errorf("read an OpenAPI document: %w", err)
	}
	maps.Copy(one.Components.Schemas, other.Components.Schemas)
	maps.Copy(one.Paths.Paths, other.Paths.Paths)
	data, err := json.Marshal(&one)
	if err != nil {
		return document{}, fmt.Errorf("write an OpenAPI document: %w", err)
	}
	return newDocument(data), nil
}
