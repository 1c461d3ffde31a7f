package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// Limits bound what a git server can make Keelson do. The zero value of each is
// its default.
type Limits struct {
	// Time that one fetch may take (15m), and that the server may be silent for
	// in it (1m).
	Time, Silence time.Duration
	// Refs is how many branches and tags a repository may have (100,000), and
	// RefBytes how long the server's list may be (32 MiB).
	Refs     int
	RefBytes int64
	// PackBytes may be received in one fetch (1 GiB), with so many Objects
	// (500,000) that are so large when they are inflated: each (32 MiB; trees
	// 4 MiB, commits and tags 1 MiB) and all together (8 GiB).
	PackBytes     int64
	Objects       int
	ObjectBytes   int64
	InflatedBytes int64
	// ProposalBytes is PackBytes for a proposal, which anybody may make (64 MiB). It has at
	// most 100,000 objects, of 8 MiB each and 1 GiB together.
	ProposalBytes int64
	// ProposalsBytes is what the packs of a clone with proposals may have beside the largest
	// one, before it is fetched anew and holds no proposal any more (256 MiB): who pushes to
	// a pull request again and again would fill the disk.
	ProposalsBytes int64
	// Packs is how many packs a clone may have before it is fetched anew, as
	// one (100): each fetch adds one, and a branch that is rewritten again and
	// again would fill the disk.
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

// ofProposal are those of the pack of a proposal.
func (l Limits) ofProposal() Limits {
	l.PackBytes = l.ProposalBytes
	l.Objects, l.ObjectBytes, l.InflatedBytes = min(l.Objects, 100_000), min(l.ObjectBytes, 8<<20), min(l.InflatedBytes, 1<<30)
	return l
}

// watchdog ends what a context is for when nothing has come for a while.
type watchdog struct {
	silence time.Duration
	timer   *time.Timer
	// left is how many bytes may still come.
	left atomic.Int64
	most int64 // that left began at
}

// ErrTooMuch is wrapped by the error of a fetch that is larger than its [Limits] allow.
var ErrTooMuch = errors.New("the server sends more than is allowed")

// watch returns a context that ends when the watchdog is not fed for a while.
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

// allow sets how many bytes may come from here on.
func (w *watchdog) allow(bytes int64) {
	w.most = bytes
	w.left.Store(bytes)
}

// rest is for when all has come: what takes long from here on is our own work.
func (w *watchdog) rest() { w.timer.Stop() }

// reader feeds the watchdog with what comes from r.
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
