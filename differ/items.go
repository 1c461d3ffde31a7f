package differ

import (
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
)

// inItems joins the fields that come or go with their list item into one field. An added container
// is then one hunk, and not one for each of its fields. Fields with different results stay apart.
func inItems(fields []Field) []Field {
	var out []Field
	for len(fields) > 0 {
		n := 1
		for n < len(fields) && fields[0].together(fields[n]) {
			n++
		}
		if one, ok := whole(fields[:n]); n > 1 && ok {
			out = append(out, one)
		} else {
			out = append(out, fields[:n]...)
		}
		fields = fields[n:]
	}
	return out
}

// together reports whether two fields are of one item, and have the same result.
func (f Field) together(g Field) bool {
	return f.item > 0 && f.item == g.item && f.at[:f.item].Equals(g.at[:g.item]) &&
		f.Action == g.Action && f.Rule == g.Rule && f.Because == g.Because && f.Fix == g.Fix
}

// whole returns the item of the given fields; it is not ok if a field is the item itself.
func whole(fields []Field) (Field, bool) {
	out := fields[0]
	out.at, out.Path = out.at[:out.item], out.at[:out.item].String()
	var recorded, target, live []part
	for _, f := range fields {
		rest := f.at[f.item:]
		if len(rest) == 0 {
			return Field{}, false
		}
		recorded = appendPart(recorded, rest, f.Recorded)
		target = appendPart(target, rest, f.Target)
		live = appendPart(live, rest, f.Live)
	}
	out.Recorded, out.Target, out.Live = assemble(recorded), assemble(target), assemble(live)
	return out, true
}

// part is a value in an item, with its path in the item.
type part struct {
	path  fieldpath.Path
	value any
}

func appendPart(parts []part, path fieldpath.Path, v any) []part {
	if v == nil {
		return parts
	}
	return append(parts, part{path, v})
}

// assemble builds one value from parts: a map by field names, or a list of items in the order of
// their first parts. It returns nil without parts.
func assemble(parts []part) any {
	if len(parts) == 0 {
		return nil
	}
	if len(parts[0].path) == 0 {
		return parts[0].value
	}
	var order []string
	below := map[string][]part{}
	list := false
	for _, p := range parts {
		if len(p.path) == 0 {
			continue
		}
		first := p.path[0]
		name := first.String()
		if first.FieldName != nil {
			name = *first.FieldName
		}
		list = list || first.FieldName == nil
		if below[name] == nil {
			order = append(order, name)
		}
		below[name] = append(below[name], part{p.path[1:], p.value})
	}
	if list {
		out := make([]any, 0, len(order))
		for _, name := range order {
			out = append(out, assemble(below[name]))
		}
		return out
	}
	out := make(map[string]any, len(order))
	for _, name := range order {
		out[name] = assemble(below[name])
	}
	return out
}
