package delivery

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// pastKept bounds how many old revisions are kept in memory.
const pastKept = 8

// past caches fleets of earlier revisions. It is safe for concurrent use.
type past struct {
	repo *registry.Repo

	mu     sync.Mutex
	fleets []*registry.Fleet // in order of use, the latest last
}

func (p *past) at(ctx context.Context, revision string) (*registry.Fleet, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.fleets, func(f *registry.Fleet) bool { return f.Revision == revision })
	if i >= 0 {
		f := p.fleets[i]
		p.fleets = append(slices.Delete(p.fleets, i, i+1), f)
		return f, nil
	}
	f, err := p.repo.LoadCommit(ctx, revision)
	if err != nil {
		return nil, err
	}
	p.fleets = append(p.fleets, f)
	if len(p.fleets) > pastKept {
		p.fleets = slices.Delete(p.fleets, 0, 1)
	}
	return f, nil
}

// want returns the state that a component should have, given its target in git. A pin has
// precedence until the target in git changes; then a delivered version stays until the target is
// released.
func (r *resolver) want(ctx context.Context, s snapshot, target *renderer.Target, t *attempt) (applier.Desired, stageOutcome) {
	pin, err := s.link.cluster.Pin(ctx, s.delivery.Component)
	if err != nil {
		return applier.Desired{}, stopAndRetry(r.failed(), err)
	}
	if pin != nil && pin.Against != target.Hash {
		r.log.Info("git moved on: the pin ends", "component", s.delivery.Component, "pin", pin.String())
		pin = nil
	}
	if pin == nil {
		return r.due(ctx, s, target, t)
	}
	t.pin = pin
	want, err := r.pinned(ctx, s, pin)
	switch {
	case errors.As(err, new(*applier.PinError)):
		return want, stop(v1alpha1.SyncBlocked, err.Error())
	case err != nil:
		return want, stopAndRetry(v1alpha1.SyncFailed, err)
	}
	t.targetHash, t.revision = want.Target.Hash, pin.Revision
	return want, stageOutcome{}
}

func (r *resolver) pinned(ctx context.Context, s snapshot, pin *records.Pin) (applier.Desired, error) {
	then, err := r.past.at(ctx, pin.Revision)
	if err != nil {
		if ctx.Err() != nil {
			return applier.Desired{}, ctx.Err()
		}
		return applier.Desired{}, &applier.PinError{Pin: *pin, Component: s.delivery.Component, Err: err}
	}
	return applier.PinnedWant{Pin: pin, Now: s.fleet, Delivery: s.delivery, Then: then}.Make(ctx, r.renderThen(s))
}

// pinnedStatus returns a pin as a status shows it.
func pinnedStatus(p *records.Pin) *v1alpha1.PinnedDelivery {
	if p == nil {
		return nil
	}
	return &v1alpha1.PinnedDelivery{
		Number: int32(p.Number), Version: p.Version, Revision: p.Revision, By: p.By, Because: p.Because, //nolint:gosec // deliveries are few
	}
}
