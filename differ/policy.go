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
	"github.com/keelson-io/keelson/differ/expr"
)

// Policy holds the inputs of decisions about differences: settings from git, and facts of the
// cluster.
type Policy struct {
	// Component is the name of the component whose objects are compared.
	Component string
	// AnyComponent treats every recorded object as the component's, whatever its label: for objects
	// in files, which are never deleted.
	AnyComponent bool
	// OwnersByRecord assumes that Keelson owns the recorded fields of a live object without
	// managedFields: for objects in files, as kubectl get prints them. Without OwnersByRecord such
	// an object has no owner.
	OwnersByRecord bool
	// Rules in the order in which they are read; see [Rules].
	Rules Rules
	// Adopt allows the component to own existing objects that Keelson never applied.
	Adopt bool
	// Limits limits the objects that the component may have; nil: no limit.
	Limits *ProjectLimits
	// Drift decides about a person's change; the zero value restores the field.
	Drift v1alpha1.Drift
	// Approved holds the hashes ([Change.Hash]) of the differences that git approves. Keys are
	// objects in the form of [ID.String].
	Approved map[string][]string
	// Scaled holds the fields of each object that autoscalers of the cluster own.
	Scaled map[ID]Scaling
	// Cluster holds the labels of the cluster, for the conditions of rules.
	Cluster map[string]string
	// MaskKey is the key of the hashes that replace the data of Secrets.
	MaskKey []byte
	// Nodes of the cluster, for the conditions of rules; nil: not known, and conditions read null.
	// With NodesReadable, a plan whose conditions need unknown nodes asks for them: see
	// [Change.Unread].
	Nodes         *expr.Nodes
	NodesReadable bool
	// targets returns the component's objects for the conditions of rules, by kind; see targetsOf.
	targets func() map[string]any
	// plainTargets returns them with the names that the chart gives to versioned ConfigMaps and Secrets.
	plainTargets func() map[string]any
	// versions returns the versions of ConfigMaps and Secrets among the compared objects.
	versions func() *configVersions
}

// Scaling is a set of bits: the fields of an object that autoscalers own.
type Scaling uint8

// The bits of [Scaling].
const (
	ScalesReplicas Scaling = 1 << iota // .spec.replicas: owned by an HPA, or KEDA
	ScalesRequests                     // the requests of the containers: owned by a VPA
	ScalesLimits                       // the limits of the containers: owned by a VPA
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
		_, _ = sum.Write(list[i].sum[:]) // a hash never fails
	}
	r.sum = [sha256.Size]byte(sum.Sum(nil))
	return r
}

// Catalogue compiles the built-in rules once for all its [Rules]. There are hundreds of built-in
// rules, and each compiled condition takes thousands of times the memory of its text. Catalogue is
// safe for concurrent use; the zero value is ready.
type Catalogue struct {
	mu       sync.Mutex
	env      expr.Environment
	own      []rule
	profiles map[v1alpha1.DangerProfile][]rule
}

