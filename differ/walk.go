package differ

import (
	"slices"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v4/schema"
	"sigs.k8s.io/structured-merge-diff/v4/value"
)

// cell is a field's value on one side. A null counts as absent: no API server distinguishes the
// two.
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

// row is one leaf field: its recorded, target and live values.
type row struct {
	path    fieldpath.Path
	r, t, l cell
	typed   comparer
	ref     smdschema.TypeRef
	// presence rows compare only whether an empty container is there.
	presence bool
	// gone is the length of the path of the list item that left the target as a whole, and the
	// field with it; 0 without such an item.
	gone int
	// came is the same length for a list item that live lacks; 0 without such an item.
	came int
	// removed means that the field is in a list item that is recorded and wanted, and that live
	// lost as a whole.
	removed bool
	// fresh means that the field is a part of a list item that live does not have.
	fresh bool
	// flagged rows are whole lists, because keys of the list are missing or repeat.
	flagged bool
}

// whole returns the path of the list item that left the target, and the field with it: items are
// removed or stay as a whole. Without such an item, it returns the field's path.
func (w *row) whole() fieldpath.Path {
	if w.gone > 0 {
		return w.path[:w.gone]
	}
	return w.path
}

// same reports whether two cells are both absent, or present and equal.
func (w *row) same(a, b cell) bool {
	if a.present != b.present {
		return false
	}
	return w.presence || w.typed.equal(w.ref, a.value, b.value)
}

// completed reports whether the live value is the wanted value plus fields that only the API server
// can have added: a default inside an atomic list.
func (w *row) completed() bool {
	return w.t.present && w.l.present && w.typed.covers(w.ref, w.t.value, w.l.value)
}

// walker visits the leaf fields that are recorded or wanted: maps in the order of their names,
// lists in the order of the target. It does not visit fields that only the live object has: such
// fields are not Keelson's.
type walker struct {
	schema *smdschema.Schema
	// emit must copy the path to keep it.
	emit func(row)
	// hollow is called for each map or list that is wanted empty, and that is not empty in live.
	hollow  func(fieldpath.Path)
	gone    int
	came    int
	removed bool
	fresh   bool
}

// row returns a row with the walker's state at a path.
func (w *walker) row(path fieldpath.Path, r, t, l cell) row {
	return row{path: path, r: r, t: t, l: l, typed: comparer{w.schema}, gone: w.gone, came: w.came, removed: w.removed, fresh: w.fresh}
}

