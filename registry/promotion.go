package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// maxRange bounds a range of versions, in bytes.
const maxRange = 256

// promotion checks what is promoted, and returns the ranges, and where they stand, by
// component; "" is all others.
func (c checker) promotion(path []string, p *v1alpha1.Promotion) (map[string]*semver.Constraints, map[string]point) {
	if p == nil {
		return nil, nil
	}
	at := map[string]point{"": c.doc.keyPoint(path...)}
	ranges := map[string]*semver.Constraints{}
	otherwise := c.versions(below(path, "range"), cmp.Or(p.Range, "*"))
	if p.Components == nil {
		ranges[""] = otherwise
	}
	path = below(path, "components")
	c.most(path, len(p.Components), maxFrozen)
	if _, set := c.doc.lookup(path...); set != nil && len(p.Components) == 0 && !c.doc.wrong(path...) {
		c.key(path, "components names none", "leave it out for all that go this way")
	}
	for _, name := range slices.Sorted(maps.Keys(p.Components)) {
		path := below(path, name)
		at[name], ranges[name] = c.doc.keyPoint(path...), otherwise
		if wrong := checkName(name); wrong != "" {
			c.key(path, wrong, "")
		}
		if own := p.Components[name]; own != "" {
			ranges[name] = c.versions(path, own)
		}
	}
	c.oneOf(below(path[:len(path)-1], "by"), string(p.By), string(v1alpha1.ByPush), string(v1alpha1.ByPullRequest))
	return ranges, at
}

// versions reads a range of versions; nil where it is none.
func (c checker) versions(path []string, text string) *semver.Constraints {
	if len(text) > maxRange {
		c.value(path, fmt.Sprintf("the range has %d bytes; at most %d are allowed", len(text), maxRange), "")
		return nil
	}
	r, err := semver.NewConstraint(text)
	if err != nil && !c.doc.wrong(path...) {
		c.value(path, fmt.Sprintf("%q is no range of versions: %v", text, err), `for example ~1.12, ^1.4 or ">=1.4 <2"`)
	}
	return r
}

// Promotes reports whether versions of a component are promoted in a stage.
func (s *Stage) Promotes(component string) bool { return s.rangeOf(component) != nil }

func (s *Stage) rangeOf(component string) *semver.Constraints {
	if r, own := s.ranges[component]; own {
		return r
	}
	return s.ranges[""]
}

// Takes reports whether a stage is to be promoted to a version of a component.
func (s *Stage) Takes(component, version string) bool {
	r := s.rangeOf(component)
	v, err := parseVersion(version)
	return r != nil && err == nil && r.Check(v)
}

// Later reports whether a version, as it is written, is a later one than another.
// HEAD is neither.
func Later(version, than string) bool {
	a, err := parseVersion(version)
	if err != nil {
		return false
	}
	b, err := parseVersion(than)
	return err == nil && a.GreaterThan(b)
}

// Published are the versions of a component that have a tag, in order. It is nobody's
// to change.
func (f *Fleet) Published(component string) []string { return f.published[component] }

// Promoted are the components of which a stage of their pipeline promotes versions, in
// order.
func (f *Fleet) Promoted() []string {
	var out []string
	for component := range f.published {
		if p := f.PipelineOf(component); p != nil && slices.ContainsFunc(p.Stages, func(s *Stage) bool { return s.Promotes(component) }) {
			out = append(out, component)
		}
	}
	slices.Sort(out)
	return out
}

// Place is where the version stands that the clusters of a stage have of a component.
type Place struct {
	// At is that of the version; zero: no cluster of the stage has the component.
	At      Position
	Version string
	// Wrong says why it is not one place of that stage alone; nil: it is.
	Wrong *Problem
	// Pinned are clusters of the stage, in order, whose own files say another version.
	Pinned []string
}

type placeKey struct {
	component string
	stage     *Stage
}

// PlaceOf returns where the version of a component stands for a stage of its pipeline,
// if that pipeline promotes anything.
func (f *Fleet) PlaceOf(component string, s *Stage) Place { return f.places[placeKey{component, s}] }

// uses are the clusters of a stage that have their version from a place.
type uses struct {
	version  string
	clusters []string
}

// placed are the places of versions, by what uses them.
type placed struct {
	of map[placeKey]map[Position]*uses
	// stages by component and place; nil is one that a cluster is in none of.
	stages map[string]map[Position][]*Stage
}

