package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// maxRange bounds a range of versions, in bytes.
const maxRange = 256

// promotion checks a promotion. It returns the version ranges and their positions by component; ""
// is for all other components.
func (c pipelineChecker) promotion(path []string, p *v1alpha1.Promotion) (map[string]*semver.Constraints, map[string]yamlfile.Point) {
	if p == nil {
		return nil, nil
	}
	at := map[string]yamlfile.Point{"": c.doc.KeyPoint(path...)}
	ranges := map[string]*semver.Constraints{}
	otherwise := c.versions(yamlfile.Below(path, "range"), cmp.Or(p.Range, "*"))
	if p.Components == nil {
		ranges[""] = otherwise
	}
	path = yamlfile.Below(path, "components")
	c.most(path, len(p.Components), maxFrozen)
	if _, set := c.doc.Lookup(path...); set != nil && len(p.Components) == 0 && !c.doc.Wrong(path...) {
		c.key(path, "components names none", "leave it out for all that go this way")
	}
	for _, name := range slices.Sorted(maps.Keys(p.Components)) {
		path := yamlfile.Below(path, name)
		at[name], ranges[name] = c.doc.KeyPoint(path...), otherwise
		if wrong := naming.Check(name); wrong != "" {
			c.key(path, wrong, "")
		}
		if own := p.Components[name]; own != "" {
			ranges[name] = c.versions(path, own)
		}
	}
	c.oneOf(yamlfile.Below(path[:len(path)-1], "by"), string(p.By), string(v1alpha1.ByPush), string(v1alpha1.ByPullRequest))
	return ranges, at
}

// versions parses a range of versions; nil if it is invalid.
func (c pipelineChecker) versions(path []string, text string) *semver.Constraints {
	if len(text) > maxRange {
		c.value(path, fmt.Sprintf("the range has %d bytes; at most %d are allowed", len(text), maxRange), "")
		return nil
	}
	r, err := semver.NewConstraint(text)
	if err != nil && !c.doc.Wrong(path...) {
		c.value(path, fmt.Sprintf("%q is no range of versions: %v", text, err), `for example ~1.12, ^1.4 or ">=1.4 <2"`)
	}
	return r
}

// Promotes reports whether a stage promotes versions of a component.
func (s *Stage) Promotes(component string) bool { return s.rangeOf(component) != nil }

func (s *Stage) rangeOf(component string) *semver.Constraints {
	if r, own := s.ranges[component]; own {
		return r
	}
	return s.ranges[""]
}

// Takes reports whether a stage promotes a component to a version, because the version is in its
// range.
func (s *Stage) Takes(component, version string) bool {
	r := s.rangeOf(component)
	v, err := naming.ParseVersion(version)
	return r != nil && err == nil && r.Check(v)
}

// Later reports whether a version, as written, is later than another. HEAD is neither later nor
// earlier.
func Later(version, than string) bool {
	a, err := naming.ParseVersion(version)
	if err != nil {
		return false
	}
	b, err := naming.ParseVersion(than)
	return err == nil && a.GreaterThan(b)
}

// Published returns the versions of a component with a tag, in order. It is nil unless a cluster
// has the component and its pipeline promotes versions. The caller must not change it.
func (f *Fleet) Published(component string) []string { return f.published[component] }

// Promoted returns the components for which a stage of their pipeline promotes versions, in order.
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

// Place is the position of the version of a component for the clusters of a stage.
type Place struct {
	// At is the position of the version; zero if no cluster of the stage has the component.
	At      yamlfile.Position
	Version string
	// Wrong says why the version can't be promoted: it has several positions, or another stage
	// shares the position. Otherwise nil.
	Wrong *yamlfile.Problem
	// OwnVersions are the clusters of the stage, in order, whose own files set the version, if layers
	// set it for other clusters.
	OwnVersions []string
}

type placeKey struct {
	component string
	stage     *Stage
}

// PlaceOf returns the Place of a component for a stage of its pipeline. It is zero if the pipeline
// promotes nothing.
func (f *Fleet) PlaceOf(component string, s *Stage) Place { return f.places[placeKey{component, s}] }

// uses are the clusters of a stage that have their version from a position.
type uses struct {
	version  string
	clusters []string
}

// placed are the positions of versions, with their uses.
type placed struct {
	of map[placeKey]map[yamlfile.Position]*uses
	// stages are by component and position. A nil stage stands for clusters outside all stages.
	stages map[string]map[yamlfile.Position][]*Stage
}

