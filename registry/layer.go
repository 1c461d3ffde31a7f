package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// layer is a layer's file at its path.
type layer struct {
	path string
	file *layerFile
	// entries by component, with what blocks it.
	entries map[string]*layerUse
	// vague blocks every cluster that the layer may be for, since it can't be
	// known which components it speaks of.
	vague Problems
}

// layerUse is what a layer says about one component.
type layerUse struct {
	version   string
	versionAt Position
	source    *source // nil: no values
	problems  Problems
}

// readLayers reads layers/, in file-name order.
func (l *loader) readLayers(ctx context.Context) error {
	entries, err := l.tree.list(ctx, "layers")
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case isYAML(e.name):
			if err := l.readLayer(ctx, e); err != nil {
				return err
			}
		case isNote(e):
		case isYML(e.name):
			l.block(renameYML(e))
		case e.kind != entryFile:
			// It may have been meant as layers, and then every cluster is told
			// something that is not read.
			l.block(Problem{At: Position{File: e.path}, Message: fmt.Sprintf("this is %s; layers are files right below layers/", e.kind)})
		}
	}
	return nil
}

func (l *loader) readLayer(ctx context.Context, e entry) error {
	f, problem, err := readEntry(ctx, l, e, v1alpha1.KindLayer, decodeLayer)
	if err != nil {
		return err
	}
	if f == nil {
		l.block(problem)
		return nil
	}
	problems := inFile(e.path, f.mistakes)
	if f.broken {
		l.block(problems...)
		return nil
	}
	l.report(problems...)
	layer, err := cached(l.repo.cache, cacheKey{job: "layer", hash: e.hash, name: e.path}, func() (*layer, error) {
		return newLayer(e.path, f, problems), nil
	})
	if err != nil {
		return err
	}
	l.layers = append(l.layers, layer)
	l.checkLayerNames(layer)
	return nil
}

// newLayer sorts a layer's problems by the components that they touch.
func newLayer(path string, f *layerFile, problems Problems) *layer {
	out := &layer{path: path, file: f, entries: map[string]*layerUse{}}
	if f.vague {
		out.vague = problems
	}
	for name, entry := range f.entries {
		use := &layerUse{version: entry.spec.Version, versionAt: entry.versionAt.in(path, "")}
		if len(entry.spec.Values) > 0 || f.sealed != nil { // what is encrypted is verified as a whole
			use.source = &source{
				file: path, values: entry.spec.Values, places: entry.places,
				sealed: f.sealed, sealedAt: []string{"components", name, "values"},
			}
		}
		for i, m := range f.mistakes {
			if component := touches(m); component == "" || component == name {
				use.problems = append(use.problems, problems[i])
			}
		}
		out.entries[name] = use
	}
	return out
}

// checkLayerNames reports components that exist nowhere. Those with a version
// are reported where the version is missed.
func (l *loader) checkLayerNames(layer *layer) {
	for _, name := range slices.Sorted(maps.Keys(layer.entries)) {
		if layer.entries[name].version != "" || checkName(name) != "" {
			continue
		}
		at := layer.file.entries[name].at.in(layer.path, "")
		if p := l.unpublished(name, v1alpha1.VersionHead, at); p != nil && len(l.refs.versions[name]) == 0 {
			l.report(*p)
		}
	}
}

// mayMatch says whether a layer is for a cluster with the given labels, or may
// be since its selector can't be known.
func (l *layer) mayMatch(set map[string]string) bool {
	return l.file.selector == nil || l.file.selector.Matches(labels.Set(set))
}
