package applier

import (
	"fmt"

	"github.com/keelson-io/keelson/applier/records"
)

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
