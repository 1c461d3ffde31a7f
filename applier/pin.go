package applier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/keelson-io/keelson/registry"
)

// Pin keeps a component at an earlier delivery until git moves on: a rollback.
type Pin struct {
	// Number of the delivery in the history, with its version, revision and target.
	Number     int    `json:"number"`
	Version    string `json:"version"`
	Revision   string `json:"revision"`
	TargetHash string `json:"targetHash"`
	// Against is the target that git wanted when the pin was made. When git wants
	// another one, the pin has had its time.
	Against string    `json:"against"`
	By      string    `json:"by,omitempty"`
	At      time.Time `json:"at"`
	Because string    `json:"because,omitempty"`
}

// String tells people what is pinned, by whom and why; "" of no pin.
func (p *Pin) String() string {
	if p == nil {
		return ""
	}
	s := fmt.Sprintf("pinned to %d, %s", p.Number, p.Version)
	if p.By != "" {
		s += ", by " + p.By
	}
	if p.Because != "" {
		s += ": " + p.Because
	}
	return s
}

// PinnedWant is what a pin wants.
type PinnedWant struct {
	Pin *Pin
	// Now is what git says now, and Delivery the pinned one there: from them are
	// the fleet's danger rules, the cluster's labels and what is approved.
	Now      *registry.Fleet
	Delivery *registry.Delivery
	// Then is what git said at the pin's revision.
	Then *registry.Fleet
}

// Make renders what the pin wants, as it was delivered before. A [*PinError]
// says why that can't be had any more; any other error may pass.
func (w PinnedWant) Make(ctx context.Context, render Render) (Want, error) {
	p := w.Pin
	want, err := PastWant{
		Past: Delivered{Version: p.Version, Revision: p.Revision, TargetHash: p.TargetHash}, Now: w.Now, Delivery: w.Delivery, Then: w.Then,
	}.Make(ctx, render)
	var gone *PastError
	switch {
	case errors.As(err, &gone):
		return Want{}, &PinError{Pin: *p, Component: w.Delivery.Component, Err: gone.Err}
	case err != nil:
		return Want{}, fmt.Errorf("%s: %w", p, err)
	}
	want.Pin = p
	return want, nil
}

// PinError says that what is pinned can't be had from git any more. The cluster
// stays as it is.
type PinError struct {
	Pin       Pin
	Component string
	Err       error
}

func (e *PinError) Error() string {
	return fmt.Sprintf("component %s is %s, which can't be had from git at %.12s any more: %v", e.Component, &e.Pin, e.Pin.Revision, e.Err)
}

func (e *PinError) Unwrap() error { return e.Err }

// pinStale: the record says something else about a pin than what is wanted.
func (p *Prepared) pinStale() bool {
	is, wanted := p.record.Pin, p.want.Pin
	if is == nil || wanted == nil {
		return is != wanted
	}
	x, y := *is, *wanted
	x.At, y.At = time.Time{}, time.Time{} // the same time may be written in several ways
	return x != y || !is.At.Equal(wanted.At)
}

// Pin is that of the target that was planned; nil: the target is git's own.
func (p *Prepared) Pin() *Pin { return p.want.Pin }

// Version of the target that was planned.
func (p *Prepared) Version() string { return p.want.Version }

// Delivered reports whether the target was delivered in whole before, so that all there
// is to do is to set back drift.
func (p *Prepared) Delivered() bool {
	return p.quiet || p.record.TargetHash == p.want.Target.Hash && p.record.Version == p.want.Version
}
