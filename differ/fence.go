package differ

import (
	"fmt"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Fence is what the project of a component lets it have. It does not change.
type Fence struct {
	Project string
	Objects []v1alpha1.ObjectMatch
}

// Rule is the name under which the fence is shown where a rule would be.
func (f *Fence) Rule() string { return "project " + f.Project }

// Refuses says why the component may not have an object; empty: it may.
func (f *Fence) Refuses(id ID) string {
	if f == nil || slices.ContainsFunc(f.Objects, func(m v1alpha1.ObjectMatch) bool { return inside(m, id) }) {
		return ""
	}
	return fmt.Sprintf("project %s does not let its components have it: it matches none of the objects in projects/%s.yaml", f.Project, f.Project)
}

// inside is [Matches], but a namespace that is given is never that of an object without
// one: "*" means any namespace, and not the cluster.
func inside(m v1alpha1.ObjectMatch, id ID) bool {
	return Matches(m, id) && (m.Namespace == "" || id.Namespace != "")
}

// parts tell a fence from every other.
func (f *Fence) parts() []string {
	if f == nil {
		return nil
	}
	out := []string{f.Project}
	for _, m := range f.Objects {
		out = append(out, m.Group, m.Namespace, m.Name, fmt.Sprint(m.Kinds))
	}
	return out
}
