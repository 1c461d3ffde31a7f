package delivery

import (
	"context"
	"errors"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/renderer"
)

// want returns the state that a component should have, given its target in git. A pin has
// precedence until the target in git changes; then a delivered version stays until the target is
// released.
func (r *resolver) want(ctx context.Context, s snapshot, target *renderer.Target, t *attempt) (applier.Desired, stageOutcome) {
	pin, err := s.link.cluster.Pin(ctx, s.delivery.Component)
	if err != nil {
		return applier.Desired{}, stopAndRetry(r.failed(), err)
	}
	held := pin.Holds(target.Hash)
	if held == nil {
		if pin != nil {
			r.log.Info("git moved on: the pin ends", "component", s.delivery.Component, "pin", pin.String())
		}
		return r.due(ctx, s, target, t)
	}
	t.pin = held
	want, err := r.earlier.Pinned(ctx, s.fleet, s.delivery, held, r.renderThen(s))
	switch {
	case errors.As(err, new(*applier.PinError)):
		return want, stop(v1alpha1.SyncBlocked, err.Error())
	case err != nil:
		return want, stopAndRetry(v1alpha1.SyncFailed, err)
	}
	t.targetHash, t.revision = want.Target.Hash, held.Revision
	return want, stageOutcome{}
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
