package delivery

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/delivery/hubstatus"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer/redact"
)

// clusterState is what git wants of one cluster, and the statuses of its components. mu guards all
// fields below it, so that a revision and the statuses are compared at one moment.
type clusterState struct {
	name     string
	now      func() time.Time
	redactor *redact.Redactor

	mu       sync.Mutex
	fleet    *registry.Fleet
	cluster  *registry.Cluster
	statuses statuses
	clocks   clocks
	// pruning are the components that have all desired objects, and only deletions left to do. A
	// dependent does not wait for these deletions: they may wait for the dependent.
	pruning map[string]bool
}

func newClusterState(name string, now func() time.Time, redactor *redact.Redactor) *clusterState {
	return &clusterState{name: name, now: now, redactor: redactor, statuses: statuses{}, pruning: map[string]bool{}}
}

// set stores a new revision, and returns the components that the revision may concern; all: every
// component.
func (c *clusterState) set(f *registry.Fleet, cluster *registry.Cluster) (components []string, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, was := c.fleet, c.cluster
	c.clocks = c.clocks.start(was, cluster, c.statuses, c.now())
	c.fleet, c.cluster = f, cluster
	if before == nil || !reflect.DeepEqual(before.Spec, f.Spec) {
		return nil, true
	}
	if was != cluster {
		if components, all = concerned(was, cluster, c.statuses); all {
			return nil, true
		}
	}
	return append(components, regoverned(before, f, cluster, c.statuses)...), false
}

// connection returns how to connect to the cluster.
func (c *clusterState) connection() v1alpha1.Connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cluster.Spec.Connection
}

// snapshot returns the current revision, and what it says of a component.
func (c *clusterState) snapshot(component string) snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return snapshot{fleet: c.fleet, cluster: c.cluster, delivery: c.cluster.Delivery(component)}
}

// components returns the components that are desired, have a status, or have a record.
func (c *clusterState) components() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := slices.Collect(maps.Keys(c.statuses))
	for _, d := range c.cluster.Deliveries {
		names = append(names, d.Component)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// governed returns the components that go through a pipeline.
func (c *clusterState) governed() (components []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.cluster.Deliveries {
		if c.fleet.PipelineOf(d.Component) != nil {
			components = append(components, d.Component)
		}
	}
	return components
}

// add adds components that are found on the cluster or in the hub.
func (c *clusterState) add(components ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, component := range components {
		if _, known := c.statuses[component]; !known {
			c.statuses[component] = &v1alpha1.DeliveryStatus{Cluster: c.name, Component: component}
		}
	}
}

// recall takes from the statuses of an earlier process when things changed, but not the state
// itself. A status can outlive its component in git and on the cluster.
func (c *clusterState) recall(shown []v1alpha1.DeliveryStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range shown {
		s.Sync, s.Health = "", ""
		c.statuses[s.Component] = &s
	}
}

// status returns a copy of the status of a component; the zero value if there is none.
func (c *clusterState) status(component string) v1alpha1.DeliveryStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.statuses.get(component)
}

// each calls do with every status, under the lock.
func (c *clusterState) each(do func(*v1alpha1.DeliveryStatus)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.statuses {
		do(s)
	}
}

// transition is what a reconcile changed in the status of a component.
type transition struct {
	before v1alpha1.DeliveryStatus
	after  *v1alpha1.DeliveryStatus
	// beganPruning: from now on only deletions are left to do.
	beganPruning bool
	// synced and healthy are how long the component took until it was so; 0: it did not become so.
	synced, healthy time.Duration
}

// record stores the result of a reconcile that began at a time, with the checks of the component. It
// returns nil if the hub already shows everything that is known.
func (c *clusterState) record(component string, t attempt, checks []v1alpha1.DeliveryCheck, began time.Time) *transition {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.statuses.get(component)
	if t.connecting && len(before.Conditions) > 0 {
		return nil
	}
	before.Cluster, before.Component = c.name, component
	found := next(before, t, c.now())
	found.Checks = checks
	out := &transition{before: before, after: hubstatus.Redacted(c.redactor, &found), beganPruning: t.pruning && !c.pruning[component]}
	c.statuses[component] = out.after
	c.pruning[component] = t.pruning
	if t.waits == "" {
		c.clocks, out.synced, out.healthy = c.clocks.update(before, *out.after, began, c.now())
	} else {
		c.clocks = c.clocks.without(component) // waiting time of the pipeline does not count
	}
	if t.gone {
		delete(c.statuses, component)
		c.clocks = c.clocks.without(component)
	}
	return out
}

// replace replaces a status by an equal one.
func (c *clusterState) replace(s, same *v1alpha1.DeliveryStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.statuses[s.Component] == s {
		c.statuses[s.Component] = same
	}
}

// waitingFor returns the components that wait for this one: its dependents, and, if it is to be
// absent, its dependencies.
func (c *clusterState) waitingFor(component string) (components []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.cluster.Delivery(component); d != nil && d.Absent && d.Version != nil {
		components = append(components, d.Version.Spec.DependsOn...)
	}
	for _, d := range c.cluster.Deliveries {
		if d.Version != nil && slices.Contains(d.Version.Spec.DependsOn, component) {
			components = append(components, d.Component)
		}
	}
	return components
}

// neededBy returns a component that depends on d and is not yet Absent; "" if there is none.
func (c *clusterState) neededBy(d *registry.Delivery) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.cluster.Deliveries {
		if o.Version != nil && slices.Contains(o.Version.Spec.DependsOn, d.Component) && c.statuses.get(o.Component).Sync != v1alpha1.SyncAbsent {
			return o.Component
		}
	}
	return ""
}

// waitsFor returns the first dependency that is not healthy at the version in git, and its state.
func (c *clusterState) waitsFor(d *registry.Delivery) (string, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range d.Version.Spec.DependsOn {
		s := c.statuses.get(name)
		on := c.cluster.Delivery(name)
		switch {
		case on == nil:
			return name, "not on this cluster"
		case s.Sync != v1alpha1.SyncSynced && !c.pruning[name], s.Version != on.VersionName:
			return name, string(cmp.Or(s.Sync, v1alpha1.SyncProgressing))
		case s.Health != v1alpha1.HealthHealthy:
			return name, string(s.Health)
		}
	}
	return "", ""
}

// waitsForRelease reports whether a healthy component only waits for its release in a rollout. That may
// take days, and dependents that fitted the delivered version still fit.
func (c *clusterState) waitsForRelease(component string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.statuses.get(component)
	return s.Sync == v1alpha1.SyncWaiting && s.Health == v1alpha1.HealthHealthy && s.TargetHash != "" && s.Wanted != nil && s.Wanted.TargetHash != s.TargetHash
}
