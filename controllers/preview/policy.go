package preview

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// PolicyChange is a change of a rule about changes. It alters no object by itself, but a later
// change may pass that would have been stopped.
type PolicyChange struct {
	// About is the area of the change.
	About Area `json:"about"`
	// What changes, in a sentence: "freeze black-friday is removed".
	What string `json:"what"`
	// Clusters that it is about; empty: the whole fleet.
	Clusters []string `json:"clusters,omitempty"`
}

// Area is what a policy change is about.
type Area string

// The areas. A comment has room for some lines of each, so that many changes of one area, such as
// approvals, can't hide a change of another, such as a service account.
const (
	AreaConnection   Area = "connections"
	AreaAccount      Area = "service accounts"
	AreaProject      Area = "projects"
	AreaDanger       Area = "danger rules"
	AreaFleet        Area = "settings of the fleet"
	AreaFreeze       Area = "freezes"
	AreaPipeline     Area = "pipelines"
	AreaApproval     Area = "approvals"
	AreaLabel        Area = "labels"
	AreaComponent    Area = "settings of components"
	AreaProbe        Area = "probes"
	AreaNotification Area = "notifications"
)

// areas returns all areas in the order in which a reviewer sees them: first what gives most.
func areas() []Area {
	return []Area{
		AreaConnection, AreaAccount, AreaProject, AreaDanger, AreaFleet, AreaFreeze,
		AreaPipeline, AreaApproval, AreaLabel, AreaComponent, AreaProbe, AreaNotification,
	}
}

// policyChanges returns all policy changes, in the order of their areas.
func policyChanges(base, head *registry.Fleet) []PolicyChange {
	found := changes{clustersOf: map[change][]string{}, restricted: restricted(base)}
	found.settings(&base.Spec, &head.Spec)
	found.rules("fleet.yaml", base.Spec.Danger, head.Spec.Danger)
	compareNamed(found, AreaProject, "project", byName(base.Projects, projectName), byName(head.Projects, projectName))
	compareNamed(found, AreaPipeline, "pipeline", byName(base.Pipelines, pipelineName), byName(head.Pipelines, pipelineName))
	compareFiles(found, AreaPipeline, byName(base.Pipelines, pipelineName), byName(head.Pipelines, pipelineName), func(p *registry.Pipeline) map[string]string { return p.Jobs })
	compareNamed(found, AreaFreeze, "freeze", byName(base.Freezes, freezeName), byName(head.Freezes, freezeName))
	compareNamed(found, AreaProbe, "probe", byName(base.Probes, probeName), byName(head.Probes, probeName))
	compareFiles(found, AreaProbe, byName(base.Probes, probeName), byName(head.Probes, probeName), func(p *registry.Probe) map[string]map[string]any { return p.Templates })
	compareNamed(found, AreaNotification, "notification", byName(base.Notifications, notificationName), byName(head.Notifications, notificationName))
	found.stageApprovals(base.StageApprovals(), head.StageApprovals())
	for _, c := range head.Clusters {
		switch was := base.Cluster(c.Name); {
		case c.Unread, was == c:
		case was != nil && !was.Unread:
			found.cluster(was, c)
		default: // it joins, its folder got another name, or it could not be read
			for _, d := range c.Deliveries {
				found.delivery(nil, d)
			}
		}
	}
	found.pipelines(base, head)
	out := make([]PolicyChange, 0, len(found.clustersOf))
	for _, area := range areas() {
		for _, one := range found.inTurn(area) {
			clusters := found.clustersOf[one]
			slices.Sort(clusters)
			out = append(out, PolicyChange{About: area, What: one.what, Clusters: slices.Compact(clusters)})
		}
	}
	return out
}

// inTurn returns the changes of an area. Kinds of sentences take turns, first what is removed, so
// that many changes of one kind can't hide one of another: a new danger rule, one that is removed.
func (c changes) inTurn(area Area) []change {
	byKind := map[string][]change{}
	for one := range c.clustersOf {
		if one.about == area {
			byKind[one.kind] = append(byKind[one.kind], one)
		}
	}
	rank := func(kind string) int {
		return slices.IndexFunc([]string{"removed", "→", ""}, func(part string) bool { return strings.Contains(kind, part) })
	}
	kinds := slices.SortedFunc(maps.Keys(byKind), func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a, b)) })
	for _, kind := range kinds {
		slices.SortFunc(byKind[kind], func(a, b change) int { return strings.Compare(a.what, b.what) })
	}
	var out []change
	for i, more := 0, true; more; i++ {
		more = false
		for _, kind := range kinds {
			if i < len(byKind[kind]) {
				out = append(out, byKind[kind][i])
				more = true
			}
		}
	}
	return out
}

