package differ

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/configversion"
)

// defaultHistory is how many earlier versions of a ConfigMap or Secret stay if no workload says how
// many revisions it keeps. It is the default of revisionHistoryLimit of Deployments and StatefulSets
// (kubernetes.io, API reference).
const defaultHistory = 10

// configVersions are the versions of ConfigMaps and Secrets among the objects of a component.
type configVersions struct {
	// wanted are the versions in the target, and earlier those that the target no longer has, the
	// latest first.
	wanted, earlier []configVersion
	// history is how many earlier versions of a ConfigMap or Secret stay.
	history func(configversion.Version) int
}

type configVersion struct {
	configversion.Version
	state   *State
	created string // RFC 3339, so that it sorts as text
}

// configVersions returns the versions among the compared objects; none if an object is compared alone.
func (p *Policy) configVersions() *configVersions {
	if p.versions == nil {
		return &configVersions{}
	}
	return p.versions()
}

// versionsOf finds the versions. An earlier version is an object that Keelson applied as one, and
// that exists. The ConfigMap or Secret from before it was versioned is one, too.
func versionsOf(states []State) *configVersions {
	v := &configVersions{}
	v.history = func(of configversion.Version) int { return v.historyOf(of, states) }
	var earlier []configVersion
	for i := range states {
		s := &states[i]
		if s.ID.Group != "" || s.ID.Kind != configversion.KindConfigMap && s.ID.Kind != configversion.KindSecret {
			continue
		}
		if s.Target != nil {
			if one, is := configversion.Of(s.Target.Content); is {
				v.wanted = append(v.wanted, configVersion{Version: one, state: s})
			}
			continue
		}
		if one, is := configversion.Any(s.Recorded); is && s.Live != nil {
			created, _ := nested(s.Live, "metadata", "creationTimestamp").(string)
			earlier = append(earlier, configVersion{Version: one, state: s, created: created})
		}
	}
	for _, e := range earlier {
		if e.Hash != "" || slices.ContainsFunc(v.wanted, func(w configVersion) bool { return w.Follows(e.Version) }) {
			v.earlier = append(v.earlier, e)
		}
	}
	slices.SortStableFunc(v.earlier, func(a, b configVersion) int { return strings.Compare(b.created, a.created) })
	return v
}

// historyOf returns the largest revisionHistoryLimit of the target's workloads that refer to a
// version; 0: the target no longer has a version of the ConfigMap or Secret.
func (v *configVersions) historyOf(of configversion.Version, states []State) int {
	i := slices.IndexFunc(v.wanted, func(w configVersion) bool { return w.Follows(of) })
	if i < 0 {
		return 0
	}
	wanted, most := v.wanted[i].state.ID, -1
	for i := range states {
		s := &states[i]
		if s.Target == nil || s.ID.Namespace != wanted.Namespace {
			continue
		}
		refers := slices.ContainsFunc(configversion.References(s.Target.Content), func(r configversion.Reference) bool {
			return r.Kind == wanted.Kind && r.Name == wanted.Name
		})
		if refers {
			most = max(most, historyLimit(s.Target.Content))
		}
	}
	if most < 0 {
		return defaultHistory
	}
	return most
}

// historyLimit returns the revisionHistoryLimit of a workload, or its default.
func historyLimit(workload map[string]any) int {
	switch n := nested(workload, "spec", "revisionHistoryLimit").(type) {
	case int64:
		return int(max(0, min(n, 1<<16)))
	case float64:
		return int(max(0, min(n, 1<<16)))
	}
	return defaultHistory
}

// retain leaves an earlier version in place, and reports whether it did.
func (v *configVersions) retain(c *comparison) bool {
	if deleting(c.state.Live) {
		return false
	}
	because, read := v.retains(&c.state)
	c.change.Retained, c.change.Unread.Uses = because, read
	return read || because != ""
}

// retains returns why an earlier version stays; empty: it may be deleted. If it may only be deleted
// while no pod and no revision refers to it, and this is not known, read is true.
func (v *configVersions) retains(s *State) (because string, read bool) {
	i := slices.IndexFunc(v.earlier, func(e configVersion) bool { return e.state.ID == s.ID })
	if i < 0 {
		return "", false
	}
	one := v.earlier[i]
	later := 0
	for _, e := range v.earlier[:i] {
		if e.Follows(one.Version) {
			later++
		}
	}
	if n := v.history(one.Version); later < n {
		return fmt.Sprintf("it is one of the last %d earlier versions of %s %s, which stay for a way back", n, one.Kind, one.Name), false
	}
	return s.Used, !s.UseRead
}

// before returns the latest earlier version that a new object follows; nil: there is none. A
// ConfigMap that is no longer versioned follows its last version.
func (v *configVersions) before(target map[string]any) *State {
	of, is := configversion.Any(target)
	if !is {
		return nil
	}
	for _, e := range v.earlier {
		if e.Follows(of) {
			return e.state
		}
	}
	return nil
}

