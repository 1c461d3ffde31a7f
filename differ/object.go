package differ

import (
	"maps"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v4/schema"
)

// carver cuts objects along sets of fields. A result shares values with the arguments, which are
// never modified.
type carver struct{ schema *smdschema.Schema }

// extract returns the part of a value that a set of fields names, list items with their keys. The
// result is nil if the value has no such part.
//
// typed.ExtractItems would lose empty maps and whole subtrees.
func (c carver) extract(ref smdschema.TypeRef, v any, set *fieldpath.Set) any {
	atom, _ := c.schema.Resolve(ref)
	switch v := v.(type) {
	case map[string]any:
		if atom.Map == nil {
			return nil
		}
		return c.extractMap(atom.Map, v, set)
	case []any:
		if atom.List == nil || atom.List.ElementRelationship != smdschema.Associative {
			return nil
		}
		return c.extractList(atom.List, v, set)
	}
	return nil
}

func (c carver) extractMap(m *smdschema.Map, v map[string]any, set *fieldpath.Set) any {
	out := map[string]any{}
	for name, child := range v {
		if part := c.part(fieldType(m, name), child, fieldpath.PathElement{FieldName: &name}, set); part != nil {
			out[name] = part
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (c carver) extractList(list *smdschema.List, v []any, set *fieldpath.Set) any {
	var out []any
	for _, item := range v {
		pe, ok := itemKey(c.schema, list, item)
		if !ok {
			continue
		}
		part := c.part(list.ElementType, item, pe, set)
		if part == nil {
			continue
		}
		if m, ok := part.(map[string]any); ok && pe.Key != nil {
			m = maps.Clone(m)
			for _, f := range *pe.Key {
				m[f.Name] = f.Value.Unstructured()
			}
			part = m
		}
		out = append(out, part)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// part returns the named part of one child: the parts below the child that are named, else the
// whole child if the child is named.
func (c carver) part(ref smdschema.TypeRef, child any, pe fieldpath.PathElement, set *fieldpath.Set) any {
	if below, ok := set.Children.Get(pe); ok && !below.Empty() {
		return c.extract(ref, child, below)
	}
	if set.Members.Has(pe) {
		return child
	}
	return nil
}

// lacking returns the fields of a set that a value does not have. A member of the set is returned
// whatever is named below it.
func (c carver) lacking(ref smdschema.TypeRef, v any, set *fieldpath.Set) *fieldpath.Set {
	out := &fieldpath.Set{}
	find := c.finder(ref, v)
	set.Members.Iterate(func(pe fieldpath.PathElement) {
		if _, found := find(pe); len(found) == 0 {
			out.Members.Insert(pe)
		}
	})
	set.Children.Iterate(func(pe fieldpath.PathElement) {
		below, _ := set.Children.Get(pe)
		ref, found := find(pe)
		if len(found) == 0 {
			found = []any{nil}
		}
		lacks := c.lacking(ref, found[0], below)
		for _, child := range found[1:] { // keys repeat
			lacks = lacks.Intersection(c.lacking(ref, child, below))
		}
		if !lacks.Empty() {
			*out.Children.Descend(pe) = *lacks
		}
	})
	return out
}

// finder returns a function that finds the children of a value, and their type.
func (c carver) finder(ref smdschema.TypeRef, v any) func(fieldpath.PathElement) (smdschema.TypeRef, []any) {
	atom, _ := c.schema.Resolve(ref)
	switch v := v.(type) {
	case map[string]any:
		return func(pe fieldpath.PathElement) (smdschema.TypeRef, []any) {
			if atom.Map == nil || pe.FieldName == nil || v[*pe.FieldName] == nil {
				return smdschema.TypeRef{}, nil
			}
			return fieldType(atom.Map, *pe.FieldName), []any{v[*pe.FieldName]}
		}
	case []any:
		if atom.List == nil || atom.List.ElementRelationship != smdschema.Associative {
			break
		}
		items := map[string][]any{}
		for _, item := range v {
			if pe, ok := itemKey(c.schema, atom.List, item); ok {
				items[pe.String()] = append(items[pe.String()], item)
			}
		}
		return func(pe fieldpath.PathElement) (smdschema.TypeRef, []any) {
			return atom.List.ElementType, items[pe.String()]
		}
	}
	return func(fieldpath.PathElement) (smdschema.TypeRef, []any) { return smdschema.TypeRef{}, nil }
}

// without returns a value without a set of fields, and without the maps and lists that become empty
// by this. The result is nil if nothing is left. A list item keeps its keys while any other field
// of the item is left.
func (c carver) without(ref smdschema.TypeRef, v any, set *fieldpath.Set) any {
	if set.Empty() {
		return v
	}
	atom, _ := c.schema.Resolve(ref)
	switch v := v.(type) {
	case map[string]any:
		if atom.Map == nil {
			return v
		}
		out := make(map[string]any, len(v))
		for name, child := range v {
			if left := c.withoutFields(fieldType(atom.Map, name), child, fieldpath.PathElement{FieldName: &name}, set); left != nil {
				out[name] = left
			}
		}
		if len(out) == 0 && len(v) > 0 {
			return nil
		}
		return out
	case []any:
		if atom.List == nil || atom.List.ElementRelationship != smdschema.Associative {
			return v
		}
		return c.listWithout(atom.List, v, set)
	}
	return v
}

func (c carver) listWithout(list *smdschema.List, v []any, set *fieldpath.Set) any {
	out := make([]any, 0, len(v))
	for _, item := range v {
		pe, ok := itemKey(c.schema, list, item)
		if !ok {
			out = append(out, item)
			continue
		}
		left := c.withoutFields(list.ElementType, item, pe, set)
		if m, ok := left.(map[string]any); ok {
			left = withKeys(m, item, pe)
		}
		if left != nil {
			out = append(out, left)
		}
	}
	if len(out) == 0 && len(v) > 0 {
		return nil
	}
	return out
}

func (c carver) withoutFields(ref smdschema.TypeRef, child any, pe fieldpath.PathElement, set *fieldpath.Set) any {
	if set.Members.Has(pe) {
		return nil
	}
	if below, ok := set.Children.Get(pe); ok {
		return c.without(ref, child, below)
	}
	return child
}

// withKeys restores the keys of an item. If the keys are removed too and nothing else is left, the
// result is nil.
func withKeys(left map[string]any, item any, pe fieldpath.PathElement) any {
	whole, _ := item.(map[string]any)
	if pe.Key == nil || len(left) == len(whole) {
		return left
	}
	keys := map[string]any{}
	others := len(left)
	lost := false
	for _, f := range *pe.Key {
		v, had := whole[f.Name]
		if !had {
			continue
		}
		keys[f.Name] = v
		if _, still := left[f.Name]; still {
			others--
		} else {
			lost = true
		}
	}
	if lost && others == 0 {
		return nil
	}
	out := maps.Clone(left)
	maps.Copy(out, keys)
	return out
}

// graft returns v with the fields that only part has. List items are matched by their keys.
func (c carver) graft(ref smdschema.TypeRef, v, part any) any {
	if v == nil || part == nil {
		return firstValue(v, part)
	}
	atom, _ := c.schema.Resolve(ref)
	switch v := v.(type) {
	case map[string]any:
		m, ok := part.(map[string]any)
		if !ok || atom.Map == nil {
			return v
		}
		out := maps.Clone(v)
		for name, child := range m {
			out[name] = c.graft(fieldType(atom.Map, name), v[name], child)
		}
		return out
	case []any:
		list, ok := part.([]any)
		if !ok || atom.List == nil || atom.List.ElementRelationship != smdschema.Associative {
			return v
		}
		return c.graftList(atom.List, v, list)
	}
	return v
}

func firstValue(a, b any) any {
	if a != nil {
		return a
	}
	return b
}

func (c carver) graftList(list *smdschema.List, v, part []any) any {
	have, ok := indexItems(c.schema, list, v)
	more, ok2 := indexItems(c.schema, list, part)
	if !ok || !ok2 {
		return v
	}
	out := make([]any, 0, len(v)+len(part))
	for i, pe := range have.keys {
		out = append(out, c.graft(list.ElementType, v[i], more.get(i, pe).value))
	}
	for i, pe := range more.keys {
		if !have.get(i, pe).present {
			out = append(out, part[i])
		}
	}
	return out
}
