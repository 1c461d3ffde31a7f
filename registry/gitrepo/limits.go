package gitrepo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// Limits bound what a git server can make Keelson do. A zero field means its default.
type Limits struct {
	// Time bounds one fetch (15m), and Silence the time without data from the server (1m).
	Time, Silence time.Duration
	// Refs bounds the branches and tags of a repository (100,000), and RefBytes the server's list
	// of refs (32 MiB).
	Refs     int
	RefBytes int64
	// PackBytes bounds the received bytes of one fetch (1 GiB), and Objects the number of its
	// objects (500,000). ObjectBytes bounds each inflated object (32 MiB; trees 4 MiB, commits and
	// tags 1 MiB), and InflatedBytes all together (8 GiB).
	PackBytes     int64
	Objects       int
	ObjectBytes   int64
	InflatedBytes int64
	// ProposalBytes is PackBytes for a proposal, which may come from anyone (64 MiB). A proposal
	// has at most 100,000 objects, of 8 MiB each and 1 GiB together.
	ProposalBytes int64
	// ProposalsBytes bounds the packs of a clone with proposals, except the largest pack (256 MiB).
	// Above it, the clone is fetched anew without proposals. Otherwise repeated pushes to a pull
	// request would fill the disk.
	ProposalsBytes int64
	// Packs is the number of packs of a clone at which it is fetched anew as one pack (100). Each
	// fetch adds a pack, so a branch that is rewritten repeatedly would fill the disk.
	Packs int
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Time:          cmp.Or(l.Time, 15*time.Minute),
		Silence:       cmp.Or(l.Silence, time.Minute),
		Refs:          cmp.Or(l.Refs, 100_000),
		RefBytes:      cmp.Or(l.RefBytes, 32<<20),
		PackBytes:     cmp.Or(l.PackBytes, 1<<30),
		Objects:       cmp.Or(l.Objects, 500_000),
		ObjectBytes:   cmp.Or(l.ObjectBytes, 32<<20),
		InflatedBytes: cmp.Or(l.InflatedBytes, 8<<30),
		ProposalBytes: cmp.Or(l.ProposalBytes, 64<<20),
		Packs:         cmp.Or(l.Packs, 100),

		ProposalsBytes: cmp.Or(l.ProposalsBytes, 256<<20),
	}
}

// ofProposal returns the limits for the pack of a proposal.
func (l Limits) ofProposal() Limits {
	l.PackBytes = l.ProposalBytes
	l.Objects, l.ObjectBytes, l.InflatedBytes = min(l.Objects, 100_000), min(l.ObjectBytes, 8<<20), min(l.InflatedBytes, 1<<30)
	return l
}

// watchdog cancels a context when no data arrives for a while.
type watchdog struct {
	silence time.Duration
	timer   *time.Timer
	// left is how many more bytes may arrive.
	left atomic.Int64
	most int64 // the initial value of left
}

// ErrTooMuch is wrapped by the error of a fetch that exceeds its [Limits].
var ErrTooMuch = errors.New("the server sends more than is allowed")

// watch returns a context that is canceled when no data arrives for the duration silence.
func watch(ctx context.Context, silence time.Duration) (context.Context, *watchdog, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{silence: silence}
	w.timer = time.AfterFunc(silence, func() {
		cancel(fmt.Errorf("the server was silent for %s", silence))
	})
	return ctx, w, func() {
		w.timer.Stop()
		cancel(nil)
	}
}

// allow sets how many bytes may arrive from now on.
func (w *watchdog) allow(bytes int64) {
	w.most = bytes
	w.left.Store(bytes)
}

// stop stops the watchdog after the last byte. The time after it is Keelson's own work.
func (w *watchdog) stop() { w.timer.Stop() }

// reader returns a reader that resets the watchdog at each read from r, and fails with ErrTooMuch.
func (w *watchdog) reader(r io.Reader) io.Reader { return &watchedReader{w, r} }

type watchedReader struct {
	w *watchdog
	r io.Reader
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.w.timer.Reset(r.w.silence)
	if r.w.left.Add(-int64(n)) < 0 {
		return n, ErrTooMuch
	}
	return n, err //nolint:wrapcheck // a reader's errors are its caller's
}
