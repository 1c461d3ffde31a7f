package registry

import (
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// layer is the content of a layer's file at its path.
type layer struct {
	path string
	// selector is nil if the clusters of the layer can't be known.
	selector labels.Selector
	// problems are the problems of the file.
	problems yamlfile.Problems
	// entries are by component, with the problems that block it.
	entries map[string]*layerUse
	// vague blocks every cluster that the layer may match, because the components of the layer
	// can't be known.
	vague yamlfile.Problems
	// named are the components without a version here, in order.
	named []namedComponent
}

type namedComponent struct {
	name string
	at   yamlfile.Position
}

// layerUse is the entry of a layer for one component.
type layerUse struct {
	version   string
	versionAt yamlfile.Position
	absent    bool
	absentAt  yamlfile.Position
	source    *source // nil: no values
	problems  yamlfile.Problems
}

// readLayers reads layers/, in file-name order.
func (l *loader) readLayers(ctx context.Context) error {
	files, unread, err := topFolder[layerFile]{name: "layers", kind: v1alpha1.KindLayer, decode: decodeLayer}.read(ctx, l.files)
	if err != nil {
		return err
	}
	l.block(unread...)
	for _, f := range files {
		if f.content == nil || f.content.broken { // it may be for every cluster
			l.block(f.problems...)
			continue
		}
		layer, err := objectcache.Get(l.files.cache, objectcache.Key{Job: "layer", Hash: f.Hash, Name: f.Path}, func() (*layer, error) {
			return newLayer(l.sharing, f.Path, f.content, f.problems), nil
		})
		if err != nil {
			return err
		}
		l.report(layer.problems...)
		l.layers.all = append(l.layers.all, layer)
		l.checkLayerNames(layer)
	}
	return nil
}

// newLayer assigns a layer's problems to the components that they affect.
func newLayer(t *sharing, path string, f *layerFile, problems yamlfile.Problems) *layer {
	out := &layer{path: path, selector: f.selector, problems: problems, entries: map[string]*layerUse{}}
	if f.vague {
		out.vague = problems
	}
	for _, name := range slices.Sorted(maps.Keys(f.entries)) {
		entry := f.entries[name]
		use := &layerUse{
			version: entry.spec.Version, versionAt: entry.versionAt.In(path, ""),
			absent: entry.spec.Absent, absentAt: entry.absentAt.In(path, ""),
		}
		if len(entry.spec.Values) > 0 || f.encrypted != nil { // encrypted values are verified as a whole
			use.source = t.source(&source{
				file: path, values: entry.spec.Values, places: entry.places,
				encrypted: f.encrypted, encryptedAt: []string{"components", name, "values"},
			})
		}
		for i, m := range f.Mistakes {
			if component := touches(m); component == "" || component == name {
				use.problems = append(use.problems, problems[i])
			}
		}
		out.entries[name] = use
		if use.version == "" && naming.Check(name) == "" {
			out.named = append(out.named, namedComponent{name, entry.at.In(path, "")})
		}
	}
	return out
}

// checkLayerNames reports components that exist nowhere. Components with a version are reported
// when the version is not found.
func (l *loader) checkLayerNames(layer *layer) {
	for _, c := range layer.named {
		if p := l.versions.nowhere(c.name, c.at); p != nil {
			l.report(*p)
		}
	}
}

// mayMatch reports whether a layer matches, or may match, a cluster with the given labels.
func (l *layer) mayMatch(set labels.Set) bool {
	return l.selector == nil || l.selector.Matches(set)
}

// layering is the combined content of the layers for the same clusters. It is computed once for all
// of these clusters.
type layering struct {
	layers []*layer
	// vague blocks these clusters.
	vague yamlfile.Problems
	// components are in name order, including components without a version.
	components []*layered
}

// layered is the combined content of layers for one component. Later layers override earlier
// layers.
type layered struct {
	component string
	version   string
	versionAt yamlfile.Position
	absent    bool
	absentAt  yamlfile.Position
	sources   []*source
	values    *Values
	problems  yamlfile.Problems
}

// layerSet are the layers of a fleet, in order.
type layerSet struct {
	all      []*layer
	combined map[string]*layering // by the layers that match
}

// matching returns the layers that match, or may match, a cluster with the given labels.
func (s *layerSet) matching(set map[string]string) *layering {
	key := make([]byte, len(s.all))
	for i, layer := range s.all {
		if layer.mayMatch(set) {
			key[i] = 1
		}
	}
	if known := s.combined[string(key)]; known != nil {
		return known
	}
	out := &layering{}
	for i, layer := range s.all {
		if key[i] == 1 {
			out.layers = append(out.layers, layer)
			out.vague = append(out.vague, layer.vague...)
		}
	}
	s.combined[string(key)] = out
	return out
}

// put combines the layers at its first call.
func (g *layering) put(t *sharing) []*layered {
	if g.components != nil {
		return g.components
	}
	byName := map[string]*layered{}
	for _, layer := range g.layers {
		for name, use := range layer.entries {
			c := byName[name]
			if c == nil {
				c = &layered{component: name}
				byName[name] = c
			}
			if use.version != "" {
				c.version, c.versionAt = use.version, use.versionAt
			}
			if use.version != "" || use.absent {
				c.absent, c.absentAt = use.absent, use.absentAt
			}
			if use.source != nil {
				c.sources = append(c.sources, use.source)
				c.values = t.lay(c.values, use.source)
			}
			c.problems = append(c.problems, use.problems...)
		}
	}
	g.components = make([]*layered, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		g.components = append(g.components, byName[name])
	}
	return g.components
}
