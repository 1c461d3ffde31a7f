package delivery

import (
	"reflect"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// clocks measure how long it takes until a cluster has what git wants of it, by
// component. Only those run that something is left to wait for.
type clocks map[string]clock

// clock runs from the moment at which this process saw what git wants.
type clock struct {
	since time.Time
	// moved says that it wants something else than before: most commits change
	// nothing for most components.
	moved bool
	// synced says that the cluster has it, and that health is waited for.
	synced bool
}

// start has the clocks run of those components that a revision may mean something
// new for. A clock that runs goes on, unless a person was waited for: that time is
// not Keelson's.
func (c clocks) start(was, is *registry.Cluster, known statuses, now time.Time) clocks {
	if was == is {
		return c
	}
	whole := was == nil || !reflect.DeepEqual(was.Spec, is.Spec)
	for _, d := range is.Deliveries {
		if !whole && was.Delivery(d.Component) == d {
			continue
		}
		s := known.of(d.Component)
		on, runs := c[d.Component]
		if runs && !on.synced && !stalled(&s) && s.Sync != v1alpha1.SyncPaused {
			continue
		}
		if c == nil {
			c = clocks{}
		}
		c[d.Component] = clock{since: now, moved: on.moved && !on.synced} // what was held may be let go now
	}
	return c
}

// look takes in what a look at a component that began at started has found. It
// returns how long it took until the component was in sync, and until it was healthy
// as well; 0: it was not now that it became so, or nothing had been asked.
func (c clocks) look(before, after v1alpha1.DeliveryStatus, started, now time.Time) (_ clocks, synced, healthy time.Duration) {
	name := after.Component
	clock, runs := c[name]
	switch absent := after.Sync == v1alpha1.SyncAbsent; {
	case before.TargetHash != after.TargetHash, absent && before.Sync != "" && before.Sync != after.Sync:
		if !runs {
			clock.since = started // what git wants changed by other ways: a pin, what the cluster serves
		}
		clock.moved, runs = true, true
	case after.Sync == v1alpha1.SyncOrphaned: // git wants nothing of it
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

// without is what is left when one has ended: nothing at all, nearly always.
func (c clocks) without(component string) clocks {
	delete(c, component)
	if len(c) == 0 {
		return nil
	}
	return c
}