// compiled returns the rules about Keelson's own objects, and the built-in rules of a profile.
func (c *Catalogue) compiled(profile v1alpha1.DangerProfile) (env expr.Environment, own, builtin []rule, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.env == nil {
		env := expr.NewEnvironment()
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
	condition *expr.Expression
	message   *expr.Expression // its value follows Because; nil: no message
	// scaling is what an autoscaler must own of the object for the rule to apply; 0: nothing.
	scaling Scaling
	// judged rules are about custom resources, and not about a field; see crd.go.
	judged bool
	sum    [sha256.Size]byte // of the DangerRule
}

// Scopes are danger rules by their place in git.
type Scopes struct {
	Fleet, Project, Component []v1alpha1.DangerRule
	// FleetProfile and ComponentProfile are profiles of the built-in rules; empty: not set.
	FleetProfile, ComponentProfile v1alpha1.DangerProfile
	// InProject means that the component is in a project. Its own rules are read last: they can add to
	// the other rules, but never loosen them. The same is true of its profile.
	InProject bool
}

// Profile returns the profile of the built-in rules: the component's, else the fleet's, else
// [v1alpha1.ProfileBaseline]. It is an error if a profile is not known, or if a fenced component
// loosens the fleet's profile.
func (s Scopes) Profile() (v1alpha1.DangerProfile, error) {
	order := []v1alpha1.DangerProfile{v1alpha1.ProfileOff, v1alpha1.ProfileBaseline, v1alpha1.ProfileStrict}
	fleet := cmp.Or(s.FleetProfile, v1alpha1.ProfileBaseline)
	chosen := cmp.Or(s.ComponentProfile, fleet)
	for _, p := range []v1alpha1.DangerProfile{fleet, chosen} {
		if !slices.Contains(order, p) {
			return "", fmt.Errorf("danger profile %q is not known", p)
		}
	}
	if s.InProject && slices.Index(order, chosen) < slices.Index(order, fleet) {
		return "", fmt.Errorf("danger profile %q: a component of a project can't loosen the fleet's, which is %s", chosen, fleet)
	}
	return chosen, nil
}

// NewRules calls [Catalogue.NewRules] on a new [Catalogue].
func NewRules(s Scopes) (Rules, error) { return new(Catalogue).NewRules(s) }

// NewRules compiles danger rules, and adds the built-in rules. The first rule that matches decides.
// Rules about Keelson's own objects come first, then the fleet's up to the last locked rule (see
// [Locked]). Rules of the component, of its project and the rest of the fleet's follow, and then
// the built-in rules. The rules of a fenced component come last.
//
// A rule replaces all later rules of the same name. A component may not replace the first two
// groups, and a fenced component may not replace any rule.
//
// It is an error if a rule's pattern is malformed, its condition is not valid CEL, or its effect,
// scope or event is not known. A typing mistake must not let a danger pass.
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
	if s.InProject {
		final = slices.Concat(own, fleet, project, catalogue)
		order = [][]rule{own, locked, project, rest, catalogue, component}
	}
	for _, r := range component {
		if slices.ContainsFunc(final, func(f rule) bool { return f.Name != "" && f.Name == r.Name }) {
			return Rules{}, fmt.Errorf("danger rule %q: the component can't replace the rule of this name: give its own another one", r.Name)
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

func compileRules(env expr.Environment, rules []v1alpha1.DangerRule) ([]rule, error) {
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

// Locked returns how many of a fleet's rules, from the first on, are read before those of
// components: all rules up to the last locked rule. A rule that denies counts as locked, so an
// exception to it must precede it, in the fleet's own file.
func Locked(fleet []v1alpha1.DangerRule) int {
	for i, r := range slices.Backward(fleet) {
		if r.Locked || r.Effect == v1alpha1.EffectDeny {
			return i + 1
		}
	}
	return 0
}

// BuiltInRules returns the built-in rules of a profile, one for each path, in the order in which
// they are read.
func BuiltInRules(profile v1alpha1.DangerProfile) ([]v1alpha1.DangerRule, error) {
	catalogue, err := builtIn(expr.NewEnvironment(), profile)
	if err != nil {
		return nil, err
	}
	out := make([]v1alpha1.DangerRule, len(catalogue))
	for i := range catalogue {
		out[i] = catalogue[i].DangerRule
	}
	return out, nil
}

func newRule(env expr.Environment, r v1alpha1.DangerRule) (rule, error) {
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
	out := rule{DangerRule: r, pattern: p, condition: expr.NewWhen(env, r.When, expr.WhenCost), judged: r.Name == ruleCRDSchema, sum: sumOf(r)}
	out.message = expr.NewMessage(env, r.MessageExpression)
	for _, c := range []*expr.Expression{out.condition, out.message} {
		if c == nil {
			continue
		}
		if err := c.Compile(); err != nil {
			return rule{}, err
		}
	}
	return out, nil
}

// checkWords returns an error for an effect, scope or event that this version does not know.
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

// finding is a rule that fires.
type finding struct {
	*rule
	// inside means that the field's value can only be changed as a whole, and contains the rule's
	// path.
	inside bool
	// failed is why the rule's condition could not be evaluated. Such a condition counts as true.
	failed error
	// said is the value of the rule's message; empty without a message.
	said string
}

// effect returns the effect of the rule. If the condition could not be evaluated, a rule that would
// keep or allow holds instead.
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

// concerns reports whether a row is at the rule's path, lies below it, or contains it and differs
// there. If the row contains the path, inside is the rest of the path.
func (r *rule) concerns(w *row) (inside pattern, ok bool) {
	rest, ok := r.pattern.along(w.path)
	if !ok {
		return nil, false
	}
	if len(rest) == 0 {
		// A rule that keeps a node port does not keep a port that left git.
		return nil, r.Effect != v1alpha1.EffectKeep || w.gone == 0 || r.pattern.matches(w.path[:w.gone])
	}
	return rest, !equal(rest.collect(w.t.value), rest.collect(w.l.value))
}

func (r *rule) on(event v1alpha1.Event) bool {
	if len(r.On) == 0 {
		return event != v1alpha1.OnDeleteObject && event != v1alpha1.OnCreateObject
	}
	return slices.Contains(r.On, event)
}

const coreGroup = v1alpha1.GroupCore

// Matches reports whether an object matches all patterns of m.
func Matches(m v1alpha1.ObjectMatch, id ID) bool {
	return m.Matches(id.Group, id.Kind, id.Namespace, id.Name)
}

// CheckMatch returns an error for a malformed pattern, which could never match.
func CheckMatch(m v1alpha1.ObjectMatch) error {
	for _, pattern := range append([]string{m.Group, m.Namespace, m.Name}, m.Kinds...) {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("match %q: %w", pattern, err)
		}
	}
	return nil
}

// ID identifies an object in any version of the API.
type ID struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Identify returns the object's ID, and its group, version and kind.
func Identify(object map[string]any) (ID, schema.GroupVersionKind) {
	apiVersion, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	namespace, _ := metadata["namespace"].(string)
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	return ID{Group: gvk.Group, Kind: kind, Namespace: namespace, Name: name}, gvk
}

// String returns KIND.GROUP NAMESPACE/NAME.
func (id ID) String() string {
	return schema.GroupKind{Group: id.Group, Kind: id.Kind}.String() + " " + id.NamespacedName()
}

// NamespacedName returns NAMESPACE/NAME, or NAME for a cluster-scoped object.
func (id ID) NamespacedName() string {
	if id.Namespace == "" {
		return id.Name
	}
	return id.Namespace + "/" + id.Name
}
