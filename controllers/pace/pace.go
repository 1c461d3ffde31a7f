// Package pace says when something is read again: at an interval, and soon after
// somebody asked, but never twice in a second.
package pace

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// fetchGap lies at least between two reads, whoever asks.
	fetchGap = time.Second
	// jitter is the part of the interval that chance adds or takes, so that
	// processes that were started together don't ask together for ever.
	jitter = 0.1
)

// Pace says when to read again.
type Pace struct {
	interval time.Duration
	asked    chan struct{} // holds one
	gap      *time.Timer   // since Wait let go
}

// New returns a pace with an interval, which is given or taken a tenth.
func New(interval time.Duration) *Pace {
	return &Pace{interval: interval, asked: make(chan struct{}, 1), gap: time.NewTimer(0)}
}

// Soon asks for the next read. One that begins later will see what the asking is
// about, so one that is asked for already is enough.
func (p *Pace) Soon() {
	select {
	case p.asked <- struct{}{}:
	default:
	}
}

// Wait returns true when it is time for the next read, and false when the context
// ends before. It is for one goroutine at a time.
func (p *Pace) Wait(ctx context.Context) bool {
	rest := float64(p.interval) * (1 - jitter + 2*jitter*rand.Float64()) //nolint:gosec // no secret
	poll := time.NewTimer(time.Duration(rest))
	defer poll.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-poll.C:
		select { // whoever asked has it now
		case <-p.asked:
		default:
		}
	case <-p.asked:
		select {
		case <-ctx.Done():
			return false
		case <-p.gap.C:
		}
	}
	p.gap.Reset(fetchGap)
	return true
}
