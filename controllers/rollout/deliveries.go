package rollout

import (
	"context"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// Rollouts returns the Rollouts of a fleet, by component. The caller must not modify the values.
// The error is [ErrUnknown].
func (b *Cache) Rollouts(f *registry.Fleet) (map[string]*v1alpha1.Rollout, error) {
	all := b.all()
	if all == nil {
		return nil, ErrUnknown
	}
	for component, r := range all {
		if !isOf(r, f) {
			delete(all, component)
		}
	}
	return all, nil
}

// Deliveries watches all Deliveries of the hub until the context ends. all is called with a full
// list, and one for each Delivery that changed or is gone. Calls do not overlap. Status.Conditions,
// Wanted and LastDiff are left out.
func (b *Cache) Deliveries(ctx context.Context, all func([]*v1alpha1.Delivery), one func(d *v1alpha1.Delivery, gone bool)) {
	watched(ctx, b.client, &v1alpha1.DeliveryList{}, "", feed[*v1alpha1.Delivery]{all: all, one: one, slim: func(d *v1alpha1.Delivery) {
		d.Status.Conditions, d.Status.Wanted, d.Status.LastDiff = nil, nil, nil
	}})
}
