// Package pace decides when to read a source again: at an interval, and soon after a request, but
// at most once per second.
package pace

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// fetchGap is the shortest time between a read and the next requested read.
	fetchGap = time.Second
	// jitter is the random part of the interval. It keeps processes that were started together from
	// reading together.
	jitter = 0.1
)

// Pace decides when to read again. A Pace is made by New.
type Pace struct {
	interval time.Duration
	asked    chan struct{} // one pending request
	gap      *time.Timer   // fires fetchGap after the last return of Wait
}

// New returns a pace with an interval, which is varied at random by up to a tenth.
func New(interval time.Duration) *Pace {
	return &Pace{interval: interval, asked: make(chan struct{}, 1), gap: time.NewTimer(0)}
}

// Soon requests a read. One pending request is enough, because a read that starts later sees every
// earlier change.
func (p *Pace) Soon() {
	select {
	case p.asked <- struct{}{}:
	default:
	}
}

// Wait returns true when the next read is due, and false if the context ends first. Only one
// goroutine at a time may call Wait.
func (p *Pace) Wait(ctx context.Context) bool {
	rest := float64(p.interval) * (1 - jitter + 2*jitter*rand.Float64()) //nolint:gosec // no secret
	poll := time.NewTimer(time.Duration(rest))
	defer poll.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-poll.C:
		select { // this read also answers a pending request
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
