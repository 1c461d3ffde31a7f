package differ

import (
	"fmt"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// ProjectLimits lists the objects that a project allows its components. It does not change.
type ProjectLimits struct {
	Project string
	Objects []v1alpha1.ObjectMatch
}

// Rule returns the name that is shown in place of a rule's name.
func (f *ProjectLimits) Rule() string { return "project " + f.Project }

// Name returns the name of the project; empty: there is none.
func (f *ProjectLimits) Name() string {
	if f == nil {
		return ""
	}
	return f.Project
}

// Refuses returns why the component may not have an object; empty: the object is allowed.
func (f *ProjectLimits) Refuses(id ID) string {
	if f == nil || slices.ContainsFunc(f.Objects, func(m v1alpha1.ObjectMatch) bool { return inside(m, id) }) {
		return ""
	}
	return fmt.Sprintf("project %s does not let its components have it: it matches no entry of objects in projects/%s.yaml", f.Project, f.Project)
}

// inside is [Matches], except that a given namespace never matches a cluster-scoped object: "*"
// means any namespace, and not the cluster.
func inside(m v1alpha1.ObjectMatch, id ID) bool {
	return Matches(m, id) && (m.Namespace == "" || id.Namespace != "")
}

// parts returns strings that identify the fence.
func (f *ProjectLimits) parts() []string {
	if f == nil {
		return nil
	}
	out := []string{f.Project}
	for _, m := range f.Objects {
		out = append(out, m.Group, m.Namespace, m.Name, fmt.Sprint(m.Kinds))
	}
	return out
}
