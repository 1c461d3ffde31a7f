package registry

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/window"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Pipeline is one file under pipelines/: the order in which changes reach clusters.
type Pipeline struct {
	// Name is empty if the pipeline of a component is unknown.
	Name   string
	Spec   v1alpha1.Pipeline
	Stages []*Stage
	// Jobs are the job templates of the pipeline's checks, by path.
	Jobs map[string]string
	// Problems block each delivery of the components that use the pipeline. With Problems, Stages
	// may be empty.
	Problems yamlfile.Problems

	file string
}

// Stage is one step of a Pipeline.
type Stage struct {
	Spec    v1alpha1.Stage
	Windows window.Windows

	selector      labels.Selector
	at            yamlfile.Point
	before, after []yamlfile.Point // positions of the checks' conditions

	// ranges are the version ranges to promote, by component; "" is for all other components. A nil
	// map promotes nothing.
	ranges     map[string]*semver.Constraints
	promotedAt map[string]yamlfile.Point // by component
}

// Names are the values of placeholders; see [v1alpha1.Check].
type Names struct {
	Component, Pipeline, Stage string
	// Cluster is the checked cluster; Clusters are all clusters of the stage.
	Cluster  string
	Clusters []string
}

// perCluster is the placeholder that makes a check run for each cluster.
const perCluster = "$(cluster)"

// PerCluster reports whether a text with placeholders differs by cluster.
func PerCluster(text string) bool { return strings.Contains(text, perCluster) }

// Expand replaces placeholders by names. Names are DNS labels, so they end no string of YAML,
// PromQL or a URL.
func (n Names) Expand(text string) string {
	return strings.NewReplacer(
		"$(component)", n.Component, "$(pipeline)", n.Pipeline, "$(stage)", n.Stage,
		perCluster, n.Cluster, "$(clusters)", strings.Join(n.Clusters, "|"),
	).Replace(text)
}

// placeholder matches any text with the form of a placeholder.
var placeholder = regexp.MustCompile(`\$\([^()]*\)`)

const knownPlaceholders = "there are $(component), $(pipeline), $(stage), $(cluster) and $(clusters)"

// unknownPlaceholder returns the first unknown placeholder; "" for none.
func unknownPlaceholder(text string) string {
	known := []string{"$(component)", "$(pipeline)", "$(stage)", perCluster, "$(clusters)"}
	for _, p := range placeholder.FindAllString(text, -1) {
		if !slices.Contains(known, p) {
			return p
		}
	}
	return ""
}

// StageOf returns the first stage for a cluster with the given labels, or nil.
func (p *Pipeline) StageOf(set map[string]string) *Stage {
	for _, s := range p.Stages {
		if s.selector.Matches(labels.Set(set)) {
			return s
		}
	}
	return nil
}

// RunsJobs reports whether the stage of a cluster with the given labels has a check with a Job,
// which then runs on the cluster.
func (p *Pipeline) RunsJobs(set map[string]string) bool {
	s := p.StageOf(set)
	has := func(c v1alpha1.Check) bool { return c.Job != nil }
	return s != nil && (slices.ContainsFunc(s.Spec.Before, has) || slices.ContainsFunc(s.Spec.After, has))
}

// StageAt returns the position of a stage.
func (p *Pipeline) StageAt(s *Stage) yamlfile.Position { return s.at.In(p.file, "") }

// CheckAt returns the position of the condition of a check, by its index among the checks before or
// after a stage.
func (p *Pipeline) CheckAt(s *Stage, after bool, i int) yamlfile.Position {
	points := s.before
	if after {
		points = s.after
	}
	if i < len(points) {
		return points[i].In(p.file, "")
	}
	return yamlfile.Position{File: p.file}
}

