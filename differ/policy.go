package differ

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Policy is what decides about differences, all from git but Scaled.
type Policy struct {
	// Component whose objects are compared.
	Component string
	// AnyComponent takes every recorded object for the component's, whatever
	// its label says: for objects in files, which nobody deletes.
	AnyComponent bool
	// OwnersByRecord takes a live object without managedFields for one of which Keelson owns
	// what was recorded: for objects in files, as kubectl get prints them. Without it such
	// an object is owned by no client at all.
	OwnersByRecord bool
	// Rules in the order in which they are read; see [Rules].
	Rules Rules
	// Adopt lets objects that Keelson never applied be taken over.
	Adopt bool
	// Fence says which objects the component may have; nil: any.
	Fence *Fence
	// Drift is what happens to a person's change; the zero value restores it.
	Drift v1alpha1.Drift
	// Approved holds the hashes of the differences ([Change.Hash]) that git
	// approves, by object as [ID.String] writes it.
	Approved map[string][]string
	// Scaled says what autoscalers of the cluster own of which objects.
	Scaled map[ID]Scaling
	// Cluster holds the labels of the cluster, for the conditions of rules.
	Cluster map[string]string
	// MaskKey keys the hashes that stand for the data of Secrets.
	MaskKey []byte
	// Nodes of the cluster, for the conditions of rules; nil: they are not known, and
	// conditions read null. With NodesReadable a plan asks for them instead, where a
	// condition needs them: see [Change.NodesUnread].
	Nodes         *Nodes
	NodesReadable bool
	// targets are the component's objects for the conditions of rules, by kind; see targetsOf.
	targets func() map[string]any
}

// Scaling is what autoscalers own of an object; a set of bits.
type Scaling uint8

// The bits of [Scaling].
const (
	ScalesReplicas Scaling = 1 << iota // .spec.replicas: an HPA, or KEDA
	ScalesRequests                     // the requests of its containers: a VPA
	ScalesLimits                       // their limits, too
)

// Rules are compiled danger rules; the first that matches decides. The zero value has none.
type Rules struct {
	list []rule
	// readsCluster and sum are for [Policy.Hash].
	readsCluster bool
	sum          [sha256.Size]byte
}

func rulesOf(list []rule) Rules {
	r := Rules{list: list}
	sum := sha256.New()
	for i := range list {
		r.readsCluster = r.readsCluster || ReadsCluster(list[i].When)
		_, _ = sum.Write(list[i].sum[:]) // a hash takes everything
	}
	r.sum = [sha256.Size]byte(sum.Sum(nil))
	return r
}

// Catalogue compiles the built-in rules once for all [Rules] that are made with it: there
// are hundreds of them, and each condition that was asked takes thousands of times the room
// of its text. It is safe for concurrent use; the zero value is ready.
type Catalogue struct {
	mu       sync.Mutex
	env      environment
	own      []rule
	profiles map[v1alpha1.DangerProfile][]rule
}

// compiled returns the rules about Keelson's own objects, and the built-in ones of a profile.
func (c *Catalogue) compiled(profile v1alpha1.DangerProfile) (env environment, own, builtin []rule, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.env == nil {
		env := newEnvironment()
		if c.own, err = ownRules(env); err != nil {
			return nil, nil, nil, err
		}
		c.env, c.profiles = env, map[v1alpha1.DangerProfile][]rule{}
	}
	if _, known := c.profiles[profile]; !known {
		list, err := builtIn(c.env, profile)
		if err != nil {
			return nil, nil, nil, err
		}
		c.profiles[profile] = list
	}
	return c.env, c.own, c.profiles[profile], nil
}

type rule struct {
	v1alpha1.DangerRule
	pattern   pattern
	condition *condition
	message   *condition // its value stands behind Because; nil: there is none
	// applies narrows a built-in rule by what Keelson knows of the cluster.
	applies func(ID, Policy) bool
	// judged rules are about custom resources, and not about a field; see crd.go.
	judged bool
	sum    [sha256.Size]byte // of the DangerRule
}

