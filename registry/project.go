package registry

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Project is one file under projects/: the limits for the components of a team.
type Project struct {
	Name string
	Spec v1alpha1.Project

	selector labels.Selector
	file     string
}

// At returns the file of the project.
func (p *Project) At() yamlfile.Position { return yamlfile.Position{File: p.file} }

// Has reports whether a component belongs to the project.
func (p *Project) Has(component string) bool { return anyGlob(p.Spec.Components, component) }

func anyGlob(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return glob(pattern, name) })
}

func glob(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// ProjectOf returns the project of a component, or nil. If several projects have the component, it
// returns the first, and each delivery of the component has a problem.
func (f *Fleet) ProjectOf(component string) *Project {
	for _, p := range f.Projects {
		if p.Has(component) {
			return p
		}
	}
	return nil
}

// projectFile is projects/NAME.yaml.
type projectFile struct {
	spec     v1alpha1.Project
	selector labels.Selector
	yamlfile.Mistakes
}

func decodeProject(data []byte) *projectFile {
	f := &projectFile{selector: labels.Everything()}
	doc := decodeFile(data, v1alpha1.KindProject, &f.spec)
	if !doc.Broken {
		c := projectChecker{checker{doc}}
		c.patterns("components", f.spec.Components)
		if len(f.spec.Components) == 0 && !doc.Wrong("components") {
			c.key([]string{"components"}, "a project names its components", `components: [web, "web-*"]`)
		}
		if len(f.spec.Objects) == 0 && !doc.Wrong("objects") {
			c.key([]string{"objects"}, "a project says which objects its components may have", "objects: [{namespace: web}]")
		}
		for i, m := range f.spec.Objects {
			c.match([]string{"objects", strconv.Itoa(i)}, m)
		}
		if f.spec.ClusterSelector != nil {
			f.selector = c.selector([]string{"clusterSelector"}, *f.spec.ClusterSelector)
		}
		c.patterns("serviceAccounts", f.spec.ServiceAccounts)
		c.patterns("pipelines", f.spec.Pipelines)
		ruleChecker(c).danger(f.spec.Danger, false)
	}
	f.Mistakes = doc.Mistakes
	return f
}

// projectChecker checks a project.
type projectChecker struct{ checker }

// patterns checks a list of names with globs. An empty list can result from a merge, and must not
// be read as a missing key.
func (c projectChecker) patterns(field string, list []string) {
	if _, set := c.doc.Lookup(field); set != nil && len(list) == 0 && !c.doc.Wrong(field) {
		c.key([]string{field}, field+" is empty", "leave the key out for its default")
	}
	for i, pattern := range list {
		at := []string{field, strconv.Itoa(i)}
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			c.value(at, fmt.Sprintf("%q is no name and no pattern of names", pattern), "* stands for any characters")
			continue
		}
		plain := strings.NewReplacer("*", "x", "?", "x").Replace(pattern)
		if wrong := validation.IsDNS1123Subdomain(plain); !strings.ContainsAny(pattern, `[]\`) && len(wrong) > 0 {
			c.value(at, fmt.Sprintf("%q can match no name: %s", pattern, short(wrong)), "")
		}
	}
}

// match checks a selector of objects.
func (c projectChecker) match(at []string, m v1alpha1.ObjectMatch) {
	if m.Group == "" && len(m.Kinds) == 0 && m.Namespace == "" && m.Name == "" && !c.doc.Wrong(at...) {
		c.key(at, "this matches every object", `say so with {name: "*"}`)
	}
	for _, pattern := range append([]string{m.Group, m.Namespace, m.Name}, m.Kinds...) {
		if _, err := path.Match(pattern, ""); err != nil {
			c.key(at, fmt.Sprintf("%q is no pattern: %v", pattern, err), "* stands for any characters")
		}
	}
}

// readProjects reads projects/. A broken file blocks every cluster, because its components can't be
// known.
func (l *loader) readProjects(ctx context.Context) error {
	files, unread, err := topFolder[projectFile]{name: "projects", kind: v1alpha1.KindProject, decode: decodeProject, strict: true}.read(ctx, l.files)
	if err != nil {
		return err
	}
	l.block(unread...)
	for _, f := range files {
		l.block(f.problems...)
		if f.content != nil {
			l.fleet.Projects = append(l.fleet.Projects, &Project{Name: f.stem, Spec: f.content.spec, selector: f.content.selector, file: f.Path})
		}
	}
	return nil
}

func sameProjects(a, b []*Project) bool {
	return slices.EqualFunc(a, b, func(p, q *Project) bool { return p.file == q.file && reflect.DeepEqual(p.Spec, q.Spec) })
}

// checkProject blocks a delivery that violates its project.
func (r *clusterReader) checkProject(d *Delivery) {
	for _, problem := range r.overstepped(d) {
		r.report(problem)
		d.Problems = append(d.Problems, problem)
	}
}

// overstepped returns the parts of a delivery that violate its project.
func (r *clusterReader) overstepped(d *Delivery) (out yamlfile.Problems) {
	if len(r.everywhere) > 0 {
		return nil // the broken file may be the project, and nothing is delivered
	}
	p := r.fleet.ProjectOf(d.Component)
	if p == nil {
		if r.fleet.Spec.Projects == v1alpha1.ProjectsRequired {
			out = append(out, yamlfile.Problem{
				At:      d.VersionAt,
				Message: d.Component + " belongs to no project, but fleet.yaml requires a project for every component",
				Hint:    "add it to the components of a file in projects/",
			})
		}
		return out
	}
	for _, other := range r.fleet.Projects {
		if other != p && other.Has(d.Component) {
			return append(out, yamlfile.Problem{At: other.At(), Message: fmt.Sprintf("component %s is of project %s, too (%s)", d.Component, p.Name, p.file), Hint: "leave it out of one of them"})
		}
	}
	if r.now.spec != nil && !p.selector.Matches(labels.Set(r.cluster.Spec.Labels)) {
		out = append(out, p.refuses(d.VersionAt, "does not let %s be on cluster %s: its clusterSelector does not match", d.Component, d.Cluster))
	}
	if allowed := p.Spec.Pipelines; allowed != nil {
		if way := r.fleet.PipelineOf(d.Component); way == nil || !anyGlob(allowed, way.Name) {
			at := r.fleet.PipelineAt(d.Component)
			at.File = cmp.Or(at.File, join(join("components", d.Component), "component.yaml"))
			out = append(out, p.refuses(at, "lets changes of %s go by pipeline %s alone", d.Component, strings.Join(allowed, ", ")))
		}
	}
	if d.Version != nil {
		out = append(out, p.oversteppedBy(d.Version)...)
	}
	return out
}

func (p *Project) refuses(at yamlfile.Position, format string, args ...any) yamlfile.Problem {
	return yamlfile.Problem{At: at, Message: fmt.Sprintf("project %s (%s) %s", p.Name, p.file, fmt.Sprintf(format, args...))}
}

// oversteppedBy returns the fields of a version that violate the project.
func (p *Project) oversteppedBy(v *Version) (out yamlfile.Problems) {
	spec := &v.Spec
	if !slices.ContainsFunc(p.Spec.Objects, func(m v1alpha1.ObjectMatch) bool { return m.Namespace != "" && glob(m.Namespace, spec.Namespace) }) {
		out = append(out, p.refuses(v.specAt("namespace"), "has no objects in namespace %s", spec.Namespace))
	}
	if allowed := p.Spec.ServiceAccounts; allowed != nil && (spec.ServiceAccount == "" || !anyGlob(allowed, spec.ServiceAccount)) {
		out = append(out, p.refuses(v.specAt("serviceAccount"), "lets %s be written as serviceAccount %s alone", v.Component, strings.Join(allowed, ", ")))
	}
	if spec.Adopt && !p.Spec.Adopt {
		out = append(out, p.refuses(v.specAt("adopt"), "does not let %s adopt objects", v.Component))
	}
	return out
}
