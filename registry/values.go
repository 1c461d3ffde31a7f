package registry

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"go.yaml.in/yaml/v4"
)

// Values are one delivery's meta-config: layers and the cluster's own file,
// merged by Helm's rules (maps merge, lists replace, null deletes), with the
// place that each value came from. They are immutable, and shared by the
// deliveries that have the same sources, also from one Load to the next: the
// same pointer means the same values. They are safe for concurrent use.
type Values struct {
	// base is what source is laid over; nil at the bottom.
	base   *Values
	source *source
	merged *merged
}

// merged is what Values hold, without where it came from.
type merged struct {
	base *merged
	over map[string]any

	once sync.Once
	all  map[string]any
}

// source is one place that sets values: a layer's entry, or a cluster's file.
type source struct {
	file, revision string
	values         map[string]any
	places         *places
	// sealed is the file, if SOPS encrypted values of it, and sealedAt where in
	// it these values are.
	sealed   *sealed
	sealedAt []string
	opened   bool // it was sealed, and is in clear text now
	// sum is over the values, and the seal they are under; see sharing.
	sum sum
}

// ValuesFrom returns Values that hold the given map and know no origins. It is
// for tests and for values that don't come from a fleet repository. The caller
// must not modify the map afterwards; nil stands for no values at all.
func ValuesFrom(values map[string]any) *Values {
	return newValues(nil, &source{values: values})
}

// newValues lays a source over Values; nobody shares what is merged.
func newValues(base *Values, s *source) *Values {
	m := &merged{over: s.values}
	if base != nil {
		m.base = base.merged
	}
	return &Values{base: base, source: s, merged: m}
}

// Map returns the merged values, never nil. A null is kept: it deletes the
// chart's own value when Helm merges it. The caller must not modify the map.
// The Map of a nil *Values is empty.
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

// Identity is the same (==) for Values of one [Repo] that hold the same,
// wherever each value is set: of clusters whose files are alike, say. It may
// differ where they hold the same by other layers. That of nil is nil.
func (v *Values) Identity() any {
	if v == nil {
		return nil
	}
	return v.merged
}

// Origin returns the place that set the value at the given path: the file that
// won, and there the line of its key or list item. Items of a list are given
// by their number. For a path that leads below or beside what is set, it is
// the place of the nearest value above it; not ok when there is none, or when
// the Values know no origins.
func (v *Values) Origin(path ...string) (Position, bool) {
	var best Position
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

// Only returns the path of the only value that is written so: 3, "3" and a template's 3 are
// alike. Not ok where there is none, or several.
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

// alike compares two values; scalars by what a template writes of them.
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

// views returns what each source says at the root, the strongest first.
func (v *Values) views() []view {
	var out []view
	for ; v != nil; v = v.base {
		if len(v.source.values) > 0 {
			out = append(out, view{source: v.source, value: v.source.values, place: v.source.places})
		}
	}
	return out
}

// view is what one source says at one path.
type view struct {
	source *source
	value  any
	place  *places
}

func (v view) position() (Position, bool) {
	if v.place == nil || v.source.file == "" {
		return Position{}, false
	}
	return v.place.in(v.source.file, v.source.revision), true
}

// child returns what the source says one step further down.
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

// effective returns the views that make up the merged value: the strongest,
// and while that is a map, the maps below it. Anything but a map hides what is
// below it.
func effective(views []view) []view {
	for i, v := range views {
		if _, isMap := v.value.(map[string]any); !isMap {
			return views[:max(i, 1)]
		}
	}
	return views
}

// descend goes one step down in the merged value.
func descend(views []view, step string) []view {
	var out []view
	for _, v := range effective(views) {
		if child, ok := v.child(step); ok {
			out = append(out, child)
		}
	}
	return out
}

// mergeMaps lays over on top of base, by the rules of helm -f BASE -f OVER.
// Neither is modified; the result shares what did not change.
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

// places are the places of a value and of all below it. A key's place is that
// of the key, an item's that of the item.
type places struct {
	point
	keys  map[string]*places
	items []*places
}

// placesOf remembers the places of node n, which stands at p.
func placesOf(n *yaml.Node, p point) *places {
	if n == nil {
		return nil
	}
	out := &places{point: p}
	switch n.Kind {
	case yaml.MappingNode:
		out.keys = make(map[string]*places, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			out.keys[n.Content[i].Value] = placesOf(n.Content[i+1], at(n.Content[i]))
		}
	case yaml.SequenceNode:
		out.items = make([]*places, len(n.Content))
		for i, item := range n.Content {
			out.items[i] = placesOf(item, at(item))
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
