package differ

import (
	"cmp"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Warning is a danger rule with effect warn that fires on a change. It may also be a rule with
// effect hold that fires on a creation, which is never held. The change is applied nevertheless.
type Warning struct {
	Rule    string `json:"rule"`
	Because string `json:"because"`
	// Fix says what to do instead; Source is a URL. Both may be empty.
	Fix    string `json:"fix,omitempty"`
	Source string `json:"source,omitempty"`
	// Paths of the fields, in the order of [Change.Fields]; empty for the object as a whole.
	Paths []string `json:"paths,omitempty"`
}

// warn records that a rule fires at a field, or at the object if path is empty. A rule that fires
// at several fields of an object gives one warning.
func (c *Change) warn(f finding, path string) {
	i := slices.IndexFunc(c.Warnings, func(w Warning) bool { return w.Rule == f.Name })
	if i < 0 {
		i = len(c.Warnings)
		c.Warnings = append(c.Warnings, Warning{Rule: f.Name, Because: f.because(), Fix: f.Fix, Source: f.Source})
	}
	if path != "" && !slices.Contains(c.Warnings[i].Paths, path) {
		c.Warnings[i].Paths = append(c.Warnings[i].Paths, path)
	}
}

// warnOf records the rules that fire at one field, if the field changes. A field that is unchanged,
// or whose live value stays, has no warning.
func (c *Change) warnOf(fired []finding, f Field) {
	if f.Action == ActionAdopt || stateOf(f.Action) < StateChanged {
		return
	}
	for _, r := range fired {
		c.warn(r, f.Path)
	}
}

// judgeCreation applies the rules about the creation of the object as a whole. It reports whether
// the creation may continue.
func (c *comparison) judgeCreation() bool {
	if c.live != nil {
		return true
	}
	r, found := c.rules.find(v1alpha1.OnCreateObject, nil)
	for _, f := range c.rules.fired {
		c.change.warn(f, "")
	}
	if found && r.effect() == v1alpha1.EffectDeny {
		c.change.stopBy(r, StateDenied)
		return false
	}
	return true
}

// Warnings counts the warnings of all changes.
func (p Plan) Warnings() int {
	n := 0
	for i := range p.Changes {
		n += len(p.Changes[i].Warnings)
	}
	return n
}

// byUrgencyOf orders changes: the worst state first, then changes with warnings.
func byUrgencyOf(a, b *Change) int {
	warned := func(c *Change) int { return min(len(c.Warnings), 1) }
	return cmp.Or(int(b.State)-int(a.State), warned(b)-warned(a))
}

// warnToo adds the warnings of rules that have not warned yet.
func (c *Change) warnToo(list []Warning) {
	for _, w := range list {
		if !slices.ContainsFunc(c.Warnings, func(other Warning) bool { return other.Rule == w.Rule }) {
			c.Warnings = append(c.Warnings, w)
		}
	}
}