// Scopes are danger rules by who writes them.
type Scopes struct {
	Fleet, Project, Component []v1alpha1.DangerRule
	// FleetProfile and ComponentProfile say how strict the built-in rules are; empty: not
	// said.
	FleetProfile, ComponentProfile v1alpha1.DangerProfile
	// Fenced says that the component is of a project: its own rules are read last, so
	// that they can add to the others and never loosen them. The same is true of its profile.
	Fenced bool
}

// Profile returns the profile of the built-in rules: the component's, or the fleet's, or
// [v1alpha1.ProfileBaseline]. It is an error for a fenced component to loosen the fleet's.
func (s Scopes) Profile() (v1alpha1.DangerProfile, error) {
	order := []v1alpha1.DangerProfile{v1alpha1.ProfileOff, v1alpha1.ProfileBaseline, v1alpha1.ProfileStrict}
	fleet := cmp.Or(s.FleetProfile, v1alpha1.ProfileBaseline)
	chosen := cmp.Or(s.ComponentProfile, fleet)
	for _, p := range []v1alpha1.DangerProfile{fleet, chosen} {
		if !slices.Contains(order, p) {
			return "", fmt.Errorf("danger profile %q is not known", p)
		}
	}
	if s.Fenced && slices.Index(order, chosen) < slices.Index(order, fleet) {
		return "", fmt.Errorf("danger profile %q: a component of a project can't loosen the fleet's, which is %s", chosen, fleet)
	}
	return chosen, nil
}

// NewRules is that of a [Catalogue] of its own.
func NewRules(s Scopes) (Rules, error) { return new(Catalogue).NewRules(s) }

// NewRules compiles danger rules, and puts the built-in ones behind them. The first that
// matches decides, and they are read in this order: those about Keelson's own objects, what
// the fleet locks, the component's, its project's, the rest of the fleet's, the built-in
// ones. Those of a fenced component come last.
//
// A rule that bears the name of one that is read later replaces it. A component may not
// replace the first two, and a fenced one nothing at all.
//
// A rule that could never match, whose condition is no CEL, or whose effect this
// version does not know, is an error: a danger must not pass because of a typing
// mistake.
func (c *Catalogue) NewRules(s Scopes) (Rules, error) {
	profile, err := s.Profile()
	if err != nil {
		return Rules{}, err
	}
	env, own, catalogue, err := c.compiled(profile)
	if err != nil {
		return Rules{}, err
	}
	fleet, err := compileRules(env, s.Fleet)
	if err != nil {
		return Rules{}, err
	}
	project, err := compileRules(env, s.Project)
	if err != nil {
		return Rules{}, err
	}
	component, err := compileRules(env, s.Component)
	if err != nil {
		return Rules{}, err
	}
	n := Locked(s.Fleet)
	locked, rest := fleet[:n], fleet[n:]
	final := slices.Concat(own, locked)
	order := [][]rule{own, locked, component, project, rest, catalogue}
	if s.Fenced {
		final = slices.Concat(own, fleet, project, catalogue)
		order = [][]rule{own, locked, project, rest, catalogue, component}
	}
	for _, r := range component {
		if slices.ContainsFunc(final, func(f rule) bool { return f.Name != "" && f.Name == r.Name }) {
			return Rules{}, fmt.Errorf("danger rule %q: the component can't replace the rule that bears this name: give its own another one", r.Name)
		}
	}
	var out []rule
	named := map[string]bool{}
	for _, scope := range order {
		for _, r := range scope {
			if r.Name == "" || !named[r.Name] {
				out = append(out, r)
			}
		}
		for _, r := range scope {
			named[r.Name] = true
		}
	}
	return rulesOf(out), nil
}