type changes struct {
	// clustersOf are the clusters of each change; none: the whole fleet.
	clustersOf map[change][]string
	// restricted: there are components that have less than Keelson's own rights.
	restricted bool
}

// restricted reports whether a component of a fleet has a service account, or is not known. There, a
// component that gets another name without its account gets more rights.
func restricted(f *registry.Fleet) bool {
	for _, c := range f.Clusters {
		for _, d := range c.Deliveries {
			if !d.Absent && (d.Version == nil || d.Version.Spec.ServiceAccount != "") {
				return true
			}
		}
	}
	return false
}

// change is the area of a change, its text, and of what kind the text is: the sentence without what
// it is about.
type change struct {
	about      Area
	kind, what string
}

func (c changes) add(about Area, cluster, format string, args ...any) {
	key := change{about, format, fmt.Sprintf(format, args...)}
	if cluster == "" {
		c.clustersOf[key] = nil
		return
	}
	c.clustersOf[key] = append(c.clustersOf[key], cluster)
}

func (c changes) setting(about Area, cluster, what, was, is string) {
	if was != is {
		c.add(about, cluster, "%s: %s → %s", what, orNone(was), orNone(is))
	}
}

func orNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}

func (c changes) settings(was, is *v1alpha1.Fleet) {
	c.setting(AreaFleet, "", "fleet.yaml: drift", string(was.Drift), string(is.Drift))
	c.setting(AreaPipeline, "", "fleet.yaml: pipeline", was.Pipeline, is.Pipeline)
	c.setting(AreaFleet, "", "fleet.yaml: verify", string(was.Verify), string(is.Verify))
	c.setting(AreaProject, "", "fleet.yaml: projects", string(was.Projects), string(is.Projects))
	c.setting(AreaDanger, "", "fleet.yaml: dangerProfile", string(was.DangerProfile), string(is.DangerProfile))
	c.setting(AreaFleet, "", "fleet.yaml: promotableTags", string(was.PromotableTags), string(is.PromotableTags))
}

// rules compares danger rules. In another order, other rules decide first.
func (c changes) rules(where string, was, is []v1alpha1.DangerRule) {
	if reflect.DeepEqual(was, is) || len(was)+len(is) == 0 {
		return
	}
	name := func(r v1alpha1.DangerRule) string { return r.Name }
	compareNamed(c, AreaDanger, where+": danger rule", byName(was, name), byName(is, name))
	if reordered(was, is) {
		c.add(AreaDanger, "", "%s: the order of the danger rules changes", where)
	}
}

func (c changes) stageApprovals(was, is []v1alpha1.Approval) {
	for _, a := range is {
		if !slices.ContainsFunc(was, func(b v1alpha1.Approval) bool { return reflect.DeepEqual(a, b) }) {
			c.add(AreaApproval, "", "approval of stage %s of %s (hash %s) is added", a.Stage, a.Component, a.Hash)
		}
	}
}

// cluster compares the settings of one cluster and its deliveries.
func (c changes) cluster(was, is *registry.Cluster) {
	if !reflect.DeepEqual(was.Spec.Connection, is.Spec.Connection) {
		c.add(AreaConnection, is.Name, "connection changes: Keelson will apply the cluster's components to another API server")
	}
	for _, label := range slices.Sorted(maps.Keys(was.Spec.Labels)) {
		c.setting(AreaLabel, is.Name, "label "+label, was.Spec.Labels[label], is.Spec.Labels[label])
	}
	for _, label := range slices.Sorted(maps.Keys(is.Spec.Labels)) {
		if _, had := was.Spec.Labels[label]; !had {
			c.setting(AreaLabel, is.Name, "label "+label, "", is.Spec.Labels[label])
		}
	}
	if was.Spec.Paused && !is.Spec.Paused {
		c.add(AreaFreeze, is.Name, "the cluster is no longer paused")
	}
	for _, d := range is.Deliveries {
		if before := was.Delivery(d.Component); before != d {
			c.delivery(before, d)
		}
	}
}

