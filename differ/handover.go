package differ

import (
	"maps"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
)

// handOver is an object of fields that must outlive Keelson's ownership, at
// their live values, or nil. Server-side apply removes a field, or resets it to
// its default, when its last owner stops sending it, and with a list item (in
// kinds without a schema, with a map, too) all that others own in it. For the
// same reason what was handed over before is sent again.
func (c *comparison) handOver() map[string]any {
	alone := c.who.union(isApplied).Difference(c.who.union(func(e ownerEntry) bool { return !e.applied }))
	// An item or map that Keelson alone owns, and that the patch does not have, goes
	// with all that is in it.
	going := carver{c.typ.Schema}.lacking(c.typ.TypeRef, c.change.Patch, alone)
	goes := func(p fieldpath.Path) bool { return len(p) > 0 && hasPrefix(going, p[:len(p)-1]) }
	fields := &fieldpath.Set{}
	add := func(p fieldpath.Path) {
		if !hasPrefix(fields, p) { // of what goes over as a whole no part is named
			fields.Insert(p.Copy())
		}
	}
	c.kept.Iterate(func(p fieldpath.Path) {
		if owns(alone, p) || goes(p) {
			add(p)
		}
	})
	for _, e := range c.who.entries {
		if e.who < ownerPerson {
			continue
		}
		e.fields.Leaves().Iterate(func(p fieldpath.Path) {
			if !hasPrefix(c.taken, p) && goes(p) {
				add(p)
			}
		})
	}
	if fields.Empty() && c.dropped.Empty() {
		return nil
	}
	c.who.union(isHandOver).Leaves().Iterate(func(p fieldpath.Path) {
		if !hasPrefix(c.dropped, p) {
			add(p)
		}
	})
	out, _ := carver{c.typ.Schema}.extract(c.typ.TypeRef, c.live, fields).(map[string]any)
	if out == nil {
		out = map[string]any{}
	}
	out["apiVersion"], out["kind"] = c.target["apiVersion"], c.target["kind"]
	meta, _ := out["metadata"].(map[string]any)
	meta = maps.Clone(meta)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["name"] = c.state.ID.Name
	if c.state.ID.Namespace != "" {
		meta["namespace"] = c.state.ID.Namespace
	}
	out["metadata"] = meta
	return out
}

// hasPrefix reports whether a set has a path or one that it lies below.
func hasPrefix(set *fieldpath.Set, p fieldpath.Path) bool {
	for i := range p {
		if set.Has(p[:i+1]) {
			return true
		}
	}
	return false
}
