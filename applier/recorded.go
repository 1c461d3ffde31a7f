package applier

import (
	"context"

	"github.com/keelson-io/keelson/applier/records"
)

// Record returns what the cluster stores about a component. Objects and History are empty when
// nothing was ever applied.
func (c *Cluster) Record(ctx context.Context, component string) (records.Record, error) {
	r, err := c.records.Read(ctx, component)
	if err != nil {
		return records.Record{}, err
	}
	return r.Record, nil
}

// Pin returns the pin in a component's record; nil: not pinned.
func (c *Cluster) Pin(ctx context.Context, component string) (*records.Pin, error) {
	return c.records.Pin(ctx, component)
}

// RecordVersion returns the known resourceVersion of a component's record; empty: no record. For a
// settled component it makes no request. Called before [Cluster.Pin] and [Cluster.Delivered], it
// returns the version of their answers, or an earlier one.
func (c *Cluster) RecordVersion(ctx context.Context, component string) (string, error) {
	return c.records.Version(ctx, component)
}

// Recorded returns the components that have a record in the cluster, in order,
// and remembers their records.
func (c *Cluster) Recorded(ctx context.Context) ([]string, error) {
	return c.records.List(ctx)
}

// RecordSeen receives the resourceVersion of a component's record from a watch. When the remembered
// record is older, or none is known, RecordSeen forgets it and returns true: another writer wrote
// it, so plan again.
func (c *Cluster) RecordSeen(component, version string) bool {
	return c.records.Seen(component, version)
}

// Delivered returns the last delivery of a component that was applied in whole, from its record.
// For a settled component it makes no request.
func (c *Cluster) Delivered(ctx context.Context, component string) (records.Delivered, error) {
	return c.records.Delivered(ctx, component)
}

// DeliveredAs returns the last delivery of a component that had a target; false: its history has
// none.
func (c *Cluster) DeliveredAs(ctx context.Context, component, targetHash string) (records.Delivered, bool, error) {
	last, err := c.Delivered(ctx, component)
	if err != nil || last.TargetHash == targetHash {
		return last, err == nil, err
	}
	r, err := c.Record(ctx, component)
	if err != nil {
		return records.Delivered{}, false, err
	}
	then, found := r.DeliveredAs(targetHash)
	return then, found, nil
}

// Tidy removes objects that other components have taken over from the record of a component that is
// no longer in git. It returns the number of remaining objects, and deletes a record without
// objects. Only records that this process knows count; the record of a settled component is read if
// it may hold an object. The error wraps [ErrStale] when another writer wrote the record.
func (c *Cluster) Tidy(ctx context.Context, component string) (int, error) {
	left, err := c.records.Tidy(ctx, component)
	return left, stale(err)
}
