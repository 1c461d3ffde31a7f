package registry

import (
	"fmt"
	"slices"
	"strings"
)

// checkDependencies reports dependencies that the cluster does not have, and
// circles of them, in which nothing could ever go first.
func (r *clusterReader) checkDependencies() {
	if len(r.cluster.Problems) > 0 {
		return // it may not be known what runs here
	}
	byName := map[string]*Delivery{}
	for _, d := range r.cluster.Deliveries {
		byName[d.Component] = d
	}
	for _, d := range r.cluster.Deliveries {
		r.checkAbsent(d, byName)
	}
	for _, circle := range circles(r.cluster.Deliveries, byName) {
		r.reportCircle(circle)
	}
}

func (r *clusterReader) checkAbsent(d *Delivery, byName map[string]*Delivery) {
	if d.Version == nil {
		return
	}
	for i, name := range d.Version.Spec.DependsOn {
		if byName[name] != nil {
			continue
		}
		problem := Problem{
			At:      d.Version.dependencyAt(i),
			Message: fmt.Sprintf("%s %s depends on %s, which is not delivered to", d.Component, d.Version.Name, name),
			Hint:    "add " + name + " to a layer or to the cluster's folder",
		}
		r.absent[problem] = append(r.absent[problem], d.Cluster)
		problem.Message += onClusters([]string{d.Cluster})
		d.Problems = append(d.Problems, problem)
	}
}

func (v *Version) dependencyAt(i int) Position {
	if i < len(v.dependsAt) {
		return v.dependsAt[i]
	}
	return Position{File: join(v.folder, "component.yaml"), Revision: v.revision}
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
	problem := Problem{
		At:      first.Version.dependencyAt(i),
		Message: "dependsOn goes in a circle: " + strings.Join(names, " → "),
	}
	r.report(problem)
	for _, d := range circle {
		d.Problems = append(d.Problems, problem)
	}
}

// circles returns the circles that a walk along dependsOn finds, each starting
// with the component whose name is first, so that every cluster tells it alike.
// Every circle has at least one dependency that is in a returned one.
func circles(deliveries []*Delivery, byName map[string]*Delivery) [][]*Delivery {
	w := circleWalk{byName: byName, state: map[string]int{}}
	for _, d := range deliveries {
		w.visit(d)
	}
	return w.found
}

type circleWalk struct {
	byName map[string]*Delivery
	state  map[string]int // 0 not seen, 1 on the path, 2 done
	path   []*Delivery
	found  [][]*Delivery
}

func (w *circleWalk) visit(d *Delivery) {
	if d == nil || d.Version == nil || w.state[d.Component] == 2 {
		return
	}
	if w.state[d.Component] == 1 {
		circle := slices.Clone(w.path[slices.Index(w.path, d):])
		first := 0
		for i := range circle {
			if circle[i].Component < circle[first].Component {
				first = i
			}
		}
		w.found = append(w.found, slices.Concat(circle[first:], circle[:first]))
		return
	}
	w.state[d.Component] = 1
	w.path = append(w.path, d)
	for _, name := range d.Version.Spec.DependsOn {
		w.visit(w.byName[name])
	}
	w.path = w.path[:len(w.path)-1]
	w.state[d.Component] = 2
}
