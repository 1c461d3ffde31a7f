// Package rights computes the rights that Keelson needs in a cluster and in the hub, and no more.
//
// It computes them from what git wants there, what the cluster's records name, and what the applier
// and the controller call. It asks no API server. The result never holds a wildcard, escalate,
// bind, or impersonate without names. An object that needs one of these is left out and reported
// with its template's line. Its component needs a service account of its own, or an administrator
// must grant the right.
package rights

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/configversion"
)

// Component holds the wanted and the recorded objects of one component of a cluster.
type Component struct {
	Name, Namespace string
	// ServiceAccount writes the objects; empty: Keelson itself.
	ServiceAccount string
	// Objects are the wanted ones: those of the target and its hooks.
	Objects []*renderer.Object
	// Recorded are the objects of the record, which may have to be deleted.
	Recorded []records.Object
	// Jobs: checks of its rollouts run Jobs in the namespace.
	Jobs bool
}

// Served gives access to the API of a cluster.
type Served struct {
	// Mapping finds the resource of a kind. It is not called for kinds that CRDs among the objects
	// define.
	Mapping func(schema.GroupVersionKind) (*meta.RESTMapping, error)
	// Role returns the rules of a Role or, with an empty namespace, of a ClusterRole. It is called
	// for roles that a binding names and no component brings.
	Role func(namespace, name string) ([]rbacv1.PolicyRule, error)
}

// LeftOut is an object that Keelson can't write with the computed rights: what the object needs is
// never granted wholesale.
type LeftOut struct {
	Component string
	At        yamlfile.Position
	Object    string
	Why       string
}

func (l LeftOut) String() string {
	return fmt.Sprintf("%s: %s of component %s is left out: %s; name a serviceAccount in its component.yaml that may do this, or grant it by hand",
		l.At, l.Object, l.Component, l.Why)
}

// Rights holds the rights of one subject.
type Rights struct {
	// scopes by namespace; "" is the whole cluster.
	scopes map[string]map[grant]bool
	// namespaces must exist for the roles in them.
	namespaces map[string]bool
}

// grant is one right that can't be split.
type grant struct {
	group, resource, name string // name empty: all names
	url                   string // set instead of a resource
	verb                  string
}

func newRights() *Rights {
	return &Rights{scopes: map[string]map[grant]bool{}, namespaces: map[string]bool{}}
}

func (r *Rights) add(namespace, group, resource string, names []string, verbs ...string) {
	if len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		for _, verb := range verbs {
			r.put(namespace, grant{group: group, resource: resource, name: name, verb: verb})
		}
	}
}

func (r *Rights) put(namespace string, g grant) {
	if r.scopes[namespace] == nil {
		r.scopes[namespace] = map[grant]bool{}
	}
	r.scopes[namespace][g] = true
	if namespace != "" {
		r.namespaces[namespace] = true
	}
}

// Keelson reads all objects of a resource that have its label in one watch, and reads and writes
// single objects. Server-side apply needs patch, and create for an object that does not exist yet.
func watchVerbs() []string { return []string{"list", "watch"} }

func readVerbs() []string { return []string{"get"} }

func writeVerbs() []string { return []string{"create", "delete", "patch"} }

// planner collects the rights of one cluster.
type planner struct {
	*Rights
	served  Served
	roles   map[roleKey][]rbacv1.PolicyRule        // of components
	kinds   map[schema.GroupKind]*meta.RESTMapping // that CRDs of components define
	ours    map[string]bool                        // namespaces that are objects of components
	leftOut []LeftOut
}

type roleKey struct{ namespace, name string }

