package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Defaults of probes, and the limit for checks.
const (
	probeInterval = 5 * time.Minute
	probeTimeout  = 2 * time.Minute
	// MaxProbeRuns is the number of runs of a probe that are kept.
	MaxProbeRuns = 10
)

// Probe is one file under probes/.
type Probe struct {
	Name string
	Spec v1alpha1.Probe
	// Interval is the time between runs, and Timeout bounds a step.
	Interval, Timeout time.Duration
	// Templates are the objects of custom subjects, by path.
	Templates map[string]map[string]any
	// Hash is the hash of all inputs of a run. Results with another hash do not count.
	Hash string
	// Problems stop the probe. Its objects in clusters stay.
	Problems yamlfile.Problems

	selector labels.Selector
	readyAt  []yamlfile.Point // positions of the subjects' conditions
	file     string
}

// Selects reports whether a probe runs on a cluster. A probe with Problems selects no cluster.
func (p *Probe) Selects(c *Cluster) bool {
	return p.selector != nil && p.selector.Matches(labels.Set(c.Spec.Labels))
}

// Stale returns the age of the last run after which its result is unknown.
func (p *Probe) Stale() time.Duration { return 2*p.Interval + p.Timeout }

// At returns the file of the probe.
func (p *Probe) At() yamlfile.Position { return yamlfile.Position{File: p.file} }

// ReadyAt returns the position of the condition of a subject, by the subject's index.
func (p *Probe) ReadyAt(i int) yamlfile.Position { return p.readyAt[i].In(p.file, "") }

