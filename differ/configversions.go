package differ

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/configversion"
)

const (
	// defaultHistory is how many earlier versions of a ConfigMap or Secret stay if no workload says how
	// many revisions it keeps. It is the default of revisionHistoryLimit of Deployments and
	// StatefulSets (kubernetes.io, API reference).
	defaultHistory = 10
	// maxHistory bounds what a workload can ask for.
	maxHistory = 1000
)

// configVersions are the versioned ConfigMaps and Secrets among the objects of a component.
type configVersions struct {
	histories map[configversion.Version]*configHistory
}

// configHistory is one versioned ConfigMap or Secret.
type configHistory struct {
	// wanted is the version in the target, or the object that is no longer versioned; nil: there is
	// none. isVersion tells them apart.
	wanted    *State
	isVersion bool
	// recorded are the versions that Keelson applied, the latest first. The object from before it was
	// versioned is one, too.
	recorded []recordedVersion
	// inForce is the version to which the applied workloads refer, or the latest if none does; nil:
	// none was applied.
	inForce *State
	// applied means that an applied workload refers to inForce.
	applied bool
	// limit is how many earlier versions stay.
	limit int
}

type recordedVersion struct {
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

// versionsOf finds the versions.
func versionsOf(states []State) *configVersions {
	v := &configVersions{histories: map[configversion.Version]*configHistory{}}
	versioned := map[configversion.Version]bool{}
	history := func(content map[string]any) (h *configHistory, isVersion bool) {
		one, is := configversion.Any(content)
		if !is {
			return nil, false
		}
		key := one
		key.Hash = ""
		if v.histories[key] == nil {
			v.histories[key] = &configHistory{}
		}
		versioned[key] = versioned[key] || one.Hash != ""
		return v.histories[key], one.Hash != ""
	}
	for i := range states {
		s := &states[i]
		if s.Target != nil {
			if h, is := history(s.Target.Content); h != nil {
				h.wanted, h.isVersion = s, is
			}
		}
		if h, _ := history(s.Recorded); h != nil {
			created, _ := nested(s.Live, "metadata", "creationTimestamp").(string)
			h.recorded = append(h.recorded, recordedVersion{state: s, created: created})
		}
	}
	maps.DeleteFunc(v.histories, func(key configversion.Version, _ *configHistory) bool { return !versioned[key] })
	if len(v.histories) > 0 {
		v.findInForce(states)
		v.findLimits(states)
	}
	return v
}

// findInForce finds the version of each history to which workloads refer, as they were applied.
func (v *configVersions) findInForce(states []State) {
	refers := map[ID]bool{}
	for i := range states {
		s := &states[i]
		if s.Recorded == nil {
			continue
		}
		for _, r := range configversion.References(s.Recorded) {
			refers[ID{Kind: r.Kind, Namespace: s.ID.Namespace, Name: r.Name}] = true
		}
	}
	for _, h := range v.histories {
		slices.SortStableFunc(h.recorded, func(a, b recordedVersion) int { return strings.Compare(b.created, a.created) })
		i := slices.IndexFunc(h.recorded, func(r recordedVersion) bool { return refers[r.state.ID] })
		if h.applied = i >= 0; h.applied {
			h.inForce = h.recorded[i].state
		} else if len(h.recorded) > 0 {
			h.inForce = h.recorded[0].state
		}
	}
}

// findLimits finds the largest revisionHistoryLimit of the target's workloads that refer to each wanted
// version.
func (v *configVersions) findLimits(states []State) {
	limits := map[ID]int{}
	for i := range states {
		s := &states[i]
		if s.Target == nil {
			continue
		}
		for _, r := range configversion.References(s.Target.Content) {
			id := ID{Kind: r.Kind, Namespace: s.ID.Namespace, Name: r.Name}
			if known, is := limits[id]; !is || known < maxHistory {
				limits[id] = max(known, historyLimit(s.Target.Content))
			}
		}
	}
	for _, h := range v.histories {
		if !h.isVersion {
			continue
		}
		h.limit = defaultHistory
		if limit, refers := limits[h.wanted.ID]; refers {
			h.limit = limit
		}
	}
}

// historyLimit returns the revisionHistoryLimit of a workload, or its default.
func historyLimit(workload map[string]any) int {
	switch n := nested(workload, "spec", "revisionHistoryLimit").(type) {
	case int64:
		return int(max(0, min(n, maxHistory)))
	case float64:
		return int(max(0, min(n, maxHistory)))
	}
	return defaultHistory
}

// of returns the history of a ConfigMap or Secret; nil: it has no versions.
func (v *configVersions) of(object map[string]any) *configHistory {
	one, is := configversion.Any(object)
	if !is {
		return nil
	}
	one.Hash = ""
	return v.histories[one]
}

// before returns the version in force that an object of the target follows; nil: there is none.
func (v *configVersions) before(c *comparison) *State {
	h := v.of(c.target)
	if h == nil || h.inForce == nil || h.inForce.ID == c.state.ID {
		return nil
	}
	return h.inForce
}

// keepInForce leaves the version in force in place until the workloads have the next one, whatever else
// has become of it. It reports whether it did. Without it, the next version would be judged as the first.
func (v *configVersions) keepInForce(c *comparison) bool {
	h := v.of(c.state.Recorded)
	if h == nil || h.wanted == nil || !h.applied || h.inForce.ID != c.state.ID {
		return false
	}
	c.change.Retained = "the workloads, as they were applied, refer to it"
	return true
}

// retain leaves an earlier version in place, and reports whether it did.
func (v *configVersions) retain(c *comparison) bool {
	h := v.of(c.state.Recorded)
	_, isVersion := configversion.Of(c.state.Recorded)
	if h == nil || !isVersion && !h.isVersion || deleting(c.state.Live) {
		return false
	}
	if h.isVersion && h.later(c.state.ID) < h.limit {
		c.change.Retained = fmt.Sprintf("it is one of the last %d earlier versions, which stay for a way back", h.limit)
		return true
	}
	switch {
	case !c.state.UseRead:
		c.change.Unread.Uses = true
	case c.state.Used != "" && h.isVersion:
		c.change.Retained = c.state.Used
	case c.state.Used != "":
		c.change.postpone("waits: " + c.state.Used)
	default:
		c.change.Unused = h.wanted != nil
		return false
	}
	return true
}

// later counts the earlier versions that are later than one of them.
func (h *configHistory) later(id ID) (n int) {
	for _, r := range h.recorded {
		if r.state.ID == id {
			break
		}
		if r.state.Target == nil && r.state.Live != nil {
			n++
		}
	}
	return n
}

// judge judges a version by the danger rules as a change of the version in force, and reports whether a
// rule stops it. Without this, a change that is held in a ConfigMap would pass in a versioned one, and
// a way back would, too.
func (v *configVersions) judge(c *comparison) (stopped bool, _ error) {
	before := v.before(c)
	if before == nil || c.change.State == StateHeld || c.change.State == StateDenied {
		return false, nil
	}
	target := configversion.Plain(c.target)
	old := asApplied(configversion.Plain(trustedData(before, c.policy.MaskKey)), target)
	policy := c.policy
	policy.OwnersByRecord = true
	was := newComparison(Schemas{}, State{
		ID: c.state.ID, Recorded: old, Live: old, OwnersRead: true, CustomResources: &CustomResources{},
		Target: &renderer.Object{Content: target, Source: c.change.Source},
	}, policy, c.effort)
	was.view.typ, was.view.hash = c.view.typ, c.view.hash
	was.rules.id, was.rules.version, was.rules.tracing = c.rules.id, c.rules.version, c.rules.tracing
	if err := was.readOwners(); err != nil {
		return false, err
	}
	was.decideApproved(was.rows())
	c.change.Unread.Nodes = c.change.Unread.Nodes || was.change.Unread.Nodes
	c.change.warnToo(was.change.Warnings)
	holdKept(was, before)
	state := was.change.State
	if state != StateHeld && state != StateDenied {
		if was.change.Approved {
			c.change.Hash, c.change.Approved = was.change.Hash, true
		}
		return false, nil
	}
	c.change.stop(state, was.change.Rule, was.change.Because)
	c.change.Fix, c.change.Fields = was.change.Fix, was.change.Fields
	c.change.Hash, c.change.Follows = was.change.Hash, before.ID.Name
	c.rules.trials = was.rules.trials
	return true, nil
}

// holdKept holds a version if a rule keeps a live value: a version has all values of git.
func holdKept(was *comparison, before *State) {
	c := &was.change
	i := slices.IndexFunc(c.Fields, func(f Field) bool { return f.Action == ActionKeep && f.Rule != "" })
	if i < 0 || c.State == StateHeld || c.State == StateDenied {
		return
	}
	c.Hash = hashOf("version", before.ID.String(), c.ID.String())
	if c.Approved = was.approved(); !c.Approved {
		c.State, c.Rule = StateHeld, c.Fields[i].Rule
		c.Because = "the rule keeps the live value of " + c.Fields[i].Path + ", and a version has all values of git"
	}
}

// trustedData returns a version as Keelson applied it. The record lacks the data of a Secret, and the
// live object has them. Another client can replace that object, so it counts only if its data are
// those of the record.
func trustedData(s *State, maskKey []byte) map[string]any {
	recorded, live := canonical(s.Recorded), canonical(s.Live)
	m := maskFor(s.ID, maskKey)
	for _, part := range []string{"data", "binaryData"} {
		if live == nil || !equal(m.apply(live)[part], m.apply(recorded)[part]) {
			return recorded
		}
	}
	return live
}

// asApplied returns an object without the metadata that the API server adds, with those keys alone
// that the target has, too. The type of a Secret never changes, but a new object can have another one.
func asApplied(object, target map[string]any) map[string]any {
	out := maps.Clone(object)
	meta, _ := object["metadata"].(map[string]any)
	wanted, _ := target["metadata"].(map[string]any)
	kept := map[string]any{}
	for key := range wanted {
		if v, ok := meta[key]; ok {
			kept[key] = v
		}
	}
	out["metadata"] = kept
	delete(out, "type")
	if kind, ok := target["type"]; ok {
		out["type"] = kind
	}
	return out
}

// show shows the creation of a version as the change since the version before: of its data, labels and
// annotations.
func (v *configVersions) show(c *comparison) {
	before := v.before(c)
	if before == nil || c.change.Op != OpCreate || c.change.State != StateChanged {
		return
	}
	c.change.Follows = before.ID.Name
	target := configversion.Plain(c.target)
	old, now := c.view.mask.apply(asApplied(configversion.Plain(trustedData(before, c.policy.MaskKey)), target)), c.view.mask.apply(target)
	for _, part := range [][]string{{"binaryData"}, {"data"}, {"metadata", "annotations"}, {"metadata", "labels"}} {
		was, _ := nested(old, part...).(map[string]any)
		is, _ := nested(now, part...).(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(union(was, is))) {
			if equal(was[key], is[key]) {
				continue
			}
			elements := make([]any, 0, len(part)+1)
			for _, name := range append(slices.Clone(part), key) {
				elements = append(elements, name)
			}
			path, action := fieldpath.MakePathOrDie(elements...), ActionSet
			if is[key] == nil {
				action = ActionRemove
			}
			c.change.DataChanges = append(c.change.DataChanges, Field{Path: path.String(), at: path, Recorded: was[key], Live: was[key], Target: is[key], Action: action})
		}
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

// nameLast gives the rules the name in the chart of a version that is deleted because the target has the
// ConfigMap or Secret no more.
func (v *configVersions) nameLast(c *comparison) {
	one, is := configversion.Of(c.state.Recorded)
	if h := v.of(c.state.Recorded); is && h != nil && h.wanted == nil {
		c.rules.version, c.rules.id.Name, c.rules.live = true, one.Name, configversion.Plain(c.live)
	}
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
		name := func(r configversion.Reference) string {
			return names[ID{Kind: r.Kind, Namespace: namespace, Name: r.Name}]
		}
		if !slices.ContainsFunc(configversion.References(object), func(r configversion.Reference) bool { return name(r) != "" }) {
			return object
		}
		object = runtime.DeepCopyJSON(object)
		for _, r := range configversion.References(object) {
			r.Rename(cmp.Or(name(r), r.Name))
		}
		return object
	}
}

// versionsFirst makes each change wait whose target refers to a version that is not there, or not as git
// wants it: new pods would wait for it, or would read other data.
func (p *Plan) versionsFirst(states []State, versions *configVersions) {
	missing := p.missingVersions(states, versions)
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

// missingVersions returns the wanted versions that are not there, or not as git wants them, each with
// the reason.
func (p *Plan) missingVersions(states []State, versions *configVersions) map[ID]string {
	missing := map[ID]string{}
	for i := range p.Changes {
		c := &p.Changes[i]
		if states[i].Target == nil || versions.of(states[i].Target.Content) == nil {
			continue
		}
		switch {
		case c.State == StateHeld || c.State == StateDenied:
			missing[c.ID] = fmt.Sprintf("%s, which it refers to, is %s", c.ID, c.State)
		case c.Op == OpNone && c.State == StateChanged:
			missing[c.ID] = fmt.Sprintf("%s, which it refers to, waits: %s", c.ID, c.Because)
		}
	}
	return missing
}
