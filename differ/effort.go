package differ

import (
	"context"
	"errors"
	"fmt"
)

// ErrTooMuch is wrapped by the error of a comparison that would cost too much. It does not describe
// the objects: an object that was not judged may be dangerous.
var ErrTooMuch = errors.New("too much to judge")

const (
	// compareEffort bounds one [Compare], in units of CEL's cost: some seconds of CPU time. For the
	// largest public charts, the built-in rules take a hundredth of this.
	compareEffort = 100_000_000
	// conditionEffort is added to the cost that CEL counts for an evaluation: a condition without
	// cost still takes microseconds.
	conditionEffort = 100
	// checkEvery is the number of units after which the context is checked again.
	checkEvery = 64
)

// effort is the remaining budget of one call of [Compare] or [Try], and ends with its context. Once
// it is spent, the error stays, and the call has no result.
type effort struct {
	cause     func() error // why the context ended; nil: not ended
	units     uint64       // the initial value of left
	left      uint64
	unchecked uint64
	err       error
}

func newEffort(ctx context.Context, units uint64) *effort {
	return &effort{cause: func() error { return context.Cause(ctx) }, units: units, left: units}
}

// spend subtracts units: one for a field, one for a rule that is tried on the field, and the cost
// of a condition. After an error, the caller stops.
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