// Probe returns the probe with the given name, or nil. If both NAME.yaml and NAME.yml exist, it is
// the latter, which has Problems.
func (f *Fleet) Probe(name string) *Probe {
	for _, p := range slices.Backward(f.Probes) {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Probed returns the probes for a cluster: those that run there, and all with Problems, which may
// have objects there. If known is false, a missing probe must not count as deleted.
func (f *Fleet) Probed(c *Cluster) (probes []*Probe, known bool) {
	if f.probesUnread || len(c.Problems) > 0 {
		return nil, false
	}
	for _, p := range f.Probes {
		if len(p.Problems) > 0 || p.Selects(c) {
			probes = append(probes, p)
		}
	}
	return probes, true
}

// readProbes reads probes/.
func (l *loader) readProbes(ctx context.Context) error {
	files, unread, err := topFolder[probeFile]{name: "probes", kind: v1alpha1.KindProbe, decode: decodeProbe}.read(ctx, l.files)
	if err != nil {
		return err
	}
	l.report(unread...)
	l.fleet.probesUnread = unread != nil
	for _, f := range files {
		p, err := l.newProbe(ctx, f)
		if err != nil {
			return err
		}
		l.report(p.Problems...)
		l.fleet.Probes = append(l.fleet.Probes, p)
	}
	if n := len(l.fleet.Probes); n > maxProbes {
		l.report(yamlfile.Problem{At: yamlfile.Position{File: "probes"}, Message: fmt.Sprintf("probes/ holds %d probes; at most %d are allowed, since each has metrics of its own", n, maxProbes)})
		l.fleet.Probes, l.fleet.probesUnread = nil, true
	}
	return nil
}

// newProbe builds a probe from its file and its templates. An unchanged probe keeps its pointer.
func (l *loader) newProbe(ctx context.Context, f topFile[probeFile]) (*Probe, error) {
	broken := &Probe{Name: f.stem, file: f.Path, Problems: f.problems}
	if f.content == nil {
		return broken, nil
	}
	says := f.content
	objects, key, wrong, err := templates[objectFile]{"probe template", decodeObject, says.templates}.read(ctx, l.files, f.Path)
	if err != nil {
		return nil, err
	}
	broken.Spec, broken.Problems = says.spec, append(broken.Problems, misnamed(broken.At(), f.stem, "probe")...)
	for i, s := range says.spec.Subjects {
		if n := len(f.stem) + len(s.Name); n > maxProbeName {
			broken.Problems = append(broken.Problems, yamlfile.Problem{
				At:      says.subjectsAt[i].In(f.Path, ""),
				Message: fmt.Sprintf("probe %s and subject %s have %d characters in all; at most %d are allowed, since both name its pods", f.stem, s.Name, n, maxProbeName),
			})
		}
	}
	if broken.Problems = append(broken.Problems, wrong...); len(broken.Problems) > 0 {
		return broken, nil
	}
	return objectcache.Get(l.files.cache, objectcache.Key{Job: "probe", Hash: f.Hash, Name: key}, func() (*Probe, error) {
		templates := map[string]map[string]any{}
		for name, o := range objects {
			templates[name] = o.object
		}
		text, err := json.Marshal([]any{says.spec.Namespace, says.spec.Images, says.spec.Subjects, templates})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		sum := sha256.Sum256(text)
		return &Probe{
			Name: f.stem, Spec: says.spec, Interval: orElse(says.spec.Interval, probeInterval), Timeout: orElse(says.spec.Timeout, probeTimeout),
			Templates: templates, Hash: hex.EncodeToString(sum[:16]), selector: says.selector, readyAt: says.readyAt, file: f.Path,
		}, nil
	})
}

func orElse(d *metav1.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.Duration
}

// checkProbes returns what is wrong with the probes of a pipeline's checks.
func (l *loader) checkProbes(file string, refs []probeRef) yamlfile.Problems {
	var out yamlfile.Problems
	for _, r := range refs {
		p, problem := l.fleet.Probe(r.spec.Name), yamlfile.Problem{At: r.at.In(file, "")}
		switch {
		case p == nil && l.fleet.probesUnread:
			problem.Message = fmt.Sprintf("probe %s can't be known: probes/ can't be read", r.spec.Name)
		case p == nil:
			names := make([]string, len(l.fleet.Probes))
			for i, p := range l.fleet.Probes {
				names[i] = p.Name
			}
			problem = noFile(problem.At, "probe", r.spec.Name, names)
		case len(p.Problems) > 0:
			problem.Message = fmt.Sprintf("probe %s is broken: see %s", p.Name, p.Problems[0].At)
		case r.timeout > 0 && time.Duration(max(0, r.spec.Runs-1))*p.Interval >= r.timeout:
			problem.Message = fmt.Sprintf("%d runs of probe %s begin %s apart, so they can't pass in %s", r.spec.Runs, p.Name, p.Interval, r.timeout)
			problem.Hint = "give the check a longer timeout, or the probe a shorter interval"
		default:
			continue
		}
		out = append(out, problem)
	}
	return out
}

// probeRef is a check that uses a probe.
type probeRef struct {
	spec    v1alpha1.ProbeCheck
	timeout time.Duration // of the check
	at      yamlfile.Point
}

// probeFile is probes/NAME.yaml.
type probeFile struct {
	spec       v1alpha1.Probe
	selector   labels.Selector
	templates  []templateRef
	subjectsAt []yamlfile.Point
	readyAt    []yamlfile.Point
	yamlfile.Mistakes
}

// objectFile is the object of a custom subject.
type objectFile struct {
	object map[string]any
	yamlfile.Mistakes
}

func decodeObject(data []byte) *objectFile {
	f := &objectFile{}
	doc := yamlfile.Parse(data)
	wrong := func(message string, path ...string) {
		if len(doc.Mistakes) == 0 {
			doc.Add(doc.KeyPoint(path...), path, message, "")
		}
	}
	object, ok := doc.Value.(map[string]any)
	text := func(key string) string { s, _ := object[key].(string); return s }
	metadata, _ := object["metadata"].(map[string]any)
	switch {
	case doc.Broken:
	case !ok || text("apiVersion") == "" || text("kind") == "":
		wrong("it holds no object: apiVersion and kind are needed")
	case cmp.Or(metadata["name"], metadata["namespace"], metadata["generateName"]) != nil:
		wrong("an object of a probe has no name and no namespace of its own: leave them out", "metadata")
	case object["sops"] != nil:
		wrong("an object of a probe can't be encrypted")
	}
	f.object, f.Mistakes = object, doc.Mistakes[:min(1, len(doc.Mistakes))] // the first mistake is enough
	return f
}
