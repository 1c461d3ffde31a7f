package differ

import (
	"sort"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v4/schema"
	"sigs.k8s.io/structured-merge-diff/v4/value"
)

// cell is a field's value on one side. A null counts as absent: no API server
// keeps one apart from the other.
type cell struct {
	value   any
	present bool
}

func cellOf(v any, ok bool) cell {
	if !ok || v == nil {
		return cell{}
	}
	return cell{value: v, present: true}
}

func (c cell) isMap() bool {
	_, ok := c.value.(map[string]any)
	return ok
}

func (c cell) isList() bool {
	_, ok := c.value.([]any)
	return ok
}

// row is one leaf field: what was recorded, what is wanted, what is there.
type row struct {
	path    fieldpath.Path
	r, t, l cell
	// equal compares by the field's meaning: 1000m is 1.
	equal func(a, b any) bool
	// flagged fields could not be taken apart, because their keys repeat.
	flagged bool
}

// same reports whether two cells are both absent, or present and equal.
func (w *row) same(a, b cell) bool {
	if a.present != b.present {
		return false
	}
	return !a.present || w.equal(a.value, b.value)
}

// walker visits the leaf fields that are recorded or wanted, in path order.
// Fields that only the live object has are somebody else's: never visited.
type walker struct {
	schema *smdschema.Schema
	emit   func(row)
}

func (w *walker) walk(path fieldpath.Path, ref smdschema.TypeRef, r, t, l cell) {
	if !r.present && !t.present {
		return
	}
	atom, ok := w.schema.Resolve(ref)
	switch {
	case ok && allOrAbsent(cell.isMap, r, t, l) && atom.Map != nil && atom.Map.ElementRelationship != smdschema.Atomic:
		w.walkMap(path, atom.Map, r, t, l)
	case ok && allOrAbsent(cell.isList, r, t, l) && atom.List != nil && atom.List.ElementRelationship == smdschema.Associative:
		w.walkList(path, atom.List, r, t, l)
	default:
		w.leaf(path, ref, r, t, l)
	}
}

func allOrAbsent(is func(cell) bool, cells ...cell) bool {
	for _, c := range cells {
		if c.present && !is(c) {
			return false
		}
	}
	return true
}

func (w *walker) leaf(path fieldpath.Path, ref smdschema.TypeRef, r, t, l cell) {
	w.emit(row{path: path.Copy(), r: r, t: t, l: l, equal: equality(ref)})
}

// container visits the presence of an empty map or list, which carries meaning
// of its own: emptyDir: {}.
func (w *walker) container(path fieldpath.Path, r, t, l cell) {
	if isEmpty(r) || isEmpty(t) {
		anyValue := func(any, any) bool { return true }
		w.emit(row{path: path.Copy(), r: r, t: t, l: l, equal: anyValue})
	}
}

func isEmpty(c cell) bool {
	switch v := c.value.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

func (w *walker) walkMap(path fieldpath.Path, m *smdschema.Map, r, t, l cell) {
	if len(path) > 0 {
		w.container(path, r, t, l)
	}
	rm, _ := r.value.(map[string]any)
	tm, _ := t.value.(map[string]any)
	lm, _ := l.value.(map[string]any)
	names := make([]string, 0, len(tm)+1)
	for name := range tm {
		names = append(names, name)
	}
	for name := range rm {
		if _, both := tm[name]; !both {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		rv, rok := rm[name]
		tv, tok := tm[name]
		lv, lok := lm[name]
		n := name
		w.walk(append(path, fieldpath.PathElement{FieldName: &n}), fieldType(m, name),
			cellOf(rv, rok), cellOf(tv, tok), cellOf(lv, lok))
	}
}

func (w *walker) walkList(path fieldpath.Path, list *smdschema.List, r, t, l cell) {
	ri, rok := w.index(list, r)
	ti, tok := w.index(list, t)
	li, lok := w.index(list, l)
	if !rok || !tok || !lok {
		w.emit(row{path: path.Copy(), r: r, t: t, l: l, equal: equality(list.ElementType), flagged: true})
		return
	}
	w.container(path, r, t, l)
	keys := append([]fieldpath.PathElement{}, ti.order...)
	for _, pe := range ri.order {
		if _, both := ti.items.Get(pe); !both {
			keys = append(keys, pe)
		}
	}
	for _, pe := range keys {
		w.walk(append(path, pe), list.ElementType, ri.get(pe), ti.get(pe), li.get(pe))
	}
}

// items of an associative list by key, in the order of the list.
type items struct {
	order []fieldpath.PathElement
	items fieldpath.PathElementMap
}

func (i items) get(pe fieldpath.PathElement) cell {
	v, ok := i.items.Get(pe)
	return cellOf(v, ok)
}

// index is not ok when an item has no key or a key stands twice.
func (w *walker) index(list *smdschema.List, c cell) (items, bool) {
	values, _ := c.value.([]any)
	out := items{items: fieldpath.MakePathElementMap(len(values))}
	for _, v := range values {
		pe, ok := w.key(list, v)
		if !ok {
			return items{}, false
		}
		if _, twice := out.items.Get(pe); twice {
			return items{}, false
		}
		out.items.Insert(pe, v)
		out.order = append(out.order, pe)
	}
	return out, true
}

// key builds an item's path element; a key field that is left out takes the
// schema's default, as a port's protocol does.
func (w *walker) key(list *smdschema.List, item any) (fieldpath.PathElement, bool) {
	if len(list.Keys) == 0 {
		switch item.(type) {
		case map[string]any, []any, nil:
			return fieldpath.PathElement{}, false
		}
		v := value.NewValueInterface(item)
		return fieldpath.PathElement{Value: &v}, true
	}
	m, ok := item.(map[string]any)
	if !ok {
		return fieldpath.PathElement{}, false
	}
	atom, _ := w.schema.Resolve(list.ElementType)
	fields := make(value.FieldList, 0, len(list.Keys))
	for _, name := range list.Keys {
		v, ok := m[name]
		if !ok && atom.Map != nil {
			f, _ := atom.Map.FindField(name)
			v = f.Default
		}
		if v == nil {
			return fieldpath.PathElement{}, false
		}
		fields = append(fields, value.Field{Name: name, Value: value.NewValueInterface(v)})
	}
	fields.Sort()
	return fieldpath.PathElement{Key: &fields}, true
}
