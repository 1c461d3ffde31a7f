package differ

import (
	"fmt"
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Policy is what decides about differences, all from git but Autoscaled.
type Policy struct {
	// Component whose objects are compared.
	Component string
	// Rules in the order in which they are read; see [Rules].
	Rules Rules
	// Adopt lets objects that Keelson never applied be taken over.
	Adopt bool
	// Drift is what happens to a person's change; the zero value restores it.
	Drift v1alpha1.Drift
	// Autoscaled holds the objects whose replicas an autoscaler of the
	// cluster owns.
	Autoscaled map[ID]bool
	// MaskKey keys the hashes that stand for the data of Secrets.
	MaskKey []byte
}

// Rules are compiled danger rules; the first that matches decides.
type Rules []rule

type rule struct {
	v1alpha1.DangerRule
	pattern pattern
	// applies narrows a built-in rule by what Keelson knows of the cluster.
	applies func(ID, Policy) bool
}

// NewRules compiles danger rules, the narrowest scope first (component, then
// fleet), and puts the built-in ones behind them. A rule that bears the name of
// a later one replaces it.
func NewRules(scopes ...[]v1alpha1.DangerRule) (Rules, error) {
	var out Rules
	named := map[string]bool{}
	for _, scope := range scopes {
		for _, r := range scope {
			p, err := parsePattern(r.Path)
			if err != nil {
				return nil, fmt.Errorf("danger rule %q: %w", r.Name, err)
			}
			if !named[r.Name] {
				out = append(out, rule{DangerRule: r, pattern: p})
			}
			named[r.Name] = true
		}
	}
	catalogue, err := builtIn()
	if err != nil {
		return nil, err
	}
	for _, r := range catalogue {
		if !named[r.Name] {
			out = append(out, r)
		}
	}
	return out, nil
}

// find returns the first rule for an event at a field, or nil. An object's
// deletion has no field.
func (p Policy) find(id ID, event v1alpha1.Event, w *row) *rule {
	for i := range p.Rules {
		r := &p.Rules[i]
		if !r.on(event) || !matchesObject(r.Match, id) || r.applies != nil && !r.applies(id, p) {
			continue
		}
		if w == nil || r.pattern.matches(w.path) {
			return r
		}
	}
	return nil
}

func (r *rule) on(event v1alpha1.Event) bool {
	if len(r.On) == 0 {
		return event != v1alpha1.OnDeleteObject
	}
	return slices.Contains(r.On, event)
}

func matchesObject(m v1alpha1.ObjectMatch, id ID) bool {
	return glob(m.Group, id.Group) && glob(m.Namespace, id.Namespace) && glob(m.Name, id.Name) &&
		(len(m.Kinds) == 0 || slices.ContainsFunc(m.Kinds, func(k string) bool { return glob(k, id.Kind) }))
}

func glob(pattern, s string) bool {
	if pattern == "" {
		return true
	}
	ok, err := path.Match(pattern, s)
	return ok && err == nil
}

// ID names an object regardless of its version.
type ID struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String is KIND.GROUP NAMESPACE/NAME.
func (id ID) String() string {
	return schema.GroupKind{Group: id.Group, Kind: id.Kind}.String() + " " + id.NamespacedName()
}

// NamespacedName is NAMESPACE/NAME, or NAME of a cluster-scoped object.
func (id ID) NamespacedName() string {
	if id.Namespace == "" {
		return id.Name
	}
	return id.Namespace + "/" + id.Name
}
