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
	"github.com/keelson-io/keelson/registry/window"
)

// Pipeline is the way of changes from cluster to cluster: one file under pipelines/.
type Pipeline struct {
	// Name is empty where it is not known which way a component goes.
	Name   string
	Spec   v1alpha1.Pipeline
	Stages []*Stage
	// Jobs are the templates of its checks, by their paths.
	Jobs map[string]string
	// Problems block each delivery of the components that go this way, and then
	// there may be no Stages.
	Problems Problems

	file string
}

// Stage is one step of a Pipeline.
type Stage struct {
	Spec    v1alpha1.Stage
	Windows window.Windows

	selector      labels.Selector
	at            point
	before, after []point // of the checks' conditions

	// ranges of what is promoted, by component; "" is that of all others. Nil: nothing is.
	ranges     map[string]*semver.Constraints
	promotedAt map[string]point // by component
}

// Names are what placeholders stand for; see [v1alpha1.Check].
type Names struct {
	Component, Pipeline, Stage string
	// Cluster that is asked about; Clusters are those of the stage.
	Cluster  string
	Clusters []string
}

// perCluster is the placeholder that makes a check one of each cluster.
const perCluster = "$(cluster)"

// PerCluster says whether a text with placeholders is another one on each cluster.
func PerCluster(text string) bool { return strings.Contains(text, perCluster) }

// Expand puts names in the place of placeholders. They are DNS labels, so they end no
// string of YAML, PromQL or a URL.
func (n Names) Expand(text string) string {
	return strings.NewReplacer(
		"$(component)", n.Component, "$(pipeline)", n.Pipeline, "$(stage)", n.Stage,
		perCluster, n.Cluster, "$(clusters)", strings.Join(n.Clusters, "|"),
	).Replace(text)
}

// placeholder is anything that looks like one.
var placeholder = regexp.MustCompile(`\$\([^()]*\)`)

const knownPlaceholders = "there are $(component), $(pipeline), $(stage), $(cluster) and $(clusters)"

// unknownPlaceholder returns the first that stands for nothing.
func unknownPlaceholder(text string) string {
	known := []string{"$(component)", "$(pipeline)", "$(stage)", perCluster, "$(clusters)"}
	for _, p := range placeholder.FindAllString(text, -1) {
		if !slices.Contains(known, p) {
			return p
		}
	}
	return ""
}

// StageOf is the first stage that a cluster with the given labels is in, or nil.
func (p *Pipeline) StageOf(set map[string]string) *Stage {
	for _, s := range p.Stages {
		if s.selector.Matches(labels.Set(set)) {
			return s
		}
	}
	return nil
}

// RunsJobs reports whether a check of the stage of a cluster with the given labels has a
// Job, which the cluster then runs.
func (p *Pipeline) RunsJobs(set map[string]string) bool {
	s := p.StageOf(set)
	has := func(c v1alpha1.Check) bool { return c.Job != nil }
	return s != nil && (slices.ContainsFunc(s.Spec.Before, has) || slices.ContainsFunc(s.Spec.After, has))
}

// StageAt is where a stage stands.
func (p *Pipeline) StageAt(s *Stage) Position { return s.at.in(p.file, "") }

// CheckAt is where the condition of a check stands, by its number before, or after,
// a stage.
func (p *Pipeline) CheckAt(s *Stage, after bool, i int) Position {
	points := s.before
	if after {
		points = s.after
	}
	if i < len(points) {
		return points[i].in(p.file, "")
	}
	return Position{File: p.file}
}

