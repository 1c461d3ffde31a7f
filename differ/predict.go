package differ

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
)

// DryRun is what an API server said to a dry run of a change that was planned
// without it. It goes into [State.DryRun], and the object is compared again.
type DryRun struct {
	// Answer is the object as the change would leave it; nil when it was refused.
	Answer map[string]any
	// Refused is why the API server would not take the change (422).
	Refused []Cause
	// Failed is why nothing can be foretold: a webhook that takes no dry runs.
	Failed string
}

// Cause is one reason of a refusal, as in the details of a Kubernetes Status.
type Cause struct {
	Field   string // spec.template.spec.containers[0].image; may be empty
	Type    string // FieldValueInvalid, FieldValueForbidden …
	Message string
}

// Addition is a field that the API server would change by itself.
type Addition struct {
	// Path in structured-merge-diff syntax.
	Path string `json:"path"`
	// Live and Predicted are nil where absent; data of Secrets is masked.
	Live      any `json:"live,omitempty"`
	Predicted any `json:"predicted,omitempty"`
}

// ruleRefused is the name under which a change stands that the API server would
// refuse, whatever is approved.
const ruleRefused = "refused"

// foresee takes in what a dry run has said, and what needs none.
func (c *comparison) foresee() {
	if why := c.unfit(); why != "" && c.change.Op != OpNone {
		c.refuse(why)
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
		c.change.Op, c.change.RecordStale, c.change.OwnersUnread = OpNone, false, true
	case c.change.Op == OpUpdate && c.moot(answer):
		c.settle()
	default:
		c.change.Admission = c.additions(answer)
	}
}

// foreseeRecreation holds the replacement of an object that could not be created
// anew: it would be gone.
func (c *comparison) foreseeRecreation() {
	d := c.state.Recreation
	if d == nil || c.change.Op != OpReplace {
		return
	}
	named := func(cause Cause) bool { return cause.Field == "metadata.name" } // the other name
	refused := slices.DeleteFunc(slices.Clone(d.Refused), named)
	switch {
	case len(refused) > 0:
		c.change.stop(StateHeld, ruleRefused, "the API server would refuse to create it anew: "+c.reasons(refused))
	case d.Answer == nil && len(d.Refused) == 0:
		c.change.stop(StateHeld, ruleRefused, "it is not known whether the API server would create it anew: "+d.Failed)
	}
}

// reasons joins causes. What is said of a Secret quotes its values.
func (c *comparison) reasons(causes []Cause) string {
	var out []string
	for _, cause := range causes {
		said := cause.Message
		if c.mask.secret {
			said = cause.Type
		}
		if text := strings.Trim(cause.Field+": "+said, ": "); text != "" {
			out = append(out, text)
		}
	}
	return strings.Join(slices.Compact(out), "; ")
}

// nulls takes a refusal for that of a map or list that git empties: a custom
// resource's becomes null then, which is of no type. It has to go first.
func (c *comparison) nulls(causes []Cause) bool {
	null := func(cause Cause) bool { return cause.Type == "FieldValueTypeInvalid" }
	emptied := c.emptied()
	if c.change.Op != OpUpdate || emptied.Empty() || !slices.ContainsFunc(causes, null) {
		return false
	}
	c.change.First, c.change.Probe = c.without(c.kept.Union(emptied)), nil
	return true
}

// probe is the patch with what is handed over: the object that both leave. Where
// ownership is taken back or over first, one request leaves another object.
func (c *comparison) probe() map[string]any {
	if len(c.change.Migrate) > 0 || !c.dropped.Empty() {
		return nil
	}
	out, _ := carver{c.typ.Schema}.graft(c.typ.TypeRef, c.change.Patch, orNull(c.change.HandOver)).(map[string]any)
	return out
}

