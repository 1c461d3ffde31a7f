package differ

import (
	"context"
	"errors"
	"fmt"
)

// ErrTooMuch is wrapped by the error of a comparison that would cost more than it may. It
// says nothing about the objects: what was not judged is not harmless.
var ErrTooMuch = errors.New("too much to judge")

const (
	// compareEffort bounds one [Compare], in units of CEL's cost: some seconds of a
	// processor. Of the largest public charts the built-in rules take a hundredth of it.
	compareEffort = 100_000_000
	// conditionEffort is counted for an evaluation beside the cost that CEL counts: a
	// condition that costs nothing takes microseconds, too.
	conditionEffort = 100
	// checkEvery is how many units may pass before the context is asked again.
	checkEvery = 64
)

// effort is what may still be spent on one call of [Compare] or [Try], and ends with its
// context. Once it is spent, its error stays, and that call has no result.
type effort struct {
	cause     func() error // why the context ended; nil: it has not
	units     uint64       // that left began with
	left      uint64
	unchecked uint64
	err       error
}

func newEffort(ctx context.Context, units uint64) *effort {
	return &effort{cause: func() error { return context.Cause(ctx) }, units: units, left: units}
}

// spend takes units: one for a field, or for a rule that is asked about it, and what a
// condition costs. With the error, the caller stops.
func (e *effort) spend(units uint64) error {
	if e.err != nil {
		return e.err
	}
	if e.unchecked += units; e.unchecked >= checkEvery {
		e.unchecked = 0
		if e.err = e.cause(); e.err != nil {
			return e.err
		}
	}
	if units > e.left {
		e.left = 0
		e.err = fmt.Errorf("%w: the danger rules take more than %d units of CEL's cost on what differs; "+
			"make their conditions cheaper, or the component smaller", ErrTooMuch, e.units)
		return e.err
	}
	e.left -= units
	return nil
}
