// Package apis knows what API servers serve: kinds, their resources, and their schemas. Clusters share
// what is the same in several of them, under the hash of its content.
package apis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// NotServedError reports that an API server does not serve a kind.
type NotServedError struct {
	GVK schema.GroupVersionKind
	// Unknown is set when the kind's group could not be discovered, so that the kind may exist: for
	// example when an aggregated API is down.
	Unknown error
}

func (e *NotServedError) Error() string {
	if e.Unknown != nil {
		return fmt.Sprintf("kind %s: its API group could not be discovered: %v", e.GVK, e.Unknown)
	}
	return fmt.Sprintf("the API server does not serve kind %s; is its CRD installed, or a dependsOn missing?", e.GVK)
}

func (e *NotServedError) Unwrap() error { return e.Unknown }

// AsNotServed returns the [NotServedError] that an error wraps.
func AsNotServed(err error) (*NotServedError, bool) { return errors.AsType[*NotServedError](err) }

// Surface is what an API server serves, from one discovery.
type Surface struct {
	capabilities renderer.Capabilities
	mappings     map[schema.GroupVersionKind]*meta.RESTMapping
	preferred    map[schema.GroupKind]*meta.RESTMapping
	failed       map[schema.GroupVersion]error
}

// Discoverer reads and remembers what an API server serves.
type Discoverer struct {
	client  *discovery.DiscoveryClient
	schemas *SchemaCache

	mu      sync.Mutex
	current *Surface
	// documents are the published OpenAPI documents by group and version;
	// their paths carry a hash of the content.
	documents map[schema.GroupVersion]*differ.Schema
	// misses counts how often a document was not published when it was read.
	misses map[schema.GroupVersion]int
}

// maxMisses bounds how often an unpublished document is looked for. New documents appear some
// moments after their CRD. Some never appear, and must not cost a settled cluster a request each
// time.
const maxMisses = 3

// NewDiscoverer returns the Discoverer of the cluster of a connection; nil: it shares schemas with no
// other cluster. It makes no request.
func NewDiscoverer(config *rest.Config, schemas *SchemaCache) (*Discoverer, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller names the cluster
	}
	if schemas == nil {
		schemas = NewSchemaCache()
	}
	d := &Discoverer{client: client, schemas: schemas}
	d.Forget()
	return d, nil
}

// Rediscover makes the next call ask the API server what it serves. It also drops the schemas of
// the given groups, because one of their CRDs has changed.
func (d *Discoverer) Rediscover(groups ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current = nil
	of := func(gv schema.GroupVersion) bool { return slices.Contains(groups, gv.Group) }
	maps.DeleteFunc(d.documents, func(gv schema.GroupVersion, _ *differ.Schema) bool { return of(gv) })
	maps.DeleteFunc(d.misses, func(gv schema.GroupVersion, _ int) bool { return of(gv) })
}

// Forget drops everything, because another version of the API server may answer now.
func (d *Discoverer) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current = nil
	d.documents = map[schema.GroupVersion]*differ.Schema{}
	d.misses = map[schema.GroupVersion]int{}
}

// Surface returns what the API server serves, as it was discovered last.
func (d *Discoverer) Surface(ctx context.Context) (*Surface, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current != nil {
		return d.current, nil
	}
	s, err := discover(ctx, d.client)
	if err != nil {
		return nil, err
	}
	d.current = d.schemas.share(s)
	return d.current, nil
}

func discover(ctx context.Context, client *discovery.DiscoveryClient) (*Surface, error) {
	version, err := client.ServerVersionWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's version: %w", err)
	}
	_, lists, err := client.ServerGroupsAndResourcesWithContext(ctx)
	s := &Surface{
		capabilities: renderer.Capabilities{KubeVersion: version.GitVersion, ClusterScoped: map[schema.GroupKind]bool{}},
		mappings:     map[schema.GroupVersionKind]*meta.RESTMapping{},
		preferred:    map[schema.GroupKind]*meta.RESTMapping{},
		failed:       map[schema.GroupVersion]error{},
	}
	if err != nil {
		var partial *discovery.ErrGroupDiscoveryFailed
		if !errors.As(err, &partial) {
			return nil, fmt.Errorf("discover the API: %w", err)
		}
		maps.Copy(s.failed, partial.Groups)
	}
	versions := map[string]bool{}
	for gv := range s.failed {
		// The group is registered, so a chart that asks must find it.
		versions[gv.String()] = true
	}
	for _, list := range lists {
		if err := s.add(list, versions); err != nil {
			return nil, err
		}
	}
	s.capabilities.APIVersions = slices.Sorted(maps.Keys(versions))
	return s, nil
}