// Pipeline returns the pipeline with the given name, or nil. If both NAME.yaml and NAME.yml exist,
// it is the latter, which has Problems.
func (f *Fleet) Pipeline(name string) *Pipeline {
	for _, p := range slices.Backward(f.Pipelines) {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// PipelineOf returns the pipeline for changes of a component. Nil means that changes go to all
// clusters at once. If the pipeline is unknown, the result has Problems and no Stages.
func (f *Fleet) PipelineOf(component string) *Pipeline {
	if p, ok := f.ways.of[component]; ok {
		return p
	}
	return f.ways.otherwise
}

// PipelineAt returns the position of the name of a component's pipeline: in its component.yaml, or
// in fleet.yaml.
func (f *Fleet) PipelineAt(component string) yamlfile.Position {
	if at, ok := f.ways.at[component]; ok {
		return at
	}
	return f.ways.at[""]
}

// pipelineIndex maps components to pipelines.
type pipelineIndex struct {
	of        map[string]*Pipeline // components with a folder at the fleet's revision
	otherwise *Pipeline
	at        map[string]yamlfile.Position // by component; "" is the fleet's
}

func (w pipelineIndex) equal(v pipelineIndex) bool {
	return w.otherwise == v.otherwise && maps.Equal(w.of, v.of)
}

// readPipelines reads pipelines/, and determines the fleet's pipeline.
func (l *loader) readPipelines(ctx context.Context) error {
	l.fleet.ways.of, l.fleet.ways.at = map[string]*Pipeline{}, map[string]yamlfile.Position{}
	files, unread, err := topFolder[pipelineFile]{name: "pipelines", kind: v1alpha1.KindPipeline, decode: decodePipeline}.read(ctx, l.files)
	if err != nil {
		return err
	}
	l.block(unread...)
	for _, f := range files {
		p, err := l.newPipeline(ctx, f)
		if err != nil {
			return err
		}
		l.report(p.Problems...)
		l.fleet.Pipelines = append(l.fleet.Pipelines, p)
	}
	slices.SortStableFunc(l.fleet.Pipelines, func(a, b *Pipeline) int { return strings.Compare(a.Name, b.Name) })
	if name := l.fleet.Spec.Pipeline; name != "" {
		l.fleet.ways.otherwise, l.fleet.ways.at[""] = l.pipelineNamed(name, l.pipelineAt), l.pipelineAt
	}
	return nil
}

// pipelineNamed returns the pipeline with a name in a file. For a missing pipeline it returns a Pipeline with
// a problem.
func (l *loader) pipelineNamed(name string, at yamlfile.Position) *Pipeline {
	if p := l.fleet.Pipeline(name); p != nil {
		return p
	}
	problem := l.noPipeline(at, name)
	l.report(problem)
	return &Pipeline{Name: name, Problems: yamlfile.Problems{problem}}
}

func (l *loader) noPipeline(at yamlfile.Position, name string) yamlfile.Problem {
	var names []string
	for _, p := range l.fleet.Pipelines {
		names = append(names, p.Name)
	}
	return noFile(at, "pipeline", name, names)
}

// readPipelineOf determines the pipeline of a component at the fleet's revision. If no pipelines exist, a
// broken component.yaml is not taken as naming one.
func (l *loader) readPipelineOf(ctx context.Context, component string) error {
	folder := join("components", component)
	entries, err := l.files.tree.List(ctx, folder)
	if err != nil {
		return l.unknownPipelineOf(ctx, component, yamlfile.Problem{At: yamlfile.Position{File: folder}, Message: "can't be read: " + err.Error()})
	}
	at := yamlfile.Position{File: join(folder, "component.yaml")}
	i := slices.IndexFunc(entries, func(e gitrepo.Entry) bool { return e.Name == "component.yaml" })
	if i < 0 {
		return l.unknownPipelineOf(ctx, component, yamlfile.Problem{At: at, Message: "the file is missing"})
	}
	f, problem, err := readEntry(ctx, l.files, entries[i], v1alpha1.KindComponent, decodeComponent)
	switch {
	case err != nil:
		return err
	case f == nil:
		return l.unknownPipelineOf(ctx, component, problem)
	case f.vague:
		return l.unknownPipelineOf(ctx, component, f.In(at.File)...)
	case f.spec.Pipeline != "":
		at = f.pipelineAt.In(at.File, "")
		l.fleet.ways.of[component], l.fleet.ways.at[component] = l.pipelineNamed(f.spec.Pipeline, at), at
	}
	return nil
}

// unknownPipelineOf records that the pipeline of a component is unknown. The problems belong to its
// version at the fleet's revision, and are reported there.
func (l *loader) unknownPipelineOf(ctx context.Context, component string, problems ...yamlfile.Problem) error {
	if len(l.fleet.Pipelines) > 0 {
		l.fleet.ways.of[component] = &Pipeline{Problems: problems}
	}
	return ctx.Err()
}

// newPipeline builds a pipeline from its file and its templates. An unchanged pipeline keeps its
// pointer.
func (l *loader) newPipeline(ctx context.Context, f topFile[pipelineFile]) (*Pipeline, error) {
	broken := &Pipeline{Name: f.stem, file: f.Path, Problems: f.problems}
	if f.content == nil {
		return broken, nil
	}
	says := f.content
	jobs, key, wrong, err := templates[template]{"job template", decodeTemplate, says.templates}.read(ctx, l.files, f.Path)
	if err != nil {
		return nil, err
	}
	broken.Spec = says.spec
	broken.Problems = slices.Concat(f.problems, l.checkProbes(f.Path, says.probes), misnamed(yamlfile.Position{File: f.Path}, f.stem, "pipeline"), wrong)
	if len(broken.Problems) > 0 {
		return broken, nil
	}
	return objectcache.Get(l.files.cache, objectcache.Key{Job: "pipeline", Hash: f.Hash, Name: key}, func() (*Pipeline, error) {
		p := &Pipeline{Name: f.stem, Spec: says.spec, Stages: says.stages, Jobs: map[string]string{}, file: f.Path}
		for name, job := range jobs {
			p.Jobs[name] = job.text
		}
		return p, nil
	})
}

// checkStage blocks a delivery whose pipeline is broken or has no stage for the cluster.
func (r *clusterReader) checkStage(d *Delivery) {
	p := r.fleet.PipelineOf(d.Component)
	switch {
	case p == nil:
	case len(p.Problems) > 0:
		d.Problems = append(d.Problems, p.Problems...) // reported already
	case p.StageOf(r.cluster.Spec.Labels) == nil:
		problem := yamlfile.Problem{
			At:      yamlfile.Position{File: p.file, Line: 1, Column: 1},
			Message: fmt.Sprintf("pipeline %s has no stage for", p.Name),
			Hint:    "its last stage can select the remaining clusters: clusterSelector: {}",
		}
		if !slices.Contains(r.now.absent, problem) { // once for all components
			r.now.absent = append(r.now.absent, problem)
		}
		problem.Message += onClusters([]string{d.Cluster})
		d.Problems = append(d.Problems, problem)
	}
}