func (p placed) add(key placeKey, d *Delivery) {
	if p.of[key] == nil {
		p.of[key] = map[Position]*uses{}
	}
	if p.stages[key.component] == nil {
		p.stages[key.component] = map[Position][]*Stage{}
	}
	use := p.of[key][d.VersionAt]
	if use == nil {
		use = &uses{version: d.VersionName}
		p.of[key][d.VersionAt] = use
		p.stages[key.component][d.VersionAt] = append(p.stages[key.component][d.VersionAt], key.stage)
	}
	use.clusters = append(use.clusters, d.Cluster)
}

// findPlaces finds where versions stand that are promoted, and reports those that have
// no place of their own.
func (l *loader) findPlaces() {
	if !slices.ContainsFunc(l.fleet.Pipelines, promotes) {
		return
	}
	l.fleet.published, l.fleet.places = map[string][]string{}, map[placeKey]Place{}
	l.checkPromoted()
	found := placed{map[placeKey]map[Position]*uses{}, map[string]map[Position][]*Stage{}}
	for _, c := range l.fleet.Clusters {
		for _, d := range c.Deliveries {
			p := l.fleet.PipelineOf(d.Component)
			if p != nil && promotes(p) && !c.Unread && !d.Absent && d.VersionName != "" {
				found.add(placeKey{d.Component, p.StageOf(c.Spec.Labels)}, d)
			}
		}
	}
	for component := range found.stages {
		l.fleet.published[component] = l.sorted(component)
	}
	for key, at := range found.of {
		if key.stage == nil {
			continue // which is reported
		}
		place := placeOf(key, at, found.stages[key.component])
		l.fleet.places[key] = place
		if place.Wrong != nil && key.stage.Promotes(key.component) {
			l.report(*place.Wrong)
		}
	}
}

// checkPromoted reports components that are named, and go by another pipeline, or exist
// nowhere.
func (l *loader) checkPromoted() {
	for _, p := range l.fleet.Pipelines {
		for _, s := range p.Stages {
			for name := range s.ranges {
				at := s.promotedAt[name].in(p.file, "")
				if name == "" {
					continue
				}
				wrong := l.unpublished(name, v1alpha1.VersionHead, at)
				switch {
				case wrong != nil && len(l.refs.versions[name]) == 0:
					l.report(*wrong)
				case l.fleet.PipelineOf(name) != p:
					l.report(Problem{At: at, Message: fmt.Sprintf("%s does not go by pipeline %s, so nothing of it is promoted here", name, p.Name)})
				}
			}
		}
	}
}

func promotes(p *Pipeline) bool {
	return slices.ContainsFunc(p.Stages, func(s *Stage) bool { return s.ranges != nil })
}

// placeOf chooses the place of a stage: the one layer that its clusters have the version
// from, or the one file of a cluster.
func placeOf(key placeKey, at map[Position]*uses, shared map[Position][]*Stage) Place {
	var layers, own []Position
	var pinned []string
	for p, use := range at {
		if strings.HasPrefix(p.File, "layers/") {
			layers = append(layers, p)
		} else {
			own, pinned = append(own, p), append(pinned, use.clusters...)
		}
	}
	slices.Sort(pinned)
	candidates := layers
	if len(layers) == 0 {
		candidates, pinned = own, nil
	}
	slices.SortFunc(candidates, func(a, b Position) int { return cmp.Compare(a.String(), b.String()) })
	place := Place{At: candidates[0], Version: at[candidates[0]].version, Pinned: pinned}
	stage := key.stage.Spec.Name
	const hint = "name it in one layer, for the clusters of that stage alone"
	if len(candidates) > 1 {
		place.Wrong = &Problem{
			At: place.At, Hint: hint,
			Message: fmt.Sprintf("the version of %s in stage %s can't be promoted: it stands here and at %s", key.component, stage, candidates[1]),
		}
		return place
	}
	for _, other := range shared[place.At] {
		if other == key.stage {
			continue
		}
		name := "none"
		if other != nil {
			name = other.Spec.Name
		}
		place.Wrong = &Problem{
			At: place.At, Hint: hint,
			Message: fmt.Sprintf("the version of %s in stage %s can't be promoted: it is that of stage %s, too", key.component, stage, name),
		}
		break
	}
	return place
}
