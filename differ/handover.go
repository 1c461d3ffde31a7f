package differ

import (
	"maps"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
)

// handOver returns an object with the fields that must outlive Keelson's ownership, at their live
// values, or nil. Server-side apply removes a field, or resets it to its default, when its last
// owner stops sending it. With a list item, it removes all fields in the item, also those of other
// owners. In kinds without a schema, the same is true of a map. For the same reason, fields that
// were handed over before are sent again.
func (c *comparison) handOver() map[string]any {
	alone := c.who.union(isApplied).Difference(c.who.union(func(e ownerEntry) bool { return !e.applied }))
	// An item or map that Keelson alone owns, and that the patch lacks, is removed with all its
	// fields.
	going := carver{c.view.typ.Schema}.lacking(c.view.typ.TypeRef, c.change.Patch, alone)
	goes := func(p fieldpath.Path) bool { return len(p) > 0 && hasPrefix(going, p[:len(p)-1]) }
	fields := &fieldpath.Set{}
	add := func(p fieldpath.Path) {
		if !hasPrefix(fields, p) { // no part of a value that is handed over as a whole is listed
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
	out, _ := carver{c.view.typ.Schema}.extract(c.view.typ.TypeRef, c.live, fields).(map[string]any)
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

// hasPrefix reports whether a set has the path or a path above it.
func hasPrefix(set *fieldpath.Set, p fieldpath.Path) bool {
	for i := range p {
		if set.Has(p[:i+1]) {
			return true
		}
	}
	return false
}