// ForCluster returns the rights that Keelson needs in a cluster to deliver the components and to
// watch them, and the objects that need more.
func ForCluster(components []Component, served Served) (*Rights, []LeftOut, error) {
	p := &planner{
		Rights: newRights(), served: served, roles: map[roleKey][]rbacv1.PolicyRule{},
		kinds: map[schema.GroupKind]*meta.RESTMapping{}, ours: map[string]bool{},
	}
	p.own()
	for _, c := range components {
		for _, o := range c.Objects {
			if err := p.learn(c, o); err != nil {
				return nil, nil, err
			}
		}
	}
	if err := p.autoscalers(); err != nil {
		return nil, nil, err
	}
	for _, c := range components {
		if err := p.component(c); err != nil {
			return nil, nil, fmt.Errorf("component %s: %w", c.Name, err)
		}
	}
	return p.Rights, p.leftOut, nil
}

// own adds the rights that do not depend on any component.
func (p *planner) own() {
	p.add(v1alpha1.Namespace, "", "secrets", nil, "get", "list", "watch", "create", "update", "delete")
	p.namespace(v1alpha1.Namespace)
	p.add("", "", "namespaces", []string{metav1.NamespaceSystem}, "get") // its UID identifies the cluster
	p.add("", "", "nodes", nil, "list")                                  // danger rules count matching nodes
}

// namespace adds the right to read a namespace: Keelson does so before it creates anything there.
// The namespace is one of the granted objects, so Keelson needs no right to create any.
func (p *planner) namespace(name string) {
	p.add("", "", "namespaces", []string{name}, "get")
	p.namespaces[name] = true
}

// learn collects the objects on which other objects depend.
func (p *planner) learn(c Component, o *renderer.Object) error {
	kind, namespace, name := identity(o.Content)
	switch gk := groupKind(o.Content); gk {
	case schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
		return p.define(o)
	case schema.GroupKind{Kind: "Namespace"}:
		p.ours[name] = true
	case schema.GroupKind{Group: rbacv1.GroupName, Kind: "Role"}, schema.GroupKind{Group: rbacv1.GroupName, Kind: "ClusterRole"}:
		rules, err := rulesOf(o.Content)
		if err != nil {
			return fmt.Errorf("%s: component %s: %s %s: %w", o.Source, c.Name, kind, name, err)
		}
		p.roles[roleKey{namespace, name}] = rules
	}
	return nil
}

func (p *planner) define(o *renderer.Object) error {
	spec, _ := o.Content["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	group, _ := spec["group"].(string)
	kind, _ := names["kind"].(string)
	plural, _ := names["plural"].(string)
	if group == "" || kind == "" || plural == "" {
		return fmt.Errorf("%s: the CustomResourceDefinition lacks spec.group, spec.names.kind or spec.names.plural", o.Source)
	}
	m := &meta.RESTMapping{Resource: schema.GroupVersionResource{Group: group, Resource: plural}, Scope: meta.RESTScopeNamespace}
	if spec["scope"] == "Cluster" {
		m.Scope = meta.RESTScopeRoot
	}
	p.kinds[schema.GroupKind{Group: group, Kind: kind}] = m
	return nil
}

// autoscalers adds the right to watch all autoscalers: the fields that they own are not written.
func (p *planner) autoscalers() error {
	for _, gvk := range slices.SortedFunc(maps.Keys(observe.Autoscalers()), func(a, b schema.GroupVersionKind) int { return cmp.Compare(a.String(), b.String()) }) {
		m, err := p.mapping(gvk)
		switch {
		case err == nil:
			p.add("", m.Resource.Group, m.Resource.Resource, nil, watchVerbs()...)
		case !apis.IsNotServed(err):
			return fmt.Errorf("autoscalers: %w", err)
		}
	}
	return nil
}

func (p *planner) mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	if m := p.kinds[gvk.GroupKind()]; m != nil {
		return m, nil
	}
	return p.served.Mapping(gvk)
}