func (p placed) add(key placeKey, d *Delivery) {
	if p.of[key] == nil {
		p.of[key] = map[yamlfile.Position]*uses{}
	}
	if p.stages[key.component] == nil {
		p.stages[key.component] = map[yamlfile.Position][]*Stage{}
	}
	use := p.of[key][d.VersionAt]
	if use == nil {
		use = &uses{version: d.VersionName}
		p.of[key][d.VersionAt] = use
		p.stages[key.component][d.VersionAt] = append(p.stages[key.component][d.VersionAt], key.stage)
	}
	use.clusters = append(use.clusters, d.Cluster)
}

// findPlaces finds the positions of versions in pipelines that promote, and reports promoted
// versions without a position of their own.
func findPlaces(f *Fleet, versions *versionIndex) (problems yamlfile.Problems) {
	if !slices.ContainsFunc(f.Pipelines, promotes) {
		return nil
	}
	f.published, f.places = map[string][]string{}, map[placeKey]Place{}
	problems = checkPromoted(f, versions)
	found := placed{map[placeKey]map[yamlfile.Position]*uses{}, map[string]map[yamlfile.Position][]*Stage{}}
	for _, c := range f.Clusters {
		for _, d := range c.Deliveries {
			p := f.PipelineOf(d.Component)
			if p != nil && promotes(p) && !c.Unread && !d.Absent && d.VersionName != "" {
				found.add(placeKey{d.Component, p.StageOf(c.Spec.Labels)}, d)
			}
		}
	}
	for component := range found.stages {
		f.published[component] = versions.sorted(component)
	}
	for key, at := range found.of {
		if key.stage == nil {
			continue // checkStage reports it
		}
		place := placeOf(key, at, found.stages[key.component])
		f.places[key] = place
		if place.Wrong != nil && key.stage.Promotes(key.component) {
			problems = append(problems, *place.Wrong)
		}
	}
	return problems
}

// checkPromoted reports components of promotions that exist nowhere, or that use another pipeline.
func checkPromoted(f *Fleet, versions *versionIndex) (problems yamlfile.Problems) {
	for _, p := range f.Pipelines {
		for _, s := range p.Stages {
			for name := range s.ranges {
				at := s.promotedAt[name].In(p.file, "")
				if name == "" {
					continue
				}
				wrong := versions.unpublished(name, v1alpha1.VersionHead, at)
				switch {
				case wrong != nil && len(versions.snapshot.Versions(name)) == 0:
					problems = append(problems, *wrong)
				case f.PipelineOf(name) != p:
					problems = append(problems, yamlfile.Problem{At: at, Message: fmt.Sprintf("%s does not use pipeline %s, so it is not promoted here", name, p.Name)})
				}
			}
		}
	}
	return problems
}

func promotes(p *Pipeline) bool {
	return slices.ContainsFunc(p.Stages, func(s *Stage) bool { return s.ranges != nil })
}

// placeOf chooses the position for a stage: the only layer that sets the version, or the only file
// of a cluster.
func placeOf(key placeKey, at map[yamlfile.Position]*uses, shared map[yamlfile.Position][]*Stage) Place {
	var layers, own []yamlfile.Position
	var ownVersions []string
	for p, use := range at {
		if strings.HasPrefix(p.File, "layers/") {
			layers = append(layers, p)
		} else {
			own, ownVersions = append(own, p), append(ownVersions, use.clusters...)
		}
	}
	slices.Sort(ownVersions)
	candidates := layers
	if len(layers) == 0 {
		candidates, ownVersions = own, nil
	}
	slices.SortFunc(candidates, func(a, b yamlfile.Position) int { return cmp.Compare(a.String(), b.String()) })
	place := Place{At: candidates[0], Version: at[candidates[0]].version, OwnVersions: ownVersions}
	stage := key.stage.Spec.Name
	const hint = "name it in one layer, for the clusters of that stage alone"
	if len(candidates) > 1 {
		place.Wrong = &yamlfile.Problem{
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
		place.Wrong = &yamlfile.Problem{
			At: place.At, Hint: hint,
			Message: fmt.Sprintf("the version of %s in stage %s can't be promoted: it is that of stage %s, too", key.component, stage, name),
		}
		break
	}
	return place
}
