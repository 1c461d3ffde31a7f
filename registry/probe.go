package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Defaults of probes, and the most that a check may ask for.
const (
	probeInterval = 5 * time.Minute
	probeTimeout  = 2 * time.Minute
	// MaxProbeRuns is how many runs of a probe are remembered.
	MaxProbeRuns = 10
)

// Probe is one file under probes/.
type Probe struct {
	Name string
	Spec v1alpha1.Probe
	// Interval between runs, and Timeout of a step.
	Interval, Timeout time.Duration
	// Templates are the objects of custom subjects, by their paths.
	Templates map[string]map[string]any
	// Hash of all that a run is made from: another one's results are not this one's.
	Hash string
	// Problems: it does not run, and what it may have left in clusters stays.
	Problems Problems

	selector labels.Selector
	readyAt  []point // of the subjects' conditions
	file     string
}

// Selects says whether a probe that has no Problems runs on a cluster.
func (p *Probe) Selects(c *Cluster) bool {
	return p.selector != nil && p.selector.Matches(labels.Set(c.Spec.Labels))
}

// Stale is how old its last run may be before nothing is known of it any more.
func (p *Probe) Stale() time.Duration { return 2*p.Interval + p.Timeout }

// At is its file.
func (p *Probe) At() Position { return Position{File: p.file} }

// ReadyAt is where the condition of a subject stands, by the subject's number.
func (p *Probe) ReadyAt(i int) Position { return p.readyAt[i].in(p.file, "") }

// Probe returns the one with the given name, or nil. Of NAME.yaml and NAME.yml it is
// the second, of which nothing is known.
func (f *Fleet) Probe(name string) *Probe {
	var found *Probe
	for _, p := range f.Probes {
		if p.Name == name {
			found = p
		}
	}
	return found
}

// Probed are the probes that run on a cluster. Not known: nothing can be said, so that
// none may be taken for gone.
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
	files, wrong, err := l.topFiles(ctx, "probes")
	if err != nil {
		return err
	}
	if wrong != nil {
		l.report(*wrong)
		l.fleet.probesUnread = true
	}
	for _, f := range files {
		p := &Probe{Name: stem(f.name), file: f.path}
		switch {
		case f.odd != nil:
			p.Problems = Problems{*f.odd}
		case !isYAML(f.name): // a template may lie beside it
			continue
		default:
			if p, err = l.readProbe(ctx, f.entry, p.Name); err != nil {
				return err
			}
		}
		l.report(p.Problems...)
		l.fleet.Probes = append(l.fleet.Probes, p)
	}
	if n := len(l.fleet.Probes); n > maxProbes {
		l.report(Problem{At: Position{File: "probes"}, Message: fmt.Sprintf("probes/ holds %d probes; at most %d are allowed, since each has metrics of its own", n, maxProbes)})
		l.fleet.Probes, l.fleet.probesUnread = nil, true
	}
	return nil
}

// readProbe reads one file, with the templates that it names. What is the same as before
// has the same pointer.
func (l *loader) readProbe(ctx context.Context, e entry, name string) (*Probe, error) {
	broken := &Probe{Name: name, file: e.path}
	f, problem, err := readEntry(ctx, l, e, v1alpha1.KindProbe, decodeProbe)
	if err != nil {
		return nil, err
	}
	if f == nil {
		broken.Problems = Problems{problem}
		return broken, nil
	}
	broken.Spec, broken.Problems = f.spec, inFile(e.path, f.mistakes)
	if wrong := checkName(name); wrong != "" {
		broken.Problems = append(broken.Problems, Problem{At: Position{File: e.path}, Message: wrong, Hint: "the file is named after its probe"})
	}
	for i, s := range f.spec.Subjects {
		if len(name)+len(s.Name) > maxProbeName {
			broken.Problems = append(broken.Problems, Problem{
				At:      f.subjectsAt[i].in(e.path, ""),
				Message: fmt.Sprintf("probe %s and subject %s have %d characters in all; at most %d are allowed, since both name its pods", name, s.Name, len(name)+len(s.Name), maxProbeName),
			})
		}
	}
	templates, key := map[string]map[string]any{}, e.path
	for _, t := range f.templates {
		object, hash, problem, err := l.readObject(ctx, t.path, t.at.in(e.path, ""))
		if err != nil {
			return nil, err
		}
		if problem != nil {
			broken.Problems = append(broken.Problems, *problem)
		}
		templates[t.path] = object
		key += "\n" + t.path + " " + hash
	}
	if len(broken.Problems) > 0 {
		return broken, nil
	}
	return cached(l.repo.cache, cacheKey{job: "probe", hash: e.hash, name: key}, func() (*Probe, error) {
		text, err := json.Marshal([]any{f.spec.Namespace, f.spec.Images, f.spec.Subjects, templates})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.path, err)
		}
		sum := sha256.Sum256(text)
		return &Probe{
			Name: name, Spec: f.spec, Interval: orElse(f.spec.Interval, probeInterval), Timeout: orElse(f.spec.Timeout, probeTimeout),
			Templates: templates, Hash: hex.EncodeToString(sum[:16]), selector: f.selector, readyAt: f.readyAt, file: e.path,
		}, nil
	})
}