// Pipeline returns the one with the given name, or nil. Of NAME.yaml and NAME.yml it
// is the second, of which nothing is known.
func (f *Fleet) Pipeline(name string) *Pipeline {
	for _, p := range slices.Backward(f.Pipelines) {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// PipelineOf is the way that changes of a component go; nil: to all clusters at once.
// Where it can't be known, it is one that has Problems, and no Stages.
func (f *Fleet) PipelineOf(component string) *Pipeline {
	if p, ok := f.ways.of[component]; ok {
		return p
	}
	return f.ways.otherwise
}

// PipelineAt is where a component's pipeline is named: in its component.yaml, or in
// fleet.yaml.
func (f *Fleet) PipelineAt(component string) Position {
	if at, ok := f.ways.at[component]; ok {
		return at
	}
	return f.ways.at[""]
}

// ways say which pipeline each component goes.
type ways struct {
	of        map[string]*Pipeline // components with a folder at the fleet's revision
	otherwise *Pipeline
	at        map[string]Position // by component; "" is the fleet's
}

func (w ways) equal(v ways) bool { return w.otherwise == v.otherwise && maps.Equal(w.of, v.of) }

// readPipelines reads pipelines/, and which of them is the fleet's.
func (l *loader) readPipelines(ctx context.Context) error {
	l.fleet.ways.of, l.fleet.ways.at = map[string]*Pipeline{}, map[string]Position{}
	files, unread, err := topFolder[pipelineFile]{name: "pipelines", kind: v1alpha1.KindPipeline, decode: decodePipeline}.read(ctx, l)
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
		l.fleet.ways.otherwise, l.fleet.ways.at[""] = l.way(name, l.pipelineAt), l.pipelineAt
	}
	return nil
}

// way is the pipeline that a file names. One that is not there is one with a problem.
func (l *loader) way(name string, at Position) *Pipeline {
	if p := l.fleet.Pipeline(name); p != nil {
		return p
	}
	problem := l.noPipeline(at, name)
	l.report(problem)
	return &Pipeline{Name: name, Problems: Problems{problem}}
}

func (l *loader) noPipeline(at Position, name string) Problem {
	var names []string
	for _, p := range l.fleet.Pipelines {
		names = append(names, p.Name)
	}
	return noFile(at, "pipeline", name, names)
}

// readWay finds out which pipeline a component goes, as the fleet's revision says.
// Where no pipelines exist, none can be meant.
func (l *loader) readWay(ctx context.Context, component string) error {
	folder := join("components", component)
	entries, err := l.tree.list(ctx, folder)
	if err != nil {
		return l.unknownWay(ctx, component, Problem{At: Position{File: folder}, Message: "can't be read: " + err.Error()})
	}
	at := Position{File: join(folder, "component.yaml")}
	i := slices.IndexFunc(entries, func(e entry) bool { return e.name == "component.yaml" })
	if i < 0 {
		return l.unknownWay(ctx, component, Problem{At: at, Message: "the file is missing"})
	}
	f, problem, err := readEntry(ctx, l, entries[i], v1alpha1.KindComponent, decodeComponent)
	switch {
	case err != nil:
		return err
	case f == nil:
		return l.unknownWay(ctx, component, problem)
	case f.vague:
		return l.unknownWay(ctx, component, f.in(at.File)...)
	case f.spec.Pipeline != "":
		at = f.pipelineAt.in(at.File, "")
		l.fleet.ways.of[component], l.fleet.ways.at[component] = l.way(f.spec.Pipeline, at), at
	}
	return nil
}

// unknownWay notes that it is not known which way a component goes. The problems are
// those of its version at the fleet's revision, and reported there.
func (l *loader) unknownWay(ctx context.Context, component string, problems ...Problem) error {
	if len(l.fleet.Pipelines) > 0 {
		l.fleet.ways.of[component] = &Pipeline{Problems: problems}
	}
	return ctx.Err()
}

// newPipeline reads the templates that the file of one names. What is the same as before
// has the same pointer.
func (l *loader) newPipeline(ctx context.Context, f topFile[pipelineFile]) (*Pipeline, error) {
	broken := &Pipeline{Name: f.stem, file: f.path, Problems: f.problems}
	if f.content == nil {
		return broken, nil
	}
	says := f.content
	jobs, key, wrong, err := templates[template]{"job template", decodeTemplate, says.templates}.read(ctx, l, f.path)
	if err != nil {
		return nil, err
	}
	broken.Spec = says.spec
	broken.Problems = slices.Concat(f.problems, l.checkProbes(f.path, says.probes), misnamed(Position{File: f.path}, f.stem, "pipeline"), wrong)
	if len(broken.Problems) > 0 {
		return broken, nil
	}
	return cached(l.repo.cache, cacheKey{job: "pipeline", hash: f.hash, name: key}, func() (*Pipeline, error) {
		p := &Pipeline{Name: f.stem, Spec: says.spec, Stages: says.stages, Jobs: map[string]string{}, file: f.path}
		for name, job := range jobs {
			p.Jobs[name] = job.text
		}
		return p, nil
	})
}

// checkStage blocks a delivery whose way is broken, or does not lead here.
func (r *clusterReader) checkStage(d *Delivery) {
	p := r.fleet.PipelineOf(d.Component)
	switch {
	case p == nil:
	case len(p.Problems) > 0:
		d.Problems = append(d.Problems, p.Problems...) // reported already
	case p.StageOf(r.cluster.Spec.Labels) == nil:
		problem := Problem{
			At:      Position{File: p.file, Line: 1, Column: 1},
			Message: fmt.Sprintf("pipeline %s has no stage for", p.Name),
			Hint:    "its last stage can be for all others: clusterSelector: {}",
		}
		if !slices.Contains(r.now.absent, problem) { // once for all components
			r.now.absent = append(r.now.absent, problem)
		}
		problem.Message += onClusters([]string{d.Cluster})
		d.Problems = append(d.Problems, problem)
	}
}