func compileRules(env environment, rules []v1alpha1.DangerRule) ([]rule, error) {
	out := make([]rule, 0, len(rules))
	for _, r := range rules {
		one, err := newRule(env, r)
		if err != nil {
			return nil, fmt.Errorf("danger rule %q: %w", r.Name, err)
		}
		out = append(out, one)
	}
	return out, nil
}

// Locked counts the rules of a fleet, from the first on, that are read before those of
// components: all down to the last one that is locked. One that denies is, so that an
// exception to it stands above it, in the fleet's own file.
func Locked(fleet []v1alpha1.DangerRule) int {
	for i, r := range slices.Backward(fleet) {
		if r.Locked || r.Effect == v1alpha1.EffectDeny {
			return i + 1
		}
	}
	return 0
}

// BuiltInRules are the rules of a profile that hold without any in git, one a path, in the
// order in which they are read.
func BuiltInRules(profile v1alpha1.DangerProfile) ([]v1alpha1.DangerRule, error) {
	catalogue, err := builtIn(newEnvironment(), profile)
	if err != nil {
		return nil, err
	}
	out := make([]v1alpha1.DangerRule, len(catalogue))
	for i := range catalogue {
		out[i] = catalogue[i].DangerRule
	}
	return out, nil
}

func newRule(env environment, r v1alpha1.DangerRule) (rule, error) {
	p, err := parsePattern(r.Path)
	if err != nil {
		return rule{}, err
	}
	if err := checkWords(r); err != nil {
		return rule{}, err
	}
	if err := CheckMatch(r.Match); err != nil {
		return rule{}, err
	}
	out := rule{DangerRule: r, pattern: p, condition: newWhen(env, r.When, whenCost), judged: r.Name == ruleCRDSchema, sum: sumOf(r)}
	out.message = newMessage(env, r.MessageExpression)
	for _, c := range []*condition{out.condition, out.message} {
		if c == nil {
			continue
		}
		if _, err := c.compile(); err != nil {
			return rule{}, err
		}
	}
	return out, nil
}

// checkWords refuses an effect, scope or event that this version does not know.
func checkWords(r v1alpha1.DangerRule) error {
	switch r.Effect {
	case v1alpha1.EffectKeep, v1alpha1.EffectHold, v1alpha1.EffectDeny, v1alpha1.EffectWarn, v1alpha1.EffectAllow:
	default:
		return fmt.Errorf("effect %q is not known", r.Effect)
	}
	switch r.Scope {
	case "", v1alpha1.ScopeObject:
	case v1alpha1.ScopeField:
		if r.Effect != v1alpha1.EffectHold {
			return fmt.Errorf("scope %q is for hold, and the effect is %s", r.Scope, r.Effect)
		}
	default:
		return fmt.Errorf("scope %q is not known", r.Scope)
	}
	for _, event := range r.On {
		switch event {
		case v1alpha1.OnAdd, v1alpha1.OnChange, v1alpha1.OnRemove, v1alpha1.OnDeleteObject, v1alpha1.OnCreateObject:
		default:
			return fmt.Errorf("event %q is not known", event)
		}
	}
	return nil
}

// finding is a rule that decides.
type finding struct {
	*rule
	// inside says that the field is a value that can only be changed as a whole
	// and that holds what the rule names.
	inside bool
	// failed is why the rule's condition has no answer. It counts as true.
	failed error
	// said is the value of the rule's message; empty without one.
	said string
}

// effect is what the rule does. A rule whose condition has no answer lets
// nothing pass, unless it only warns.
func (f finding) effect() v1alpha1.Effect {
	if f.failed != nil && f.Effect != v1alpha1.EffectDeny && f.Effect != v1alpha1.EffectWarn {
		return v1alpha1.EffectHold
	}
	return f.Effect
}

func (f finding) because() string {
	if f.failed != nil {
		return fmt.Sprintf("%s (whether it applies is not known: %v)", f.Because, f.failed)
	}
	if f.said != "" {
		return fmt.Sprintf("%s (%s)", f.Because, f.said)
	}
	return f.Because
}

