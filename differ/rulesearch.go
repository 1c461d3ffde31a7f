package differ

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ/expr"
)

// ruleSearch finds the danger rules that fire on one object. It reads the object, and changes nothing
// of its plan: the caller decides what follows from a rule.
type ruleSearch struct {
	id     ID
	policy *Policy
	effort *effort // each rule and condition is paid for; its error ends the search
	mask   mask
	// The object, canonical: nil if absent.
	live, target map[string]any
	status       map[string]any // of the live object
	// version means that the object is a version of a ConfigMap or Secret, and has the name that the
	// chart gives it. Other objects then refer to that name.
	version bool
	// imagined means that live is the recorded object, and that no object exists.
	imagined bool
	// unread notes what a rule needs and the search lacks.
	unread *Unread
	// fired are the rules that fire and do not decide, of the last search.
	fired []finding
	// tracing means that trials are wanted.
	tracing bool
	trials  []Trial

	list []*rule // rules for the object; nil until a field needs them
	// beside has the rules whose patterns go along with a path, for the parents of fields: the fields of a
	// container share most of their path.
	beside map[string][]*rule
	// lastNear are those of lastParent, the parent of the last field.
	lastParent fieldpath.Path
	lastNear   []*rule
	known      map[string]any // variables of conditions that are the same for all fields
	// answers of conditions that read no value of a field.
	answers map[*expr.Expression]answer
}

// answer is the result of a condition.
type answer struct {
	yes bool
	err error
}

// find returns the first rule that decides about an event at a field; it is not ok without such a
// rule. An object's deletion and creation have no field. Rules that fire before the deciding rule
// are left in fired: rules that warn, and rules that would hold a creation.
//
// The field may also be a value that can only be changed as a whole and that contains the rule's
// path: an atomic list. Then the rule counts if target and live differ at that path.
func (s *ruleSearch) find(event v1alpha1.Event, w *row) (finding, bool) {
	s.fired = s.fired[:0]
	onlyDeny := false // on a creation, once a rule that holds or keeps has fired
	for _, r := range s.near(w) {
		if r.judged || onlyDeny && r.Effect != v1alpha1.EffectDeny && r.Effect != v1alpha1.EffectAllow {
			continue
		}
		if err := s.effort.spend(1); err != nil {
			return finding{rule: r, failed: err}, true
		}
		f, fires := s.evaluate(r, event, w)
		switch {
		case !fires:
			continue
		case s.decides(f):
			return f, true
		case r.Effect == v1alpha1.EffectWarn || f.effect() == v1alpha1.EffectHold && r.on(v1alpha1.OnCreateObject):
			s.fired = append(s.fired, f)
		}
		onlyDeny = onlyDeny || f.effect() != v1alpha1.EffectWarn
	}
	return finding{}, false
}

// evaluate reports whether a rule fires, and records the trial if the rule's path matches.
func (s *ruleSearch) evaluate(r *rule, event v1alpha1.Event, w *row) (finding, bool) {
	rest, ok := pattern(nil), event != v1alpha1.OnCreateObject || r.Path == ""
	if w != nil {
		rest, ok = r.concerns(w)
	}
	if !ok {
		return finding{}, false
	}
	if !s.concerns(r, event) {
		s.tried(r, event, w, OutcomeOtherEvent)
		return finding{}, false
	}
	yes, said, err := s.applies(r, w, rest)
	if !yes && err == nil {
		s.tried(r, event, w, OutcomeCondition)
		return finding{}, false
	}
	s.tried(r, event, w, OutcomeFires)
	return finding{rule: r, inside: len(rest) > 0, failed: err, said: said}, true
}

// decides reports whether a rule that fires ends the search. On a creation, only rules that deny or
// allow do. Nothing is held, there is no live value to keep, and a rule that holds is no exception
// to a rule that denies.
func (s *ruleSearch) decides(f finding) bool {
	switch f.effect() {
	case v1alpha1.EffectWarn:
		return false
	case v1alpha1.EffectHold, v1alpha1.EffectKeep:
		return s.live != nil
	case v1alpha1.EffectDeny, v1alpha1.EffectAllow:
	}
	return true
}

