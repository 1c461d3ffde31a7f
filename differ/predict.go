package differ

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
)

// DryRun is the result of a dry run, on an API server, of a change that was planned without it. It
// is set as [State.DryRun], and the object is compared again.
type DryRun struct {
	// Answer is the object after the change; nil if the change was refused or the dry run failed.
	Answer map[string]any
	// Refused lists why the API server would refuse the change (422).
	Refused []Cause
	// Failed is why the result can't be predicted, such as a webhook that takes no dry runs.
	Failed string
}

// Cause is one reason of a refusal, as in the details of a Kubernetes Status.
type Cause struct {
	Field   string // spec.template.spec.containers[0].image; may be empty
	Type    string // FieldValueInvalid, FieldValueForbidden …
	Message string
}

// Addition is a field that the API server would change in addition to git's changes.
type Addition struct {
	// Path in structured-merge-diff syntax.
	Path string `json:"path"`
	// Live and Predicted are nil if absent. Data of Secrets is masked.
	Live      any `json:"live,omitempty"`
	Predicted any `json:"predicted,omitempty"`
}

// ruleRefused is the rule name of a change that the API server would refuse. An approval does not
// change this.
const ruleRefused = "refused"

// foresee applies the result of a dry run, and checks that need no dry run.
func (c *comparison) foresee() {
	if why := c.view.unfit(c.differing); why != "" && c.change.Op != OpNone {
		c.change.refuse(why)
		return
	}
	d := c.state.DryRun
	if d == nil || c.change.Op != OpUpdate && c.change.Op != OpCreate {
		return
	}
	c.change.Unpredicted = d.Failed
	answer := canonical(d.Answer)
	switch {
	case len(d.Refused) > 0 && c.nulls(d.Refused):
	case len(d.Refused) > 0:
		c.refused(d.Refused)
	case d.Answer == nil || checkObject("predicted object", answer) != nil:
	case c.change.Op == OpUpdate && !c.who.read && equal(answer, any(c.live)):
		c.change.Op, c.change.RecordStale, c.change.Unread.Owners = OpNone, false, true
	case c.change.Op == OpUpdate && c.moot(answer):
		c.recordNormalForm()
	default:
		c.change.Admission = c.view.additions(c.live, answer, c.change.Patch, c.removed)
	}
}

// foreseeReplacement holds the replacement of an object that can't be created anew: after its
// deletion the object would be lost.
func (c *comparison) foreseeReplacement() {
	d := c.state.ReplacementDryRun
	if d == nil || c.change.Op != OpReplace {
		return
	}
	named := func(cause Cause) bool { return cause.Field == "metadata.name" } // refused because of the other name in the dry run
	refused := slices.DeleteFunc(slices.Clone(d.Refused), named)
	switch {
	case len(refused) > 0:
		c.change.stop(StateHeld, ruleRefused, "the API server would refuse to create it anew: "+reasons(refused, c.view.mask.secret))
	case d.Answer == nil && len(d.Refused) == 0:
		c.change.stop(StateHeld, ruleRefused, "it is not known whether the API server would create it anew: "+d.Failed)
	}
}

// reasons joins causes. Messages about a secret object are omitted, because they quote its values.
func reasons(causes []Cause, secret bool) string {
	var out []string
	for _, cause := range causes {
		said := cause.Message
		if secret {
			said = cause.Type
		}
		if text := strings.Trim(cause.Field+": "+said, ": "); text != "" {
			out = append(out, text)
		}
	}
	return strings.Join(slices.Compact(out), "; ")
}

// nulls handles the refusal of a map or list that git empties. In a custom resource such a field
// becomes null, which has no type. Then the change without these fields is sent first.
func (c *comparison) nulls(causes []Cause) bool {
	null := func(cause Cause) bool { return cause.Type == "FieldValueTypeInvalid" }
	emptied := c.emptied()
	if c.change.Op != OpUpdate || emptied.Empty() || !slices.ContainsFunc(causes, null) {
		return false
	}
	c.change.First, c.change.DryRunBody = c.without(c.kept.Union(emptied)), nil
	return true
}

// dryRunBody returns the patch with the fields that are handed over: the object after both requests. It
// is nil if ownership is first taken back or over, because one request gives another object.
func (c *comparison) dryRunBody() map[string]any {
	if len(c.change.Migrate) > 0 || !c.dropped.Empty() {
		return nil
	}
	out, _ := carver{c.view.typ.Schema}.graft(c.view.typ.TypeRef, c.change.Patch, orNull(c.change.HandOver)).(map[string]any)
	return out
}