// delivery compares two deliveries; there may have been none before.
func (c changes) delivery(was, is *registry.Delivery) {
	mended := was != nil && was.Version == nil // its version could not be used
	if was == nil {
		was = &registry.Delivery{}
	}
	if was.Paused && !is.Paused {
		c.add(AreaFreeze, is.Cluster, "%s: it is no longer paused", is.Component)
	}
	for _, a := range is.Approvals {
		if !slices.ContainsFunc(was.Approvals, func(b registry.Approval) bool { return a.Object == b.Object && a.Hash == b.Hash }) {
			c.add(AreaApproval, is.Cluster, "%s: approval of %s (hash %s) is added", is.Component, a.Object, a.Hash)
		}
	}
	switch {
	case is.Version == nil || was.Version == is.Version:
	case was.Version != nil:
		c.version(is.Cluster, is.Component, &was.Version.Spec, &is.Version.Spec)
	case mended:
		c.add(AreaComponent, is.Cluster, "%s: its component.yaml can be used now, and could not before", is.Component)
		if is.Version.Spec.ServiceAccount == "" {
			c.add(AreaAccount, is.Cluster, "%s: it has no serviceAccount, and what it had could not be read: it gets Keelson's own rights", is.Component)
		}
		c.version(is.Cluster, is.Component, &v1alpha1.Component{Namespace: is.Version.Spec.Namespace}, &is.Version.Spec)
	default:
		c.newComponent(is)
	}
}

// newComponent names what a new component may do. Its other settings loosen nothing.
func (c changes) newComponent(is *registry.Delivery) {
	for _, r := range is.Version.Spec.Danger {
		if r.Effect == v1alpha1.EffectAllow {
			c.add(AreaDanger, is.Cluster, "%s: danger rule %s (allow) is added", is.Component, r.Name)
		}
	}
	if c.restricted && is.Version.Spec.ServiceAccount == "" {
		c.add(AreaAccount, is.Cluster, "%s: it is new, and has no serviceAccount: it gets Keelson's own rights", is.Component)
	}
	c.setting(AreaDanger, is.Cluster, is.Component+": dangerProfile", "", string(is.Version.Spec.DangerProfile))
	if is.Version.Spec.Adopt {
		c.add(AreaComponent, is.Cluster, "%s: it may adopt objects", is.Component)
	}
}

// version compares the rights and rules that two versions of a component set for themselves.
func (c changes) version(cluster, component string, was, is *v1alpha1.Component) {
	account := func(name string) string {
		if name == "" {
			return "(Keelson's own rights)"
		}
		return name
	}
	c.setting(AreaAccount, cluster, component+": serviceAccount", account(was.ServiceAccount), account(is.ServiceAccount))
	c.setting(AreaComponent, cluster, component+": namespace", was.Namespace, is.Namespace)
	c.setting(AreaDanger, cluster, component+": dangerProfile", string(was.DangerProfile), string(is.DangerProfile))
	c.setting(AreaComponent, cluster, component+": drift", string(was.Drift), string(is.Drift))
	c.setting(AreaComponent, cluster, component+": determinism", string(was.Determinism), string(is.Determinism))
	c.setting(AreaComponent, cluster, component+": timeout", timeoutOf(was), timeoutOf(is))
	if is.Adopt && !was.Adopt {
		c.add(AreaComponent, cluster, "%s: it may adopt objects", component)
	}
	for _, on := range was.DependsOn {
		if !slices.Contains(is.DependsOn, on) {
			c.add(AreaComponent, cluster, "%s: it no longer waits for %s", component, on)
		}
	}
	name := func(r v1alpha1.DangerRule) string { return r.Name }
	rules, had := byName(is.Danger, name), byName(was.Danger, name)
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		if old, before := had[rule]; !before {
			c.add(AreaDanger, cluster, "%s: danger rule %s (%s) is added", component, rule, rules[rule].Effect)
		} else if !reflect.DeepEqual(old, rules[rule]) {
			c.add(AreaDanger, cluster, "%s: danger rule %s is changed", component, rule)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(had)) {
		if _, still := rules[rule]; !still {
			c.add(AreaDanger, cluster, "%s: danger rule %s is removed", component, rule)
		}
	}
	if reordered(was.Danger, is.Danger) {
		c.add(AreaDanger, cluster, "%s: the order of the danger rules changes", component)
	}
	if len(was.Health)+len(is.Health) > 0 && !reflect.DeepEqual(was.Health, is.Health) {
		c.add(AreaComponent, cluster, "%s: health rules are changed", component)
	}
}

