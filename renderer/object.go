package renderer

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// objectID identifies an object, and is unique in a target.
type objectID struct {
	kind            schema.GroupKind
	namespace, name string
}

func (id objectID) String() string {
	s := id.kind.String() + " "
	if id.namespace != "" {
		s += id.namespace + "/"
	}
	return s + id.name
}

// finisher makes objects from documents.
type finisher struct {
	chart  *loadedChart
	scopes scopes
	seen   map[objectID]yamlfile.Position // nil: duplicates are allowed
	count  int
}

func (f *finisher) finish(docs []document) ([]*Object, *Error) {
	var out []*Object
	for _, d := range docs {
		for _, content := range flatten(d.content) {
			if err := f.add(content, d.at); err != nil {
				return nil, err
			}
			if f.count++; f.count > maxObjects {
				return nil, newError(f.chart.version, d.at, tooMany(), nil)
			}
			m, _ := content.(map[string]any)
			out = append(out, &Object{Content: m, Source: d.at})
		}
	}
	return out, nil
}

// flatten takes the items out of a list, as kubectl and helm do.
func flatten(content map[string]any) []any {
	items, ok := content["items"].([]any)
	if !ok || !strings.HasSuffix(stringAt(content, "kind"), "List") {
		return []any{content}
	}
	var out []any
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			out = append(out, flatten(m)...)
			continue
		}
		out = append(out, item)
	}
	return out
}

// add checks an object, and fills in its namespace and Keelson's label. The render owns the
// content, so it is changed in place.
func (f *finisher) add(item any, at yamlfile.Position) *Error {
	fail := func(message string) *Error { return newError(f.chart.version, at, message, nil) }
	content, ok := item.(map[string]any)
	if !ok {
		return fail("an item of a list is not a map, so it is no Kubernetes object")
	}
	id, message := identify(content)
	if message != "" {
		return fail(message)
	}
	meta, _ := content["metadata"].(map[string]any)
	if message := f.setNamespace(&id, meta); message != "" {
		return fail(id.String() + ": " + message)
	}
	if v1alpha1.IsOwn(id.kind.Group, id.kind.Kind, id.namespace, id.name) {
		return fail(id.String() + " is where Keelson itself remembers what it did, and no component may have it: choose another name or namespace")
	}
	if message := setLabel(meta, f.chart.version.Component); message != "" {
		return fail(id.String() + ": " + message)
	}
	if f.seen == nil {
		return nil
	}
	if first, ok := f.seen[id]; ok {
		return fail(id.String() + " stands twice: first at " + first.String())
	}
	f.seen[id] = at
	return nil
}

func identify(content map[string]any) (id objectID, message string) {
	apiVersion, kind := stringAt(content, "apiVersion"), stringAt(content, "kind")
	meta, _ := content["metadata"].(map[string]any)
	name := stringAt(meta, "name")
	gv, err := schema.ParseGroupVersion(apiVersion)
	switch {
	case apiVersion == "" && kind == "":
		return id, "a document has neither apiVersion nor kind, so it is no Kubernetes object"
	case apiVersion == "":
		return id, "an object of kind " + kind + " has no apiVersion"
	case kind == "":
		return id, "an object of " + apiVersion + " has no kind"
	case err != nil:
		return id, err.Error()
	case name == "" && meta["generateName"] != nil:
		return id, "an object of kind " + kind + " has a generateName: what is delivered again and again needs a name"
	case name == "":
		return id, "an object of kind " + kind + " has no name"
	}
	return objectID{kind: schema.GroupKind{Group: gv.Group, Kind: kind}, name: name}, ""
}

func (f *finisher) setNamespace(id *objectID, meta map[string]any) (message string) {
	if f.scopes.cluster(id.kind) {
		// The API server drops the namespace, too; kept, it would always differ.
		delete(meta, "namespace")
		return ""
	}
	switch ns := meta["namespace"].(type) {
	case nil:
	case string:
		id.namespace = ns
	default:
		return "metadata.namespace is not a string"
	}
	if id.namespace == "" {
		id.namespace = f.chart.version.Spec.Namespace
		meta["namespace"] = id.namespace
	}
	return ""
}

func setLabel(meta map[string]any, component string) (message string) {
	labels, ok := meta["labels"].(map[string]any)
	if !ok {
		if meta["labels"] != nil {
			return "metadata.labels is not a map"
		}
		labels = map[string]any{}
		meta["labels"] = labels
	}
	labels[v1alpha1.LabelComponent] = component
	return ""
}

// stringAt returns the string under a key, or "".
func stringAt(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

func annotation(content map[string]any, name string) string {
	return stringAt(annotations(content), name)
}

func hasAnnotation(content map[string]any, name string) bool {
	_, ok := annotations(content)[name]
	return ok
}

func annotations(content map[string]any) map[string]any {
	meta, _ := content["metadata"].(map[string]any)
	all, _ := meta["annotations"].(map[string]any)
	return all
}

// scopes finds cluster-scoped kinds: by the definitions in the target itself, else by the cluster.
type scopes struct {
	known map[schema.GroupKind]bool
	own   map[schema.GroupKind]bool // true: cluster-scoped
	asked map[schema.GroupKind]bool // answers from known
}

func newScopes(known map[schema.GroupKind]bool, lists ...[]document) scopes {
	s := scopes{known: known, own: map[schema.GroupKind]bool{}, asked: map[schema.GroupKind]bool{}}
	for _, docs := range lists {
		for _, d := range docs {
			for _, item := range flatten(d.content) {
				if m, ok := item.(map[string]any); ok {
					if d, ok := definitionOf(m); ok {
						s.own[d.kind] = d.clusterScoped
					}
				}
			}
		}
	}
	return s
}

func (s scopes) cluster(k schema.GroupKind) bool {
	if scoped, ok := s.own[k]; ok {
		return scoped
	}
	s.asked[k] = s.known[k]
	return s.known[k]
}

// list returns the kinds whose scope came from the cluster, in order.
func (s scopes) list() []Scope {
	var out []Scope
	for k, scoped := range s.asked {
		out = append(out, Scope{Kind: k, ClusterScoped: scoped})
	}
	slices.SortFunc(out, func(a, b Scope) int { return strings.Compare(a.Kind.String(), b.Kind.String()) })
	return out
}

// definition has the parts of a custom resource definition that matter here.
type definition struct {
	kind          schema.GroupKind
	clusterScoped bool
	versions      []string // served
}

func definitionOf(content map[string]any) (definition, bool) {
	if stringAt(content, "kind") != "CustomResourceDefinition" ||
		!strings.HasPrefix(stringAt(content, "apiVersion"), "apiextensions.k8s.io/") {
		return definition{}, false
	}
	spec, _ := content["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	out := definition{
		kind:          schema.GroupKind{Group: stringAt(spec, "group"), Kind: stringAt(names, "kind")},
		clusterScoped: stringAt(spec, "scope") == "Cluster",
	}
	versions, _ := spec["versions"].([]any)
	for _, v := range versions {
		if m, ok := v.(map[string]any); ok && m["served"] == true {
			out.versions = append(out.versions, stringAt(m, "name"))
		}
	}
	return out, true
}

// apiVersions returns the definition's entries in discovery.
func (d definition) apiVersions() []string {
	var out []string
	for _, v := range d.versions {
		gv := d.kind.Group + "/" + v
		out = append(out, gv, gv+"/"+d.kind.Kind)
	}
	return out
}