// find returns the first rule that decides about an event at a field; it is not ok without
// one. An object's deletion and creation have no field. Rules that warn decide nothing:
// those before it that fire are left in fired.
//
// The field may also be a value that can only be changed as a whole and that
// holds what the rule names: an atomic list. Then the rule counts if target and
// live differ there.
func (c *comparison) find(event v1alpha1.Event, w *row) (finding, bool) {
	c.fired = c.fired[:0]
	onlyDeny := false // what else there is to say was said, on a creation, by a rule that holds
	for _, r := range c.applicable() {
		if r.judged || onlyDeny && r.Effect != v1alpha1.EffectDeny && r.Effect != v1alpha1.EffectAllow {
			continue
		}
		if err := c.effort.spend(1); err != nil {
			return finding{rule: r, failed: err}, true
		}
		f, fires := c.ask(r, event, w)
		switch {
		case !fires:
			continue
		case c.decides(f):
			return f, true
		case r.Effect == v1alpha1.EffectWarn || f.effect() == v1alpha1.EffectHold && r.on(v1alpha1.OnCreateObject):
			c.fired = append(c.fired, f)
		}
		onlyDeny = onlyDeny || f.effect() != v1alpha1.EffectWarn
	}
	return finding{}, false
}

// ask reports whether a rule fires, and notes the trial where the rule is about the place.
func (c *comparison) ask(r *rule, event v1alpha1.Event, w *row) (finding, bool) {
	rest, ok := pattern(nil), event != v1alpha1.OnCreateObject || r.Path == ""
	if w != nil {
		rest, ok = r.concerns(w)
	}
	if !ok {
		return finding{}, false
	}
	if !c.asked(r, event) {
		c.tried(r, event, w, OutcomeOtherEvent)
		return finding{}, false
	}
	yes, said, err := c.applies(r, w, rest)
	if !yes && err == nil {
		c.tried(r, event, w, OutcomeCondition)
		return finding{}, false
	}
	c.tried(r, event, w, OutcomeFires)
	return finding{rule: r, inside: len(rest) > 0, failed: err, said: said}, true
}

// decides reports whether a rule that fires ends the search. On a creation only those that
// deny and allow do: nothing is held, there is no live value to keep, and a rule that holds
// is no exception to one that denies.
func (c *comparison) decides(f finding) bool {
	switch f.effect() {
	case v1alpha1.EffectWarn:
		return false
	case v1alpha1.EffectHold, v1alpha1.EffectKeep:
		return c.live != nil
	case v1alpha1.EffectDeny, v1alpha1.EffectAllow:
	}
	return true
}

// asked reports whether a rule is about an event. On a creation every field is added: a
// rule that warns is asked only where it names the creation, and not for each add-on anew.
// One without a path is about the object as a whole.
func (c *comparison) asked(r *rule, event v1alpha1.Event) bool {
	if c.live == nil && event == v1alpha1.OnAdd {
		return r.Path != "" && r.on(v1alpha1.OnCreateObject) || r.Effect != v1alpha1.EffectWarn && r.on(event)
	}
	if c.imagined && event == v1alpha1.OnAdd && (r.Effect == v1alpha1.EffectHold || r.Effect == v1alpha1.EffectDeny) {
		// What the API server had filled in is not in the record: the field may be changed.
		return r.on(event) || r.on(v1alpha1.OnChange)
	}
	return r.on(event)
}

// applicable are the rules for the object.
func (c *comparison) applicable() []*rule {
	if c.rules != nil {
		return c.rules
	}
	c.rules = []*rule{}
	id := c.state.ID
	for i := range c.policy.Rules.list {
		r := &c.policy.Rules.list[i]
		if Matches(r.Match, id) && (r.applies == nil || r.applies(id, c.policy)) {
			c.rules = append(c.rules, r)
		}
	}
	return c.rules
}