func (w *walker) walk(path fieldpath.Path, ref smdschema.TypeRef, r, t, l cell) {
	if !r.present && !t.present {
		return
	}
	atom, ok := w.schema.Resolve(ref)
	if !ok {
		w.leaf(path, ref, r, t, l)
		return
	}
	if r.present && (allOrAbsent(cell.isMap, t, l) && !r.isMap() || allOrAbsent(cell.isList, t, l) && !r.isList()) && t.present {
		// The recorded value had another shape. If target and live have the same shape, the record
		// says nothing about fields below.
		r = cell{}
	}
	switch {
	case allOrAbsent(cell.isMap, r, t, l) && atom.Map != nil && atom.Map.ElementRelationship != smdschema.Atomic:
		w.walkMap(path, atom.Map, r, t, l)
	case allOrAbsent(cell.isList, r, t, l) && atom.List != nil && atom.List.ElementRelationship == smdschema.Associative:
		w.walkList(path, ref, r, t, l)
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
	out := w.row(path, r, t, l)
	out.ref = ref
	w.emit(out)
}

// container visits the presence of an empty map or list, which has its own meaning: emptyDir: {}. A
// container with fields needs no row, because its fields create it.
func (w *walker) container(path fieldpath.Path, r, t, l cell) {
	if isEmpty(t) && l.present && !isEmpty(l) {
		w.hollow(path)
	}
	if isEmpty(t) || isEmpty(r) && !t.present {
		out := w.row(path, r, t, l)
		out.presence = true
		w.emit(out)
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
	names := make([]string, 0, max(len(tm), len(rm)))
	for name := range tm {
		names = append(names, name)
	}
	for name := range rm {
		if _, both := tm[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i, name := range names {
		side := func(c cell, m map[string]any) cell {
			v, ok := m[name]
			if (!ok || v == nil) && c.present && len(path) > 0 {
				// An omitted key field has the value of the item's key.
				v, ok = keyField(path[len(path)-1], name)
			}
			return cellOf(v, ok)
		}
		w.walk(append(path, fieldpath.PathElement{FieldName: &names[i]}), fieldType(m, name),
			side(r, rm), side(t, tm), side(l, lm))
	}
}

// keyField returns the value of an item's key field.
func keyField(pe fieldpath.PathElement, name string) (any, bool) {
	if pe.Key == nil {
		return nil, false
	}
	for _, f := range *pe.Key {
		if f.Name == name {
			return f.Value.Unstructured(), true
		}
	}
	return nil, false
}

func (w *walker) walkList(path fieldpath.Path, ref smdschema.TypeRef, r, t, l cell) {
	atom, _ := w.schema.Resolve(ref)
	list := atom.List
	ti, tok := w.index(list, t, items{})
	ri, rok := w.index(list, r, ti)
	li, lok := w.index(list, l, ti)
	if !rok || !tok || !lok {
		out := w.row(path, r, t, l)
		out.ref, out.flagged = ref, true
		w.emit(out)
		return
	}
	w.container(path, r, t, l)
	item, _ := w.schema.Resolve(list.ElementType)
	parts := item.Map != nil && item.Map.ElementRelationship != smdschema.Atomic
	for i, pe := range ti.keys {
		removed, fresh, came, r, l := w.removed, w.fresh, w.came, ri.get(i, pe), li.get(i, pe)
		w.removed = removed || r.present && !l.present
		if parts {
			w.fresh = !l.present
		}
		if !l.present && came == 0 {
			w.came = len(path) + 1
		}
		w.walk(append(path, pe), list.ElementType, r, cellOf(ti.values[i], true), l)
		w.removed, w.fresh, w.came = removed, fresh, came
	}
	for i, pe := range ri.keys {
		if !ti.get(i, pe).present {
			outer := w.gone
			if outer == 0 {
				w.gone = len(path) + 1
			}
			w.walk(append(path, pe), list.ElementType, cellOf(ri.values[i], true), cell{}, li.get(i, pe))
			w.gone = outer
		}
	}
}

// items are the items of an associative list with their keys, in the order of the list.
type items struct {
	keys   []fieldpath.PathElement
	values []any
	sorted []int // indices of the keys, in the keys' own order
}

// get finds an item by its key; at is its most likely index.
func (it *items) get(at int, pe fieldpath.PathElement) cell {
	if at < len(it.keys) && it.keys[at].Equals(pe) {
		return cellOf(it.values[at], true)
	}
	i, ok := slices.BinarySearchFunc(it.sorted, pe, func(place int, pe fieldpath.PathElement) int {
		return it.keys[place].Compare(pe)
	})
	if !ok {
		return cell{}
	}
	return cellOf(it.values[it.sorted[i]], true)
}

// index finds the items of a list. If the keys are in the same order as in a list that is already
// indexed, as in a settled object, the index is reused.
func (w *walker) index(list *smdschema.List, c cell, known items) (items, bool) {
	values, _ := c.value.([]any)
	if len(values) > 0 && len(values) == len(known.keys) && w.keysAre(list, values, known.keys) {
		known.values = values
		return known, true
	}
	return indexItems(w.schema, list, values)
}

// keysAre reports whether each item has the key at the same index. If the result is false, the keys
// may still be equal, as 1 and 1.0 are.
func (w *walker) keysAre(list *smdschema.List, values []any, keys []fieldpath.PathElement) bool {
	for i, v := range values {
		pe := keys[i]
		if pe.Value != nil {
			if !sameScalar(v, (*pe.Value).Unstructured()) {
				return false
			}
			continue
		}
		item, ok := v.(map[string]any)
		if !ok {
			return false
		}
		for _, f := range *pe.Key {
			if !sameScalar(keyOf(w.schema, list, item, f.Name), f.Value.Unstructured()) {
				return false
			}
		}
	}
	return true
}

func sameScalar(a, b any) bool {
	switch a.(type) {
	case string, bool, int64, float64:
		return a == b
	}
	return false
}

// indexItems is not ok if an item has no key or a key repeats.
func indexItems(schema *smdschema.Schema, list *smdschema.List, values []any) (items, bool) {
	out := items{values: values}
	if len(values) == 0 {
		return out, true
	}
	out.keys = make([]fieldpath.PathElement, len(values))
	out.sorted = make([]int, len(values))
	for i, v := range values {
		pe, ok := itemKey(schema, list, v)
		if !ok {
			return items{}, false
		}
		out.keys[i], out.sorted[i] = pe, i
	}
	slices.SortFunc(out.sorted, func(a, b int) int { return out.keys[a].Compare(out.keys[b]) })
	for i := 1; i < len(out.sorted); i++ {
		if out.keys[out.sorted[i-1]].Equals(out.keys[out.sorted[i]]) {
			return items{}, false
		}
	}
	return out, true
}

// itemKey returns an item's path element. An omitted key field gets the schema's default, such as a
// port's protocol.
func itemKey(schema *smdschema.Schema, list *smdschema.List, item any) (fieldpath.PathElement, bool) {
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
	fields := make(value.FieldList, 0, len(list.Keys))
	for _, name := range list.Keys {
		v := keyOf(schema, list, m, name)
		switch v.(type) {
		case map[string]any, []any, nil:
			return fieldpath.PathElement{}, false
		}
		fields = append(fields, value.Field{Name: name, Value: value.NewValueInterface(v)})
	}
	fields.Sort()
	return fieldpath.PathElement{Key: &fields}, true
}

// keyOf returns an item's key field, or its default.
func keyOf(schema *smdschema.Schema, list *smdschema.List, item map[string]any, name string) any {
	if v := item[name]; v != nil {
		return v
	}
	return keyDefault(schema, list, name)
}

func keyDefault(schema *smdschema.Schema, list *smdschema.List, name string) any {
	atom, ok := schema.Resolve(list.ElementType)
	if !ok || atom.Map == nil {
		return nil
	}
	f, _ := atom.FindField(name)
	return f.Default
}