// concerns reports whether a rule is about an event. On a creation every field is added. Then a rule
// that warns is asked only if it names the creation, so that not every new add-on has warnings. A
// rule without a path is about the object as a whole.
func (s *ruleSearch) concerns(r *rule, event v1alpha1.Event) bool {
	if s.live == nil && event == v1alpha1.OnAdd {
		return r.Path != "" && r.on(v1alpha1.OnCreateObject) || r.Effect != v1alpha1.EffectWarn && r.on(event)
	}
	if s.imagined && event == v1alpha1.OnAdd && (r.Effect == v1alpha1.EffectHold || r.Effect == v1alpha1.EffectDeny) {
		// The record lacks the API server's defaults, so a field that seems added may be changed.
		return r.on(event) || r.on(v1alpha1.OnChange)
	}
	return r.on(event)
}

// applicable returns the rules that match the object.
func (s *ruleSearch) applicable() []*rule {
	if s.list != nil {
		return s.list
	}
	s.list = []*rule{}
	for i := range s.policy.Rules.list {
		r := &s.policy.Rules.list[i]
		if Matches(r.Match, s.id) && (r.scaling == 0 || s.policy.Scaled[s.id]&r.scaling != 0) {
			s.list = append(s.list, r)
		}
	}
	return s.list
}

// near returns the applicable rules that may concern a row, in their order; nil: all.
func (s *ruleSearch) near(w *row) []*rule {
	if w == nil || len(w.path) == 0 {
		return s.applicable()
	}
	if parent := w.path[:len(w.path)-1]; s.lastNear == nil || !parent.Equals(s.lastParent) { // fields of one parent follow each other
		s.lastParent, s.lastNear = parent, s.along(parent)
	}
	return s.lastNear
}

// along returns the applicable rules whose patterns go along with a path.
func (s *ruleSearch) along(path fieldpath.Path) []*rule {
	if len(path) == 0 {
		return s.applicable()
	}
	key := path.String()
	found, known := s.beside[key]
	if known {
		return found
	}
	found = []*rule{}
	for _, r := range s.along(path[:len(path)-1]) {
		if _, ok := r.pattern.along(path); ok {
			found = append(found, r)
		}
	}
	if s.beside == nil {
		s.beside = map[string][]*rule{}
	}
	s.beside[key] = found
	return found
}

// findJudged returns the first rule on custom resources. A condition that can't be evaluated counts
// as true.
func (s *ruleSearch) findJudged(w *row) *rule {
	for _, r := range s.applicable() {
		if !r.judged || !r.on(event(w)) {
			continue
		}
		if yes, _, err := s.applies(r, w, nil); yes || err != nil {
			return r
		}
		s.tried(r, event(w), nil, OutcomeCondition)
	}
	return nil
}

// applies evaluates the rule's condition. If it is true, said is the rule's message.
func (s *ruleSearch) applies(r *rule, w *row, inside pattern) (yes bool, said string, _ error) {
	if s.lacksNodes(r) {
		return false, "", nil
	}
	if s.unanswerable(r) {
		return false, "", errStatusGone
	}
	list := []values{{old: orNull(s.mask.apply(s.live))}}
	if w != nil {
		list = changes(w, inside)
	}
	for _, v := range list {
		if r.condition != nil {
			yes, err := s.holds(r.condition, v)
			if err != nil {
				return yes, "", err
			}
			if !yes {
				continue
			}
		}
		said, err := s.messageOf(r, v)
		return true, said, err
	}
	return r.condition == nil, "", nil
}

// holds evaluates a condition for one change. A condition that reads no value of the change has one
// answer for the object: it is evaluated once, however many fields change.
func (s *ruleSearch) holds(c *expr.Expression, v values) (bool, error) {
	if known, ok := s.answers[c]; ok {
		return known.yes, known.err
	}
	yes, cost, err := c.Holds(s.facts(v))
	if spent := s.effort.spend(conditionEffort + cost); spent != nil {
		return false, spent
	}
	if !c.ReadsAny("old", "new", "recorded") {
		if s.answers == nil {
			s.answers = map[*expr.Expression]answer{}
		}
		s.answers[c] = answer{yes, err}
	}
	return yes, err
}