// refused holds a change that the API server would refuse. If the field is immutable, an approval
// lets the object be replaced.
func (c *comparison) refused(causes []Cause) {
	isImmutable := func(cause Cause) bool { return immutableCause(cause, c.state.ID, c.moved) }
	immutable, why := slices.ContainsFunc(causes, isImmutable), reasons(causes, c.view.mask.secret)
	switch {
	case immutable && c.approved():
		c.change.Approved = true
		c.replace()
	case immutable:
		c.change.stop(StateHeld, ruleImmutable, why+": the object would have to be deleted and created anew")
	default:
		c.change.refuse(why)
	}
}

// refuse holds a change that no approval would help.
func (c *Change) refuse(why string) {
	c.stop(StateHeld, ruleRefused, "the API server would refuse it: "+why)
}

// unfit returns where git has a value of another type than the schema; "" if all values fit. It
// checks only values to be set: with an outdated schema, live values would not fit either.
func (v *objectView) unfit(differing []row) string {
	for i := range differing {
		w := &differing[i]
		if why := misfit(v.typ.Schema, w.ref, w.t.value, w.path); why != "" {
			return why
		}
	}
	return ""
}

// immutableCause reports whether a cause is about a field that is known to be immutable, and that
// git changes. The cause must name that field or one above it: a problem inside a field is not
// about the field's change.
func immutableCause(cause Cause, id ID, moved *fieldpath.Set) bool {
	if cause.Field == "" {
		return false
	}
	return slices.ContainsFunc(fixedPaths(id, true), func(path string) bool {
		if !strings.HasPrefix(path+".", "."+cause.Field+".") {
			return false
		}
		p, err := parsePattern(path)
		moves := false
		moved.Iterate(func(at fieldpath.Path) { moves = moves || err == nil && p.matches(at) })
		return moves
	})
}

// moot reports whether the change would leave the object as it is: the API server converts the
// target to the live values, and Keelson owns the same fields as before.
func (c *comparison) moot(answer map[string]any) bool {
	if c.change.HandOver != nil || !equal(answer, any(c.live)) {
		return false
	}
	after, err := readOwners(c.state.ID, c.state.DryRun.Answer)
	return err == nil && after.union(isApplied).Equals(c.who.union(isApplied))
}

// recordNormalForm records the differences of a change without effect as the API server's normal
// form of the target.
func (c *comparison) recordNormalForm() {
	c.change.Normal = slices.Clone(c.state.Normal)
	left := c.change.Fields[:0:0]
	for _, f := range c.change.Fields {
		if stateOf(f.Action) != StateChanged {
			left = append(left, f)
		}
	}
	for i := range c.differing {
		c.change.Normal = append(c.change.Normal, c.view.hashOf(&c.differing[i], c.differing[i].t))
	}
	slices.Sort(c.change.Normal)
	c.change.Normal = slices.Compact(c.change.Normal)
	c.change.Op, c.change.Fields, c.change.Patch = OpNone, left, nil
	c.change.RecordStale = true
	if c.change.State == StateChanged {
		c.change.State = StateSynced
	}
}

// additions returns the fields that differ between live and the API server's answer, and that git did
// not change: neither sent nor removed them.
func (v *objectView) additions(live, answer, sent map[string]any, removed *fieldpath.Set) []Addition {
	var out []Addition
	w := walker{schema: v.typ.Schema, hollow: func(fieldpath.Path) {}, emit: func(w row) {
		live, predicted, sent := w.r, w.t, w.l
		if identity(w.path) || w.same(live, predicted) || predicted.present && w.same(predicted, sent) ||
			!predicted.present && hasPrefix(removed, w.path) {
			return
		}
		out = append(out, Addition{Path: w.path.String(), Live: live.value, Predicted: predicted.value})
	}}
	v.walk(&w, live, answer, sent)
	return out
}

// additionsOf describes in a line how many fields the API server would change in addition.
func additionsOf(list []Addition) string {
	if len(list) == 1 {
		return "the API server would change 1 more field by itself"
	}
	return fmt.Sprintf("the API server would change %d more fields by itself", len(list))
}