// concerns reports whether a row is what the rule's path names, lies below it,
// or holds it; then inside is the path from there on.
func (r *rule) concerns(w *row) (inside pattern, ok bool) {
	rest, ok := r.pattern.along(w.path)
	if !ok {
		return nil, false
	}
	if len(rest) == 0 {
		// A node port does not keep the port that left git.
		return nil, r.Effect != v1alpha1.EffectKeep || w.gone == 0 || r.pattern.matches(w.path[:w.gone])
	}
	return rest, !equal(rest.collect(w.t.value), rest.collect(w.l.value))
}

// applies asks the rule's condition. Where it is true, said is the rule's message.
func (c *comparison) applies(r *rule, w *row, inside pattern) (yes bool, said string, _ error) {
	if c.lacksNodes(r) {
		return false, "", nil
	}
	if c.unanswerable(r) {
		return false, "", errStatusGone
	}
	list := []values{{old: orNull(c.mask.of(c.live))}}
	if w != nil {
		list = changes(w, inside)
	}
	for _, v := range list {
		if r.condition != nil {
			yes, cost, err := r.condition.holds(c.facts(v))
			if spent := c.effort.spend(conditionEffort + cost); spent != nil {
				return false, "", spent
			}
			if err != nil {
				return yes, "", err
			}
			if !yes {
				continue
			}
		}
		said, err := c.say(r, v)
		return true, said, err
	}
	return r.condition == nil, "", nil
}

// say returns the rule's message about one change.
func (c *comparison) say(r *rule, v values) (string, error) {
	if r.message == nil {
		return "", nil
	}
	text, cost := r.message.text(c.facts(v))
	if err := c.effort.spend(conditionEffort + cost); err != nil {
		return "", err
	}
	return text, nil
}

// lacksNodes reports whether a rule reads nodes that are still to be read, and notes that.
func (c *comparison) lacksNodes(r *rule) bool {
	if c.policy.Nodes != nil || !c.policy.NodesReadable || !r.condition.reads("nodes") && !r.message.reads("nodes") {
		return false
	}
	if c.live == nil && !r.on(v1alpha1.OnCreateObject) && (r.Effect == v1alpha1.EffectHold || r.Effect == v1alpha1.EffectKeep) {
		return false // it decides nothing about a creation
	}
	c.change.NodesUnread = true
	return true
}

func (r *rule) on(event v1alpha1.Event) bool {
	if len(r.On) == 0 {
		return event != v1alpha1.OnDeleteObject && event != v1alpha1.OnCreateObject
	}
	return slices.Contains(r.On, event)
}

const coreGroup = v1alpha1.GroupCore

// Matches reports whether a rule is about an object.
func Matches(m v1alpha1.ObjectMatch, id ID) bool {
	return m.Matches(id.Group, id.Kind, id.Namespace, id.Name)
}

// CheckMatch returns an error for a pattern that could never match.
func CheckMatch(m v1alpha1.ObjectMatch) error {
	for _, pattern := range append([]string{m.Group, m.Namespace, m.Name}, m.Kinds...) {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("match %q: %w", pattern, err)
		}
	}
	return nil
}

// ID names an object regardless of its version.
type ID struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Identify reads which object it is, and in which version.
func Identify(object map[string]any) (ID, schema.GroupVersionKind) {
	apiVersion, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	namespace, _ := metadata["namespace"].(string)
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	return ID{Group: gvk.Group, Kind: kind, Namespace: namespace, Name: name}, gvk
}

// String is KIND.GROUP NAMESPACE/NAME.
func (id ID) String() string {
	return schema.GroupKind{Group: id.Group, Kind: id.Kind}.String() + " " + id.NamespacedName()
}

// NamespacedName is NAMESPACE/NAME, or NAME of a cluster-scoped object.
func (id ID) NamespacedName() string {
	if id.Namespace == "" {
		return id.Name
	}
	return id.Namespace + "/" + id.Name
}