// messageOf returns the rule's message about one change.
func (s *ruleSearch) messageOf(r *rule, v values) (string, error) {
	if r.message == nil {
		return "", nil
	}
	text, cost := r.message.Text(s.facts(v))
	if err := s.effort.spend(conditionEffort + cost); err != nil {
		return "", err
	}
	return text, nil
}

// lacksNodes reports whether a rule needs nodes that are still to be read, and notes it.
func (s *ruleSearch) lacksNodes(r *rule) bool {
	if s.policy.Nodes != nil || !s.policy.NodesReadable || !r.condition.Reads("nodes") && !r.message.Reads("nodes") {
		return false
	}
	if s.live == nil && !r.on(v1alpha1.OnCreateObject) && (r.Effect == v1alpha1.EffectHold || r.Effect == v1alpha1.EffectKeep) {
		return false // the rule decides nothing about a creation
	}
	s.unread.Nodes = true
	return true
}

// unanswerable reports whether a rule that holds or denies reads what went with the object. Not
// to know the status is no answer.
func (s *ruleSearch) unanswerable(r *rule) bool {
	stops := r.Effect == v1alpha1.EffectHold || r.Effect == v1alpha1.EffectDeny
	return s.imagined && stops && r.condition.Reads("status")
}

// tried records a trial if the comparison is tracing.
func (s *ruleSearch) tried(r *rule, event v1alpha1.Event, w *row, outcome Outcome) {
	if !s.tracing {
		return
	}
	t := Trial{ID: s.id, Event: event, Rule: r.Name, Outcome: outcome}
	if w != nil {
		t.Path = w.path.String()
	}
	s.trials = append(s.trials, t)
}

// facts returns the variables of a condition for one change.
func (s *ruleSearch) facts(v values) map[string]any {
	if s.known == nil {
		live, object := s.mask.apply(s.live), s.mask.apply(s.target)
		if object == nil {
			object = live
		}
		labels := s.policy.Cluster
		if labels == nil {
			labels = map[string]string{}
		}
		objects := map[string]any{}
		switch {
		case s.version && s.policy.plainTargets != nil:
			objects = s.policy.plainTargets()
		case s.policy.targets != nil:
			objects = s.policy.targets()
		}
		s.known = map[string]any{
			"object": s.stored(orNull(object)), "live": s.stored(orNull(live)), "status": s.stored(orNull(s.status)), "objects": objects,
			"cluster": map[string]any{"labels": labels}, "nodes": s.policy.Nodes.Value(),
		}
	}
	facts := make(map[string]any, len(s.known)+3)
	maps.Copy(facts, s.known)
	facts["recorded"], facts["old"], facts["new"] = s.stored(v.recorded), s.stored(v.old), s.stored(v.target)
	return facts
}

// stored returns a part of the object as the API server stores it: see storedOf.
func (s *ruleSearch) stored(v any) any { return storedOf(s.id.Group, v) }

// values are the values of one change for a condition, nil if absent.
type values struct{ recorded, old, target any }

// Among returns the policy for a comparison of some of the given objects: conditions of its rules
// then read the targets of all given objects. Without Among, conditions read only the compared
// objects.
func (p Policy) Among(states []State) Policy {
	p.targets = targetsOf(states, p.MaskKey, canonical)
	p.plainTargets = targetsOf(states, p.MaskKey, plainOf(states))
	return p
}

// targetsOf returns the component's target objects by kind, in the order of states, with the data
// of Secrets masked. They are made when the first condition reads them, once for all objects of a
// comparison.
func targetsOf(states []State, maskKey []byte, form func(map[string]any) map[string]any) func() map[string]any {
	return sync.OnceValue(func() map[string]any {
		lists := map[string][]any{}
		for i := range states {
			s := &states[i]
			if s.Target == nil {
				continue
			}
			object := maskFor(s.ID, maskKey).apply(form(s.Target.Content))
			lists[s.ID.Kind] = append(lists[s.ID.Kind], storedOf(s.ID.Group, orNull(object)))
		}
		out := make(map[string]any, len(lists))
		for kind, list := range lists {
			out[kind] = list
		}
		return out
	})
}