// refused holds what the API server would refuse. What no update can change may
// be approved: then the object is replaced.
func (c *comparison) refused(causes []Cause) {
	immutable, why := slices.ContainsFunc(causes, c.immutableCause), c.reasons(causes)
	switch {
	case immutable && c.approved():
		c.change.Approved = true
		c.replace()
	case immutable:
		c.change.stop(StateHeld, ruleImmutable, why+": the object would have to be deleted and created anew")
	default:
		c.refuse(why)
	}
}

func (c *comparison) refuse(why string) {
	c.change.stop(StateHeld, ruleRefused, "the API server would refuse it: "+why)
}

// unfit says where git wants a value of another type than the schema; "" where
// all fit. Only what is to be set is asked: were the schema out of date, live
// would have such a value, too.
func (c *comparison) unfit() string {
	for i := range c.differing {
		w := &c.differing[i]
		if why := misfit(c.typ.Schema, w.ref, w.t.value, w.path); why != "" {
			return why
		}
	}
	return ""
}

// immutableCause reports whether a cause is about a field that is known to be
// immutable, and that git moves. It names that field or one above it: what is
// wrong inside of a field is no matter of changing it.
func (c *comparison) immutableCause(cause Cause) bool {
	if cause.Field == "" {
		return false
	}
	return slices.ContainsFunc(fixedPaths(c.state.ID, true), func(path string) bool {
		if !strings.HasPrefix(path+".", "."+cause.Field+".") {
			return false
		}
		p, err := parsePattern(path)
		moved := false
		c.moved.Iterate(func(at fieldpath.Path) { moved = moved || err == nil && p.matches(at) })
		return moved
	})
}

// moot reports whether the object would stay as it is: the wanted values are
// what the API server makes its live ones of, and Keelson owns them.
func (c *comparison) moot(answer map[string]any) bool {
	if c.change.HandOver != nil || !equal(answer, any(c.live)) {
		return false
	}
	after, err := readOwners(c.state.ID, c.state.DryRun.Answer)
	return err == nil && after.union(isApplied).Equals(c.who.union(isApplied))
}

// settle remembers the differences of a change that changes nothing as the API
// server's normal form of the target.
func (c *comparison) settle() {
	c.change.Normal = slices.Clone(c.state.Normal)
	left := c.change.Fields[:0:0]
	for _, f := range c.change.Fields {
		if stateOf(f.Action) != StateChanged {
			left = append(left, f)
		}
	}
	for i := range c.differing {
		c.change.Normal = append(c.change.Normal, c.hash(&c.differing[i], c.differing[i].t))
	}
	slices.Sort(c.change.Normal)
	c.change.Normal = slices.Compact(c.change.Normal)
	c.change.Op, c.change.Fields, c.change.Patch = OpNone, left, nil
	c.change.RecordStale = true
	if c.change.State == StateChanged {
		c.change.State = StateSynced
	}
}

// additions are the fields that the answer has otherwise than live, and that git
// did not ask for.
func (c *comparison) additions(answer map[string]any) []Addition {
	var out []Addition
	w := walker{schema: c.typ.Schema, hollow: func(fieldpath.Path) {}, emit: func(w row) {
		live, predicted, sent := w.r, w.t, w.l
		if identity(w.path) || w.same(live, predicted) || predicted.present && w.same(predicted, sent) ||
			!predicted.present && hasPrefix(c.removed, w.path) {
			return
		}
		out = append(out, Addition{Path: w.path.String(), Live: live.value, Predicted: predicted.value})
	}}
	side := func(object map[string]any) cell {
		return cell{value: c.mask.of(object), present: object != nil}
	}
	w.walk(make(fieldpath.Path, 0, pathCapacity), c.typ.TypeRef, side(c.live), side(answer), side(c.change.Patch))
	return out
}

// additionsOf says in a line what the API server would change by itself.
func additionsOf(list []Addition) string {
	if len(list) == 1 {
		return "the API server would change 1 more field by itself"
	}
	return fmt.Sprintf("the API server would change %d more fields by itself", len(list))
}
