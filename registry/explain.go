package registry

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	helmyaml "sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Explained is one value that a chart's templates read, with its origin.
type Explained struct {
	// Path is the path below .Values: .controller.args[2], with unusual keys quoted.
	Path string `json:"path"`
	// Value is a scalar, an empty map or list, or null. A list that replaced another value is
	// listed as a whole, before its items.
	Value any `json:"value"`
	// Encrypted: SOPS encrypted the value or a part of it. Value shows "(encrypted)" instead.
	Encrypted bool `json:"encrypted,omitempty"`
	// At is where the value is set: in the chart's values.yaml (with the tag as its revision), a
	// layer, the cluster's own file, or images.yaml.
	At yamlfile.Position `json:"at"`
	// Deleted: Value is a null in meta-config that removes an overridden key, so templates don't
	// see the key.
	Deleted bool `json:"deleted,omitempty"`
	// Overrides are the replaced values, the strongest first.
	Overrides []Overridden `json:"overrides,omitempty"`
}

// Overridden is a value that a stronger value replaced.
type Overridden struct {
	Value     any               `json:"value"`
	Encrypted bool              `json:"encrypted,omitempty"`
	At        yamlfile.Position `json:"at"`
}

// Explain returns every value at or below a path (see [ParsePath]; "" is all) in path order. It
// covers the chart's own values, the layers, the cluster's own file, and the images that Keelson
// sets above them, with the cluster's imageMirrors applied. Values of subcharts are included only
// if meta-config sets them. A delivery without a version has no values. The error is that of
// ParsePath.
func (d *Delivery) Explain(path string) ([]Explained, error) {
	keys, err := ParsePath(path)
	if err != nil || d.Version == nil {
		return nil, err
	}
	levels := levels{views: d.Values.views()}
	if images := d.Version.ImageValues(d.mirrors); len(images) > 0 {
		src := &source{file: d.Version.imagesFile, revision: d.Version.revision, values: images, places: d.Version.imagePlaces()}
		levels.views = slices.Insert(levels.views, 0, view{source: src, value: images, place: src.places})
	}
	if chart, ok := d.Version.chartValues(); ok {
		levels.views, levels.chart = append(levels.views, chart), true
	}
	var shown strings.Builder
	for _, step := range keys {
		shown.WriteString(levels.format(step))
		levels = levels.down(step)
	}
	var e explainer
	e.walk(shown.String(), levels)
	return e.out, nil
}

// chartValues returns the content of the chart's own values.yaml.
func (v *Version) chartValues() (view, bool) {
	i := slices.IndexFunc(v.Chart, func(f File) bool { return f.Name == "values.yaml" })
	if i < 0 {
		return view{}, false
	}
	var values map[string]any
	if err := helmyaml.Unmarshal(v.Chart[i].Data, &values); err != nil || len(values) == 0 {
		return view{}, false // the renderer reports it
	}
	src := &source{file: v.ChartFile("values.yaml"), revision: v.revision, values: values}
	var node yaml.Node
	if err := yaml.Load(v.Chart[i].Data, &node); err == nil {
		// Aliases are not followed: values below an alias get its position.
		src.places = placesOf(yamlfile.Content(&node), yamlfile.Point{})
	}
	return view{source: src, value: values, place: src.places}, true
}

// levels are the values of the sources at one path, the strongest first.
type levels struct {
	views []view
	// chart: the last view is the chart's. Helm merges the chart's values below the merged
	// meta-config, so no view between them can hide the chart's value.
	chart bool
}

// effective returns the levels that make up the value.
func (l levels) effective() levels {
	if !l.chart {
		return levels{views: effective(l.views)}
	}
	last := len(l.views) - 1
	above := effective(l.views[:last])
	if len(above) > 0 {
		_, isMap := above[0].value.(map[string]any)
		_, chartMap := l.views[last].value.(map[string]any)
		if !isMap || !chartMap {
			return levels{views: above}
		}
	}
	return levels{views: append(slices.Clone(above), l.views[last]), chart: true}
}

func (l levels) down(step string) levels {
	from := l.effective()
	var out levels
	for i, v := range from.views {
		child, ok := v.child(step)
		if !ok {
			continue
		}
		out.views = append(out.views, child)
		out.chart = from.chart && i == len(from.views)-1
	}
	return out
}

// keys returns the keys of the value, or none if it is no map.
func (l levels) keys() []string {
	all := map[string]bool{}
	for _, v := range l.effective().views {
		m, _ := v.value.(map[string]any)
		for key := range m {
			all[key] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// format formats a step at these levels as part of a path.
func (l levels) format(step string) string {
	if len(l.views) > 0 {
		if _, isList := l.views[0].value.([]any); isList {
			return "[" + step + "]"
		}
	}
	return formatKey(step)
}

// explainer collects the leaves below a path.
type explainer struct{ out []Explained }

func (e *explainer) walk(path string, l levels) {
	if len(l.views) == 0 {
		return
	}
	if keys := l.keys(); len(keys) > 0 {
		from := len(e.out)
		for _, key := range keys {
			e.walk(path+formatKey(key), l.down(key))
		}
		if !slices.ContainsFunc(e.out[from:], func(below Explained) bool { return !below.Deleted }) {
			e.emptied(path, l.views[0], from)
		}
		return
	}
	list, _ := l.views[0].value.([]any)
	if len(list) == 0 || len(l.views) > 1 {
		e.leaf(path, l)
	}
	for i := range list {
		item, _ := l.views[0].child(strconv.Itoa(i))
		e.walk(path+"["+strconv.Itoa(i)+"]", levels{views: []view{item}})
	}
}

// emptied adds a map in which meta-config deleted every key, before these keys. Templates see the
// map as empty.
func (e *explainer) emptied(path string, top view, at int) {
	out := Explained{Path: path, Value: map[string]any{}, At: top.where()}
	if path == "" {
		out.Path = "."
	}
	e.out = slices.Insert(e.out, at, out)
}

func (e *explainer) leaf(path string, l levels) {
	top := l.views[0]
	out := Explained{Path: path, At: top.where()}
	out.Value, out.Encrypted = hideEncrypted(top.value)
	for _, below := range l.views[1:] {
		value, encrypted := hideEncrypted(below.value)
		out.Overrides = append(out.Overrides, Overridden{Value: value, Encrypted: encrypted, At: below.where()})
	}
	out.Deleted = top.value == nil && len(out.Overrides) > 0
	if path == "" {
		out.Path = "."
	}
	e.out = append(e.out, out)
}

// where returns the view's position, or only its file if the position is unknown.
func (v view) where() yamlfile.Position {
	if p, ok := v.position(); ok {
		return p
	}
	return yamlfile.Position{File: v.source.file, Revision: v.source.revision}
}