func orElse(d *metav1.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.Duration
}

// readObject reads the file of a custom subject. What is wrong with it stands there, or
// at the place that names it.
func (l *loader) readObject(ctx context.Context, name string, at Position) (object map[string]any, hash string, wrong *Problem, err error) {
	entries, err := l.tree.list(ctx, strings.TrimSuffix(path.Dir(name), "."))
	if err != nil {
		return nil, "", &Problem{At: at, Message: fmt.Sprintf("%s can't be read: %v", name, err)}, ctx.Err()
	}
	i := slices.IndexFunc(entries, func(e entry) bool { return e.path == name })
	if i < 0 {
		return nil, "", &Problem{At: at, Message: fmt.Sprintf("there is no file %s", name), Hint: "give the path from the root of the repository"}, nil
	}
	f, problem, err := readEntry(ctx, l, entries[i], "probe template", decodeObject)
	if err != nil || f == nil {
		return nil, "", &problem, err
	}
	if len(f.mistakes) > 0 {
		problem = f.mistakes[0].in(name, "")
		return nil, "", &problem, nil
	}
	return f.object, entries[i].hash, nil, nil
}

// checkProbes says what is wrong with the probes that a pipeline's checks name.
func (l *loader) checkProbes(file string, refs []probeRef) Problems {
	var out Problems
	for _, r := range refs {
		p, problem := l.fleet.Probe(r.spec.Name), Problem{At: r.at.in(file, "")}
		switch {
		case p == nil && l.fleet.probesUnread:
			problem.Message = fmt.Sprintf("probe %s can't be known: probes/ can't be read", r.spec.Name)
		case p == nil:
			names := make([]string, len(l.fleet.Probes))
			for i, p := range l.fleet.Probes {
				names[i] = p.Name
			}
			problem.Message = fmt.Sprintf("there is no probe %q: probes/%s.yaml does not exist", r.spec.Name, r.spec.Name)
			problem.Hint = Suggest(r.spec.Name, names)
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

// probeRef is a check that names a probe.
type probeRef struct {
	spec    v1alpha1.ProbeCheck
	timeout time.Duration // of the check
	at      point
}

// probeFile is probes/NAME.yaml.
type probeFile struct {
	spec       v1alpha1.Probe
	selector   labels.Selector
	templates  []templateRef
	subjectsAt []point
	readyAt    []point
	mistakes   []mistake
}

// objectFile is the file of a custom subject.
type objectFile struct {
	object   map[string]any
	mistakes []mistake
}

func decodeObject(data []byte) *objectFile {
	f := &objectFile{}
	doc := parseDocument(data)
	wrong := func(message string, path ...string) {
		if len(doc.mistakes) == 0 {
			doc.add(doc.keyPoint(path...), path, message, "")
		}
	}
	object, ok := doc.value.(map[string]any)
	text := func(key string) string { s, _ := object[key].(string); return s }
	metadata, _ := object["metadata"].(map[string]any)
	switch {
	case doc.broken:
	case !ok || text("apiVersion") == "" || text("kind") == "":
		wrong("it holds no object: apiVersion and kind are needed")
	case cmp.Or(metadata["name"], metadata["namespace"], metadata["generateName"]) != nil:
		wrong("an object of a probe has no name and no namespace of its own: leave them out", "metadata")
	case doc.sealed != nil || object["sops"] != nil:
		wrong("an object of a probe can't be encrypted")
	}
	f.object, f.mistakes = object, doc.mistakes
	return f
}