// judge judges a new version by the danger rules as the change of the version before, and
// reports whether a rule holds or denies it. Without this, a change that is held in a ConfigMap would
// pass in a versioned one.
func (v *configVersions) judge(c *comparison) (stopped bool, _ error) {
	before := v.before(c.target)
	if before == nil || c.recorded != nil || c.change.State == StateHeld || c.change.State == StateDenied {
		return false, nil
	}
	old := asApplied(configversion.Plain(canonical(before.Live)), c.rules.target)
	policy := c.policy
	policy.OwnersByRecord = true
	was := newComparison(Schemas{}, State{
		ID: c.state.ID, Recorded: old, Live: old, OwnersRead: true, CustomResources: &CustomResources{},
		Target: &renderer.Object{Content: c.rules.target, Source: c.change.Source},
	}, policy, c.effort)
	was.view.typ, was.view.hash = c.view.typ, c.view.hash
	was.rules.id, was.rules.version, was.rules.tracing = c.rules.id, c.rules.version, c.rules.tracing
	if err := was.readOwners(); err != nil {
		return false, err
	}
	was.decideApproved(was.rows())
	c.change.Unread.Nodes = c.change.Unread.Nodes || was.change.Unread.Nodes
	c.change.warnToo(was.change.Warnings)
	if was.change.State != StateHeld && was.change.State != StateDenied {
		if was.change.Approved {
			c.change.Hash, c.change.Approved = was.change.Hash, true
		}
		return false, nil
	}
	c.change.stop(was.change.State, was.change.Rule, was.change.Because)
	c.change.Fix, c.change.Fields = was.change.Fix, was.change.Fields
	c.change.Hash, c.change.Follows = was.change.Hash, before.ID.Name
	c.rules.trials = was.rules.trials
	return true, nil
}

// asApplied returns a live object without the metadata that the API server adds: with those keys
// alone that the target has, too.
func asApplied(live, target map[string]any) map[string]any {
	out := maps.Clone(live)
	meta, _ := live["metadata"].(map[string]any)
	wanted, _ := target["metadata"].(map[string]any)
	kept := map[string]any{}
	for key := range wanted {
		if v, ok := meta[key]; ok {
			kept[key] = v
		}
	}
	out["metadata"] = kept
	return out
}

// plainOf returns a function that gives an object of the target as the chart has it: versions with
// their names there, and the references of other objects to them. The function returns canonical
// objects, and modifies nothing.
func plainOf(states []State) func(map[string]any) map[string]any {
	names := map[ID]string{}
	for i := range states {
		if s := &states[i]; s.Target != nil {
			if v, is := configversion.Of(s.Target.Content); is {
				names[s.ID] = v.Name
			}
		}
	}
	return func(content map[string]any) map[string]any {
		object := canonical(content)
		if _, is := configversion.Of(object); is {
			return configversion.Plain(object)
		}
		namespace, _ := nested(object, "metadata", "namespace").(string)
		copied := false
		for _, r := range configversion.References(object) {
			if names[ID{Kind: r.Kind, Namespace: namespace, Name: r.Name}] != "" {
				object, copied = runtime.DeepCopyJSON(object), true
				break
			}
		}
		if !copied {
			return object
		}
		for _, r := range configversion.References(object) {
			if name := names[ID{Kind: r.Kind, Namespace: namespace, Name: r.Name}]; name != "" {
				r.Rename(name)
			}
		}
		return object
	}
}

// versionsFirst makes each change wait whose target refers to a version that is not created: pods
// would wait for it for ever, and the old ones would be gone.
func (p *Plan) versionsFirst(states []State) {
	missing := map[ID]string{}
	for i := range p.Changes {
		c := &p.Changes[i]
		if states[i].Target == nil || states[i].Live != nil || c.Op == OpCreate {
			continue
		}
		if _, is := configversion.Of(states[i].Target.Content); is || c.Follows != "" {
			missing[c.ID] = fmt.Sprintf("%s, which it refers to, is %s", c.ID, c.State)
		}
	}
	if len(missing) == 0 {
		return
	}
	for i := range p.Changes {
		c := &p.Changes[i]
		if states[i].Target == nil || c.Op != OpCreate && c.Op != OpUpdate && c.Op != OpReplace {
			continue
		}
		for _, r := range configversion.References(states[i].Target.Content) {
			if why := missing[ID{Kind: r.Kind, Namespace: c.ID.Namespace, Name: r.Name}]; why != "" {
				c.postpone("waits: " + why)
				break
			}
		}
	}
}

// show shows the creation of a version as the change of its data since the version before.
func (v *configVersions) show(c *comparison) {
	if c.change.Op != OpCreate || c.change.State != StateChanged {
		return
	}
	before := v.before(c.target)
	if before == nil {
		return
	}
	c.change.Follows = before.ID.Name
	old := c.view.mask.apply(canonical(before.Live))
	for _, part := range []string{"binaryData", "data", "type"} {
		was, is := partOf(old, part), partOf(c.change.Record, part)
		for _, key := range slices.Sorted(maps.Keys(union(was, is))) {
			if equal(was[key], is[key]) {
				continue
			}
			path := fieldpath.MakePathOrDie(part)
			if key != "" {
				path = fieldpath.MakePathOrDie(part, key)
			}
			action := ActionSet
			if is[key] == nil {
				action = ActionRemove
			}
			c.change.DataChanges = append(c.change.DataChanges, Field{Path: path.String(), at: path, Recorded: was[key], Live: was[key], Target: is[key], Action: action})
		}
	}
}

// partOf returns the values of a field by key. A field that is no map has the empty key.
func partOf(object map[string]any, name string) map[string]any {
	switch v := object[name].(type) {
	case nil:
		return nil
	case map[string]any:
		return v
	default:
		return map[string]any{"": v}
	}
}

func union(a, b map[string]any) map[string]any {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]any{}
	}
	maps.Copy(out, b)
	return out
}