func (p *planner) component(c Component) error {
	p.namespace(c.Namespace)
	if c.ServiceAccount != "" {
		p.add(p.scope(c.Namespace), "", "serviceaccounts", []string{c.ServiceAccount}, "impersonate")
	}
	for _, o := range c.Objects {
		apiVersion, _ := o.Content["apiVersion"].(string)
		kind, namespace, _ := identity(o.Content)
		if err := p.object(c, schema.FromAPIVersionAndKind(apiVersion, kind), namespace); err != nil {
			return fmt.Errorf("%s: %w", o.Source, err)
		}
		if c.ServiceAccount == "" {
			p.granting(c, o)
		}
		if v, is := configversion.Of(o.Content); is {
			p.users(v.Namespace)
		}
	}
	if c.Jobs {
		if err := p.object(c, batchv1.SchemeGroupVersion.WithKind("Job"), c.Namespace); err != nil {
			return fmt.Errorf("the Jobs of its checks: %w", err)
		}
	}
	for _, r := range c.Recorded {
		err := p.object(c, schema.FromAPIVersionAndKind(r.APIVersion, r.Kind), r.Namespace)
		if err != nil && !apis.IsNotServed(err) { // its CRD is gone, and the object with it
			return fmt.Errorf("recorded %s: %w", r.ID, err)
		}
		if v, is := configversion.Of(r.Content); is {
			p.users(v.Namespace)
		}
	}
	return nil
}

// scope returns where rights on objects of a namespace are granted. No role can be created in a
// namespace that a component has yet to create, so those rights are cluster-wide.
func (p *planner) scope(namespace string) string {
	if p.ours[namespace] {
		return ""
	}
	return namespace
}

func (p *planner) object(c Component, gvk schema.GroupVersionKind, namespace string) error {
	m, err := p.mapping(gvk)
	if err != nil {
		return err
	}
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		namespace = ""
	}
	group, resource := m.Resource.Group, m.Resource.Resource
	p.add("", group, resource, nil, watchVerbs()...)
	p.add(p.scope(namespace), group, resource, nil, readVerbs()...)
	if c.ServiceAccount == "" {
		p.add(p.scope(namespace), group, resource, nil, writeVerbs()...)
	}
	if gvk.Kind == "CustomResourceDefinition" {
		p.instances(c)
	}
	p.diagnosis(gvk, namespace)
	return nil
}

// diagnosis adds the rights to find out why an object does not become healthy.
func (p *planner) diagnosis(gvk schema.GroupVersionKind, namespace string) {
	if namespace == "" {
		return
	}
	p.add(p.scope(namespace), "", "events", nil, "list")
	if gvk.Group == "apps" || gvk.Group == "batch" {
		p.add(p.scope(namespace), "", "pods", nil, "list")
	}
}

// users adds the rights to find out whether a pod or a kept revision refers to an earlier version of
// a ConfigMap or Secret.
func (p *planner) users(namespace string) {
	for _, r := range configversion.UserResources() {
		p.add(p.scope(namespace), r.Group, r.Resource, nil, "list")
	}
}

// instances adds the rights to read custom resources of the component's CRDs. Before a new schema
// is applied, Keelson checks whether the schema would refuse them.
func (p *planner) instances(c Component) {
	for _, o := range c.Objects {
		if groupKind(o.Content).Kind != "CustomResourceDefinition" {
			continue
		}
		spec, _ := o.Content["spec"].(map[string]any)
		names, _ := spec["names"].(map[string]any)
		group, _ := spec["group"].(string)
		plural, _ := names["plural"].(string)
		p.add("", group, plural, nil, "get", "list")
	}
}

func identity(content map[string]any) (kind, namespace, name string) {
	kind, _ = content["kind"].(string)
	metadata, _ := content["metadata"].(map[string]any)
	name, _ = metadata["name"].(string)
	namespace, _ = metadata["namespace"].(string)
	return kind, namespace, name
}

func groupKind(content map[string]any) schema.GroupKind {
	apiVersion, _ := content["apiVersion"].(string)
	kind, _ := content["kind"].(string)
	return schema.FromAPIVersionAndKind(apiVersion, kind).GroupKind()
}

