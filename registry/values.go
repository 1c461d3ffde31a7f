package registry

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"go.yaml.in/yaml/v4"

	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Values are one delivery's meta-config: layers and the cluster's own file, merged by Helm's rules
// (maps merge, lists replace, null deletes), with the position of each value. They are immutable.
// Deliveries with the same sources share them, also across Loads: the same pointer means the same
// values. They are safe for concurrent use.
type Values struct {
	// base is what source is merged over; nil at the bottom.
	base   *Values
	source *source
	merged *merged
}

// merged is the content of Values, without positions.
type merged struct {
	base *merged
	over map[string]any

	once sync.Once
	all  map[string]any
}

// source is one source of values: a layer's entry, or a cluster's file.
type source struct {
	file, revision string
	values         map[string]any
	places         *places
	// encrypted is the file if SOPS encrypted some of its values, and sealedAt the path of these
	// values in it.
	encrypted   *encryptedDocument
	encryptedAt []string
	opened      bool // it was encrypted, and is now in clear text
	// sum is the hash of the values and their encrypted file; see sharing.
	sum sum
}

// ValuesFrom returns Values with the given map and without origins. It is for tests and for values
// from outside a fleet repository. The caller must not modify the map afterwards; nil means no
// values.
func ValuesFrom(values map[string]any) *Values {
	return newValues(nil, &source{values: values})
}

// newValues merges a source over Values. The result is not shared.
func newValues(base *Values, s *source) *Values {
	m := &merged{over: s.values}
	if base != nil {
		m.base = base.merged
	}
	return &Values{base: base, source: s, merged: m}
}

// Map returns the merged values, never nil. A null is kept, because it deletes the chart's own
// value when Helm merges it. The caller must not modify the map. The Map of a nil *Values is empty.
func (v *Values) Map() map[string]any {
	if v == nil {
		return map[string]any{}
	}
	return v.merged.get()
}

func (m *merged) get() map[string]any {
	if m == nil {
		return map[string]any{}
	}
	m.once.Do(func() { m.all = mergeMaps(m.base.get(), m.over) })
	return m.all
}

// Identity returns the same value (==) for Values of one [Repo] with the same content, for example
// of clusters with equal files, whatever the positions. It may differ if the same content comes
// from other layers. The Identity of nil is nil.
func (v *Values) Identity() any {
	if v == nil {
		return nil
	}
	return v.merged
}

// Origin returns the position that set the value at the given path: the strongest file, and in it
// the line of the key or list item. List items are given by their index. For a path that is not
// set, it is the position of the nearest value above. It returns false if there is none, or if the
// Values have no origins.
func (v *Values) Origin(path ...string) (yamlfile.Position, bool) {
	var best yamlfile.Position
	found := false
	views := v.views()
	for _, step := range path {
		views = descend(views, step)
		if len(views) == 0 {
			break
		}
		if p, ok := views[0].position(); ok {
			best, found = p, true
		}
	}
	return best, found
}

// Only returns the path of the only value with the same text: 3, "3" and a template's 3 are equal.
// It returns false if there is no such value, or several.
func (v *Values) Only(value any) (path []string, ok bool) {
	found := 0
	var look func(in any, at []string)
	look = func(in any, at []string) {
		if len(at) > 0 && value != nil && alike(in, value) {
			path = slices.Clone(at)
			found++
			return
		}
		switch in := in.(type) {
		case map[string]any:
			for key, below := range in {
				look(below, append(at, key))
			}
		case []any:
			for i, below := range in {
				look(below, append(at, strconv.Itoa(i)))
			}
		}
	}
	look(v.Map(), nil)
	return path, found == 1
}

// alike compares two values; scalars by the text that a template writes.
func alike(a, b any) bool {
	if scalar(a) && scalar(b) {
		return fmt.Sprint(a) == fmt.Sprint(b)
	}
	return reflect.DeepEqual(a, b)
}

func scalar(a any) bool {
	switch a.(type) {
	case nil, map[string]any, []any:
		return false
	}
	return true
}

// views returns the root values of each source, the strongest first.
func (v *Values) views() []view {
	var out []view
	for ; v != nil; v = v.base {
		if len(v.source.values) > 0 {
			out = append(out, view{source: v.source, value: v.source.values, place: v.source.places})
		}
	}
	return out
}

// view is the value of one source at one path.
type view struct {
	source *source
	value  any
	place  *places
}

func (v view) position() (yamlfile.Position, bool) {
	if v.place == nil || v.source.file == "" {
		return yamlfile.Position{}, false
	}
	return v.place.In(v.source.file, v.source.revision), true
}

// child returns the view one step below.
func (v view) child(step string) (view, bool) {
	switch value := v.value.(type) {
	case map[string]any:
		child, ok := value[step]
		return view{source: v.source, value: child, place: v.place.key(step)}, ok
	case []any:
		i, err := strconv.Atoi(step)
		if err != nil || i < 0 || i >= len(value) {
			return view{}, false
		}
		return view{source: v.source, value: value[i], place: v.place.item(i)}, true
	default:
		return view{}, false
	}
}

// effective returns the views that form the merged value: the strongest view, and while it is a
// map, the maps below it. A value that is no map hides the views below it.
func effective(views []view) []view {
	for i, v := range views {
		if _, isMap := v.value.(map[string]any); !isMap {
			return views[:max(i, 1)]
		}
	}
	return views
}

// descend returns the views one step below in the merged value.
func descend(views []view, step string) []view {
	var out []view
	for _, v := range effective(views) {
		if child, ok := v.child(step); ok {
			out = append(out, child)
		}
	}
	return out
}

// mergeMaps merges over over base, by the rules of helm -f BASE -f OVER. Neither is modified; the
// result shares unchanged parts.
func mergeMaps(base, over map[string]any) map[string]any {
	if len(over) == 0 {
		return base
	}
	out := make(map[string]any, len(base)+len(over))
	maps.Copy(out, base)
	for k, v := range over {
		if m, ok := v.(map[string]any); ok {
			if below, ok := out[k].(map[string]any); ok {
				out[k] = mergeMaps(below, m)
				continue
			}
		}
		out[k] = v
	}
	return out
}

// places are the positions of a value and of all values below it. A map entry has the position of
// its key, and a list item its own.
type places struct {
	yamlfile.Point
	keys  map[string]*places
	items []*places
}

// placesOf returns the positions of node n, which has position p.
func placesOf(n *yaml.Node, p yamlfile.Point) *places {
	if n == nil {
		return nil
	}
	out := &places{Point: p}
	switch n.Kind {
	case yaml.MappingNode:
		out.keys = make(map[string]*places, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			out.keys[n.Content[i].Value] = placesOf(n.Content[i+1], yamlfile.PointOf(n.Content[i]))
		}
	case yaml.SequenceNode:
		out.items = make([]*places, len(n.Content))
		for i, item := range n.Content {
			out.items[i] = placesOf(item, yamlfile.PointOf(item))
		}
	default:
	}
	return out
}

func (p *places) key(key string) *places {
	if p == nil {
		return nil
	}
	return p.keys[key]
}

func (p *places) item(i int) *places {
	if p == nil || i >= len(p.items) {
		return nil
	}
	return p.items[i]
}
