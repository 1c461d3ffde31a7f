package applier

import (
	"context"
	"errors"
	"fmt"

	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/registry"
)

// PinnedWant is the delivery to which a component is pinned.
type PinnedWant struct {
	Pin *records.Pin
	// Now is the fleet as git has it now, and Delivery the pinned delivery there. They give the
	// fleet's danger rules, the cluster's labels and the approvals.
	Now      *registry.Fleet
	Delivery *registry.Delivery
	// Then is the fleet at the pin's revision.
	Then *registry.Fleet
}

// Make renders the pinned delivery as before. A [*PinError] says why this is no longer possible;
// any other error may be temporary.
func (w PinnedWant) Make(ctx context.Context, render Render) (Desired, error) {
	p := w.Pin
	want, err := HistoricalDesired{
		Past: records.Delivered{Version: p.Version, Revision: p.Revision, TargetHash: p.TargetHash}, Now: w.Now, Delivery: w.Delivery, Then: w.Then,
	}.Build(ctx, render)
	var gone *HistoricalError
	switch {
	case errors.As(err, &gone):
		return Desired{}, &PinError{Pin: *p, Component: w.Delivery.Component, Err: gone.Err}
	case err != nil:
		return Desired{}, fmt.Errorf("%s: %w", p, err)
	}
	want.Pin = p
	return want, nil
}

// PinError reports that the pinned delivery can't be rendered from git any more. The cluster stays
// as it is.
type PinError struct {
	Pin       records.Pin
	Component string
	Err       error
}

func (e *PinError) Error() string {
	return fmt.Sprintf("component %s is %s, which can't be had from git at %.12s any more: %v", e.Component, &e.Pin, e.Pin.Revision, e.Err)
}

func (e *PinError) Unwrap() error { return e.Err }

// pinStale reports whether the record's pin differs from the wanted one.
func (p *Prepared) pinStale() bool {
	return !p.record.Pin.Equal(p.want.Pin)
}

// Pin returns the pin of the planned target; nil: the target is git's own.
func (p *Prepared) Pin() *records.Pin { return p.want.Pin }

// Version returns the version of the planned target.
func (p *Prepared) Version() string { return p.want.Version }

// Delivered reports whether the target was applied in whole before, so that only drift is
// corrected.
func (p *Prepared) Delivered() bool {
	return p.fromSettledCache || p.record.TargetHash == p.want.Target.Hash && p.record.Version == p.want.Version
}
