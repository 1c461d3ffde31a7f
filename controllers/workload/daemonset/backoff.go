package daemonset

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The first failed pod of a node is replaced at once, the next after a second, then after twice
// as long each time. These are the numbers of the DaemonSets of apps/v1.
const (
	backoffFirst = time.Second
	backoffMost  = 15 * time.Minute
)

// backoff delays the replacement of pods on nodes where they fail repeatedly. It is the only
// state that is not in the objects: a new process replaces a failed pod at once, and then delays
// again.
type backoff struct {
	mu    sync.Mutex
	waits map[spot]wait
	swept time.Time
}

// spot is a node on which pods of a revision fail. Another revision may not fail.
type spot struct {
	set            types.UID
	revision, node string
}

type wait struct {
	since time.Time // when the last failed pod was deleted
	long  time.Duration
}

func newBackoff() *backoff { return &backoff{waits: map[spot]wait{}} }

// over reports whether a spot had no failure for twice backoffMost, so that its delay starts
// again.
func (w wait) over(now time.Time) bool { return now.Sub(w.since) > 2*backoffMost }

// remaining returns how long the failed pod of a spot must stay; 0 if it can be deleted.
func (b *backoff) remaining(at spot, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waits[at]
	return max(w.since.Add(w.long).Sub(now), 0)
}

// next records that a failed pod was deleted, and doubles the delay.
func (b *backoff) next(at spot, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, known := b.waits[at]
	if !known || w.over(now) {
		w.long = backoffFirst / 2
	}
	b.waits[at] = wait{since: now, long: min(2*w.long, backoffMost)}
	if now.Sub(b.swept) < backoffMost {
		return
	}
	b.swept = now
	for at, w := range b.waits {
		if w.over(now) {
			delete(b.waits, at)
		}
	}
}