func (s *Surface) add(list *metav1.APIResourceList, versions map[string]bool) error {
	gv, err := schema.ParseGroupVersion(list.GroupVersion)
	if err != nil {
		return fmt.Errorf("discover the API: %w", err)
	}
	versions[list.GroupVersion] = true
	for i := range list.APIResources {
		r := &list.APIResources[i]
		if !slices.Contains(r.Verbs, "get") || slices.Contains([]byte(r.Name), '/') {
			continue
		}
		gvk := gv.WithKind(r.Kind)
		versions[list.GroupVersion+"/"+r.Kind] = true
		m := &meta.RESTMapping{Resource: gv.WithResource(r.Name), GroupVersionKind: gvk, Scope: meta.RESTScopeNamespace}
		if !r.Namespaced {
			m.Scope = meta.RESTScopeRoot
			s.capabilities.ClusterScoped[gvk.GroupKind()] = true
		}
		s.mappings[gvk] = m
		if _, ok := s.preferred[gvk.GroupKind()]; !ok {
			s.preferred[gvk.GroupKind()] = m
		}
	}
	return nil
}

// Capabilities returns what a chart may read about the API server.
func (s *Surface) Capabilities() renderer.Capabilities { return s.capabilities }

// Undiscovered returns a version of a group that could not be discovered, with the reason; nil: the
// group is known.
func (s *Surface) Undiscovered(group string) (schema.GroupVersion, error) {
	for gv, err := range s.failed {
		if gv.Group == group {
			return gv, err
		}
	}
	return schema.GroupVersion{}, nil
}

// Mapping finds a kind, at another version of its group when its own is no longer served. The error
// is a [*NotServedError].
func (s *Surface) Mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	if m, ok := s.mappings[gvk]; ok {
		return m, nil
	}
	if _, err := s.Undiscovered(gvk.Group); err != nil {
		return nil, &NotServedError{GVK: gvk, Unknown: err}
	}
	if m, ok := s.preferred[gvk.GroupKind()]; ok {
		return m, nil
	}
	return nil, &NotServedError{GVK: gvk}
}

// IsNotServed reports whether an error says that a kind is certainly not served.
func IsNotServed(err error) bool {
	not, ok := AsNotServed(err)
	return ok && not.Unknown == nil
}

// Schemas returns the schemas of the given groups and versions. It leaves out schemas that are
// not published (yet): differ then deduces types.
func (d *Discoverer) Schemas(ctx context.Context, wanted []schema.GroupVersion) (differ.Schemas, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := differ.Schemas{}
	missing := false
	for _, gv := range wanted {
		if s, ok := d.documents[gv]; ok {
			out[gv] = s
		} else if d.misses[gv] < maxMisses {
			missing = true
		}
	}
	if !missing {
		return out, nil
	}
	paths, err := d.client.OpenAPIV3WithContext(ctx).PathsWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's OpenAPI index: %w", err)
	}
	for _, gv := range wanted {
		if out[gv] != nil {
			continue
		}
		doc, ok := paths[documentPath(gv)]
		if !ok {
			d.misses[gv]++
			continue
		}
		s, err := d.schemaOf(ctx, doc)
		if err != nil {
			return nil, fmt.Errorf("the OpenAPI document of %s: %w", gv, err)
		}
		d.documents[gv], out[gv] = s, s
	}
	return out, nil
}

// schemaOf returns the schema of a document. It reads the document if no cluster has it. The caller
// holds the lock.
func (d *Discoverer) schemaOf(ctx context.Context, doc openapi.GroupVersionWithContext) (*differ.Schema, error) {
	s := d.schemas.find(publishedDigest(doc.ServerRelativeURL()))
	if s == nil {
		data, err := doc.SchemaWithContext(ctx, runtime.ContentTypeJSON)
		if err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		if s, err = d.schemas.parse(ctx, data); err != nil {
			return nil, err
		}
	}
	return s, d.fits(s)
}

// fits returns an error when one more schema may not be kept. The caller holds the lock.
func (d *Discoverer) fits(s *differ.Schema) error {
	values := s.Values()
	for _, other := range d.documents {
		values += other.Values()
	}
	if values > clusterValues {
		return fmt.Errorf("it and those of %d other groups and versions have more than %d JSON values, which Keelson does not keep", len(d.documents), clusterValues)
	}
	return nil
}

func documentPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}
