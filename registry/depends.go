package registry

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/keelson-io/keelson/registry/yamlfile"
)

// checkDependencies reports dependencies that the cluster does not have, and circles of
// dependencies, which have no possible order. The deliveries must be in component-name order.
func (r *clusterReader) checkDependencies(deliveries []Delivery) {
	if len(r.cluster.Problems) > 0 {
		return // the components may be incomplete
	}
	for i := range deliveries {
		r.checkAbsent(&deliveries[i], deliveries)
	}
	for i := range deliveries {
		r.checkNeeded(&deliveries[i], deliveries)
	}
	for _, circle := range circles(deliveries) {
		r.reportCircle(circle)
	}
}

// checkNeeded blocks an absent component that remaining components depend on, and blocks those
// components. The component must not be removed, and they must not change as if it stayed.
func (r *clusterReader) checkNeeded(d *Delivery, deliveries []Delivery) {
	if !d.Absent {
		return
	}
	var by []string
	for i := range deliveries {
		o := &deliveries[i]
		if o.Absent || o.Version == nil || !slices.Contains(o.Version.Spec.DependsOn, d.Component) {
			continue
		}
		by = append(by, o.Component)
	}
	if len(by) == 0 {
		return
	}
	problem := yamlfile.Problem{
		At:      d.AbsentAt,
		Message: fmt.Sprintf("%s is absent, and depends on it: %s", d.Component, strings.Join(by, ", ")),
		Hint:    "make these absent, too, or publish versions of them that do without it",
	}
	r.report(problem)
	d.Problems = append(d.Problems, problem)
	for _, name := range by {
		if i, ok := find(deliveries, name); ok {
			deliveries[i].Problems = append(deliveries[i].Problems, problem)
		}
	}
}

// find returns the index of a component's delivery.
func find(deliveries []Delivery, component string) (int, bool) {
	return sort.Find(len(deliveries), func(i int) int { return strings.Compare(component, deliveries[i].Component) })
}

func (r *clusterReader) checkAbsent(d *Delivery, deliveries []Delivery) {
	if d.Version == nil || d.Absent { // a component to be removed needs no dependencies
		return
	}
	for i, name := range d.Version.Spec.DependsOn {
		if _, ok := find(deliveries, name); ok {
			continue
		}
		problem := yamlfile.Problem{
			At:      d.Version.dependencyAt(i),
			Message: fmt.Sprintf("%s %s depends on %s, which is not delivered to", d.Component, d.Version.Name, name),
			Hint:    "add " + name + " to a layer or to the cluster's folder",
		}
		r.now.absent = append(r.now.absent, problem)
		problem.Message += onClusters([]string{d.Cluster})
		d.Problems = append(d.Problems, problem)
	}
}

func (v *Version) dependencyAt(i int) yamlfile.Position {
	if i < len(v.dependsAt) {
		return v.dependsAt[i]
	}
	return yamlfile.Position{File: join(v.folder, "component.yaml"), Revision: v.revision}
}

// reportCircle blocks every delivery of a circle.
func (r *clusterReader) reportCircle(circle []*Delivery) {
	names := make([]string, 0, len(circle)+1)
	for _, d := range circle {
		names = append(names, d.Component)
	}
	names = append(names, names[0])
	first := circle[0]
	i := slices.Index(first.Version.Spec.DependsOn, names[1])
	problem := yamlfile.Problem{
		At:      first.Version.dependencyAt(i),
		Message: "dependsOn goes in a circle: " + strings.Join(names, " → "),
	}
	r.report(problem)
	for _, d := range circle {
		d.Problems = append(d.Problems, problem)
	}
}

// circles returns the circles that a walk along dependsOn finds. Each starts with the first
// component by name, so that every cluster reports the same circle. Every circle has at least one
// dependency that is in a returned circle.
func circles(deliveries []Delivery) [][]*Delivery {
	w := circleWalk{deliveries: deliveries, state: make([]walked, len(deliveries))}
	for i := range deliveries {
		w.visit(i)
	}
	return w.found
}

type circleWalk struct {
	deliveries []Delivery
	state      []walked
	path       []int
	found      [][]*Delivery
}

type walked uint8

// The zero walked means not yet visited.
const (
	onPath walked = iota + 1
	done
)

func (w *circleWalk) visit(i int) {
	d := &w.deliveries[i]
	if d.Version == nil || w.state[i] == done {
		return
	}
	if w.state[i] == onPath {
		w.found = append(w.found, w.circle(w.path[slices.Index(w.path, i):]))
		return
	}
	w.state[i] = onPath
	w.path = append(w.path, i)
	for _, name := range d.Version.Spec.DependsOn {
		if on, ok := find(w.deliveries, name); ok {
			w.visit(on)
		}
	}
	w.path = w.path[:len(w.path)-1]
	w.state[i] = done
}

// circle rotates the path, so that it starts with the first component by name.
func (w *circleWalk) circle(path []int) []*Delivery {
	first := slices.Index(path, slices.Min(path))
	out := make([]*Delivery, 0, len(path))
	for _, i := range slices.Concat(path[first:], path[:first]) {
		out = append(out, &w.deliveries[i])
	}
	return out
}