func timeoutOf(c *v1alpha1.Component) string {
	if c.Timeout == nil {
		return ""
	}
	return c.Timeout.Duration.String()
}

// reordered reports whether rules that both lists have stand in another order. Then other rules
// decide first.
func reordered(was, is []v1alpha1.DangerRule) bool {
	place := make(map[string]int, len(was))
	for i := range was {
		place[was[i].Name] = i
	}
	last := -1
	for i := range is {
		at, had := place[is[i].Name]
		if had && at < last {
			return true
		}
		if had {
			last = at
		}
	}
	return false
}

// pipelines compares the pipeline of each component. A move to the fleet's default pipeline is not
// reported.
func (c changes) pipelines(base, head *registry.Fleet) {
	pipeline := func(f *registry.Fleet, component string) string {
		if p := f.PipelineOf(component); p != nil {
			return p.Name
		}
		return ""
	}
	seen := map[string]bool{}
	for _, cluster := range head.Clusters {
		for _, d := range cluster.Deliveries {
			if seen[d.Component] {
				continue
			}
			seen[d.Component] = true
			if was, is := pipeline(base, d.Component), pipeline(head, d.Component); was != is && is != head.Spec.Pipeline {
				c.setting(AreaPipeline, "", d.Component+": pipeline", was, is)
			}
		}
	}
}

func projectName(p *registry.Project) string           { return p.Name }
func pipelineName(p *registry.Pipeline) string         { return p.Name }
func freezeName(z *registry.Freeze) string             { return z.Name }
func probeName(p *registry.Probe) string               { return p.Name }
func notificationName(n *registry.Notification) string { return n.Name }

// byName maps things by their names.
func byName[T any](list []T, name func(T) string) map[string]T {
	out := make(map[string]T, len(list))
	for _, one := range list {
		out[name(one)] = one
	}
	return out
}

func compareNamed[T any](c changes, about Area, what string, was, is map[string]T) {
	for _, name := range slices.Sorted(maps.Keys(was)) {
		now, still := is[name]
		switch {
		case !still:
			c.add(about, "", "%s %s is removed", what, name)
		case !reflect.DeepEqual(specOf(was[name]), specOf(now)):
			c.add(about, "", "%s %s is changed", what, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if _, had := was[name]; !had {
			c.add(about, "", "%s %s is added", what, name)
		}
	}
}

// compareFiles compares the files that settings name, such as the Jobs of a pipeline's checks: they
// run on clusters. A file that a setting names or no longer names is a change of the setting itself.
// If the same setting had no file that could be read, it has one now: that is new to reviewers, too.
func compareFiles[T, F any](c changes, about Area, was, is map[string]T, filesOf func(T) map[string]F) {
	what := strings.TrimSuffix(string(about), "s") // one of them
	for name, before := range was {
		now, still := is[name]
		if !still {
			continue
		}
		files, same := filesOf(before), reflect.DeepEqual(specOf(before), specOf(now))
		for path, file := range filesOf(now) {
			switch old, had := files[path]; {
			case had && !reflect.DeepEqual(old, file):
				c.add(about, "", "%s of %s %s is changed", path, what, name)
			case !had && same:
				c.add(about, "", "%s of %s %s can be used now, and could not before", path, what, name)
			}
		}
	}
}

// specOf returns the Spec of a struct, without values derived from it, or else the value itself.
func specOf(v any) any {
	if r := reflect.Indirect(reflect.ValueOf(v)); r.Kind() == reflect.Struct {
		if spec := r.FieldByName("Spec"); spec.IsValid() {
			return spec.Interface()
		}
	}
	return v
}

// Text returns the change with its clusters, whose names take about room bytes.
func (p *PolicyChange) Text(room int) string {
	if len(p.Clusters) == 0 {
		return p.What
	}
	return strings.Join([]string{p.What, "on", names(p.Clusters, room, func(s string) string { return s })}, " ")
}
