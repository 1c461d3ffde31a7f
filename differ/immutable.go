package differ

import (
	"slices"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ/catalogue"
)

const ruleImmutable = catalogue.Immutable

// fixedPaths returns the paths of a kind's fixed fields.
func fixedPaths(id ID, some bool) []string {
	var out []string
	for _, f := range catalogue.ImmutableFields() {
		match := v1alpha1.ObjectMatch{Group: f.Group, Kinds: f.Kinds}
		if (some || !f.Some) && Matches(match, id) {
			out = append(out, f.Paths...)
		}
	}
	return out
}

// immutableFields are the fields of one object that no update can change.
type immutableFields struct{ patterns []pattern } // nil until a row needs them

func (f *immutableFields) has(id ID, path fieldpath.Path) bool {
	if f.patterns == nil {
		f.patterns = []pattern{} // not nil: one lookup serves all rows
		for _, path := range fixedPaths(id, false) {
			if p, err := parsePattern(path); err == nil {
				f.patterns = append(f.patterns, p)
			}
		}
	}
	return slices.ContainsFunc(f.patterns, func(p pattern) bool { return p.matches(path) })
}

// cannotUpdate reports whether no update can bring a row to its target.
func (c *comparison) cannotUpdate(w *row) bool {
	if !w.l.present || c.defaulted(w) {
		return false
	}
	return c.immutable.has(c.state.ID, w.path)
}

// replace plans to delete the object and to create it anew. A rule on its deletion may stop this. A
// field can't wait alone while its object is replaced. No approval replaces an object that an
// annotation keeps: it says that nothing deletes the object.
func (c *comparison) replace() {
	c.change.Op, c.change.Patch, c.change.DryRunBody = OpReplace, c.target, c.target
	if annotation := keepAnnotation(c.live, c.recorded); annotation != "" {
		c.change.stop(StateDenied, ruleImmutable, "it would be deleted and created anew, and its annotation "+annotation+
			" forbids to delete it: remove the annotation in a change of its own first")
		return
	}
	if !c.waiting.Empty() {
		c.change.stop(StateHeld, ruleImmutable, "it would be deleted and created anew, and one of its fields is held")
		return
	}
	r, found := c.rules.find(v1alpha1.OnDeleteObject, nil)
	for _, f := range c.rules.fired {
		c.change.warn(f, "")
	}
	if !found {
		return
	}
	switch r.effect() {
	case v1alpha1.EffectAllow:
	case v1alpha1.EffectDeny:
		c.change.stopBy(r, StateDenied)
	default: // keep and hold
		if !c.change.Approved {
			c.change.stopBy(r, StateHeld)
		}
	}
}

// emptied returns the maps and lists that git empties, that Keelson alone owns, and that have no
// fields left.
func (c *comparison) emptied() *fieldpath.Set {
	out := &fieldpath.Set{}
	if len(c.hollow) == 0 || c.removed.Empty() {
		return out
	}
	for _, p := range c.hollow {
		if c.who.oursAlone(p) {
			out.Insert(p)
		}
	}
	carve := carver{c.view.typ.Schema}
	return carve.lacking(c.view.typ.TypeRef, carve.without(c.view.typ.TypeRef, c.live, c.removed), out)
}
