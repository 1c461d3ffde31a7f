package delivery

import (
	"reflect"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// clocks measure, by component, how long it takes until a cluster has what git wants. A component
// without anything to wait for has no clock.
type clocks map[string]clock

// clock starts when this process saw what git wants.
type clock struct {
	since time.Time
	// moved: the target changed. Most commits change nothing for most components.
	moved bool
	// synced: the cluster has the target, and only health is awaited.
	synced bool
}

// start starts the clocks of the components that a revision may change. A running clock goes on,
// unless the component waited for a person: that time is not Keelson's.
func (c clocks) start(was, is *registry.Cluster, known statuses, now time.Time) clocks {
	if was == is {
		return c
	}
	whole := was == nil || !reflect.DeepEqual(was.Spec, is.Spec)
	for _, d := range is.Deliveries {
		if !whole && was.Delivery(d.Component) == d {
			continue
		}
		s := known.get(d.Component)
		on, runs := c[d.Component]
		if runs && !on.synced && !stalled(&s) && s.Sync != v1alpha1.SyncPaused {
			continue
		}
		if c == nil {
			c = clocks{}
		}
		c[d.Component] = clock{since: now, moved: on.moved && !on.synced} // a held change may be released now
	}
	return c
}

// update updates the clock after a reconcile that began at started. It returns how long the component
// took until it was in sync, and until it was healthy as well. 0: it did not become so now.
func (c clocks) update(before, after v1alpha1.DeliveryStatus, started, now time.Time) (_ clocks, synced, healthy time.Duration) {
	name := after.Component
	clock, runs := c[name]
	switch absent := after.Sync == v1alpha1.SyncAbsent; {
	case before.TargetHash != after.TargetHash, absent && before.Sync != "" && before.Sync != after.Sync:
		if !runs {
			clock.since = started // not a commit but a pin or the served API changed the target
		}
		clock.moved, runs = true, true
	case after.Sync == v1alpha1.SyncOrphaned: // git wants nothing of the component
		runs = false
	}
	took := max(now.Sub(clock.since), 1)
	there := after.Sync == v1alpha1.SyncSynced || after.Sync == v1alpha1.SyncAbsent
	if runs && there && clock.moved && !clock.synced {
		clock.synced, synced = true, took
	}
	if runs && there && clock.moved && (after.Health == v1alpha1.HealthHealthy || after.Sync == v1alpha1.SyncAbsent) {
		healthy = took
	}
	if !runs || healthy > 0 || there && !clock.moved {
		return c.without(name), synced, healthy
	}
	if c == nil {
		c = clocks{}
	}
	c[name] = clock
	return c, synced, healthy
}

// without removes a clock. The map becomes nil when it is empty, which is the usual case.
func (c clocks) without(component string) clocks {
	delete(c, component)
	if len(c) == 0 {
		return nil
	}
	return c
}