// storedOf returns a value without the fields that are null: the API server stores no nulls for its
// own kinds, and conditions would fail on them. A custom resource may have fields that can be null.
func storedOf(group string, v any) any {
	if strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") {
		return v
	}
	out, _ := withoutNulls(v)
	return out
}

// withoutNulls returns a value without the fields of its maps that are null, and whether it had any.
// The value is not modified, and is returned itself if it had none.
func withoutNulls(v any) (out any, had bool) {
	switch v := v.(type) {
	case map[string]any:
		return mapWithoutNulls(v)
	case []any:
		var left []any
		for i, child := range v {
			kept, had := withoutNulls(child)
			if !had {
				continue
			}
			if left == nil {
				left = slices.Clone(v)
			}
			left[i] = kept
		}
		if left != nil {
			return left, true
		}
	}
	return v, false
}

func mapWithoutNulls(v map[string]any) (out any, had bool) {
	var left map[string]any
	for name, child := range v {
		kept, had := withoutNulls(child)
		if child != nil && !had {
			continue
		}
		if left == nil {
			left = maps.Clone(v)
		}
		if left[name] = kept; child == nil {
			delete(left, name)
		}
	}
	if left == nil {
		return v, false
	}
	return left, true
}

// orNull returns an untyped nil for a nil map, which would otherwise be an empty map.
func orNull(object map[string]any) any {
	if object == nil {
		return nil
	}
	return object
}

// changes returns the values for which a rule's condition is evaluated. The path may lie inside a
// value that only changes as a whole. Then a new value there has no old value, and a removed value
// has no new value, because items of such a list have no identity.
func changes(w *row, inside pattern) []values {
	if len(inside) == 0 {
		return []values{{recorded: w.r.value, old: w.l.value, target: w.t.value}}
	}
	var out []values
	live, target := inside.collect(w.l.value), inside.collect(w.t.value)
	for _, v := range notIn(live, target) {
		out = append(out, values{target: v})
	}
	for _, v := range notIn(target, live) {
		out = append(out, values{old: v})
	}
	return out
}

// notIn returns the values of list that other lacks, or has less often: a second container that is
// privileged counts as new.
func notIn(other, list []any) []any {
	has := make(map[string]int, len(other))
	for _, v := range other {
		has[string(appendKey(nil, v))]++
	}
	var out []any
	for _, v := range list {
		if key := string(appendKey(nil, v)); has[key] > 0 {
			has[key]--
		} else {
			out = append(out, v)
		}
	}
	return out
}

// Outcome is the result of a rule at a change that matches the rule's path.
type Outcome string

// The values of [Outcome].
const (
	OutcomeFires      Outcome = "fires"
	OutcomeCondition  Outcome = "condition is false"
	OutcomeOtherEvent Outcome = "other event"
)

// Trial is one rule's result for one change. On a create, only a rule that denies stops anything.
type Trial struct {
	ID ID `json:"object"`
	// Path of the field; empty for the object as a whole.
	Path    string         `json:"path,omitempty"`
	Event   v1alpha1.Event `json:"event"`
	Rule    string         `json:"rule"`
	Outcome Outcome        `json:"outcome"`
}

// Try returns the rules that fire on the changes that [Compare] finds. It also returns rules that
// match the object and path but do not fire, up to the rule that decides. The order is that of the
// objects, their fields, and the rules. Errors are those of [Compare], but for [*DuplicateError]:
// Try does not check for duplicates.
func Try(ctx context.Context, schemas Schemas, states []State, policy Policy) ([]Trial, error) {
	states = slices.Clone(states)
	slices.SortFunc(states, func(a, b State) int { return CompareIDs(a.ID, b.ID) })
	policy = policy.Among(states)
	var out []Trial
	effort := newEffort(ctx, compareEffort)
	for _, s := range states {
		if err := effort.spend(checkEvery); err != nil {
			return nil, fmt.Errorf("%s: %w", s.ID, err)
		}
		c := newComparison(schemas, s, policy, effort)
		c.rules.tracing = true
		if err := c.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.ID, err)
		}
		out = append(out, c.rules.trials...)
	}
	return out, nil
}