// ForHub returns the rights that the controller needs in the hub. The controller installs the CRDs,
// writes Deliveries, Rollouts and ProbeResults, sends events, and shares clusters by Leases. It
// reads and watches the kubeconfigs of connections, by their names alone.
func ForHub(connections []v1alpha1.Connection, crds []string) *Rights {
	r := newRights()
	const own = v1alpha1.Namespace
	r.add("", "", "namespaces", []string{own}, "get")
	r.namespaces[own] = true
	r.add("", "apiextensions.k8s.io", "customresourcedefinitions", nil, "create")
	r.add("", "apiextensions.k8s.io", "customresourcedefinitions", crds, "get", "patch")
	group := v1alpha1.GroupVersion.Group
	r.add(own, group, "deliveries", nil, "create", "delete", "get", "list", "watch")
	r.add(own, group, "deliveries/status", nil, "patch")
	r.add(own, group, "rollouts", nil, "create", "delete", "get", "list", "watch")
	r.add(own, group, "rollouts/status", nil, "update")
	r.add(own, group, "proberesults", nil, "create", "delete", "get", "list")
	r.add(own, group, "proberesults/status", nil, "update")
	// With --share. Leases are named after processes. Another replica deletes the Lease of a
	// replica that died.
	r.add(own, "coordination.k8s.io", "leases", nil, "create", "delete", "get", "list", "update", "watch")
	// Events about the repository have no namespace, so they are stored in default.
	for _, namespace := range []string{own, "default"} {
		r.add(namespace, "", "events", nil, "create", "patch")
	}
	for _, c := range connections {
		if c.Secret != nil {
			r.add(cmp.Or(c.Secret.Namespace, own), "", "secrets", []string{c.Secret.Name}, "get", "list", "watch")
		}
	}
	return r
}

// Probe is a black-box test, with the kinds of the objects that it creates in its namespace.
type Probe struct {
	Namespace string
	Kinds     []schema.GroupVersionKind
}

// Allow adds the rights that a probe needs in a cluster. They are all in its namespace, which must
// exist. A kind that is not served yet is left out: the probe fails, too.
func (r *Rights) Allow(p Probe, served Served) error {
	r.namespaces[p.Namespace] = true
	for _, gvk := range p.Kinds {
		m, err := served.Mapping(gvk)
		if apis.IsNotServed(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("probe in %s: %w", p.Namespace, err)
		}
		r.add(p.Namespace, m.Resource.Group, m.Resource.Resource, nil, "get", "watch", "create", "patch", "delete")
		r.add(p.Namespace, "", "events", nil, "list")
		if gvk.Group == "apps" || gvk.Group == "batch" {
			r.add(p.Namespace, "", "pods", nil, "list")
		}
	}
	return nil
}

// AddNotifications adds the rights that notifications need in the hub: to read their Secrets, and
// to store what was sent in ConfigMaps. All rights but create are limited to these names.
func (r *Rights) AddNotifications(secrets, configMaps []string) {
	const own = v1alpha1.Namespace
	if len(secrets) > 0 {
		r.add(own, "", "secrets", secrets, "get")
	}
	if len(configMaps) > 0 {
		r.add(own, "", "configmaps", nil, "create")
		r.add(own, "", "configmaps", configMaps, "delete", "get", "update")
	}
}

// AddMemory adds the rights that the memory of the fleet repository needs in the hub: ConfigMaps.
// All rights but create are limited to these names.
func (r *Rights) AddMemory(configMaps []string) {
	r.add(v1alpha1.Namespace, "", "configmaps", nil, "create")
	r.add(v1alpha1.Namespace, "", "configmaps", configMaps, "get", "update")
}

func wild(texts ...[]string) bool {
	return slices.ContainsFunc(slices.Concat(texts...), func(s string) bool { return strings.Contains(s, "*") })
}
