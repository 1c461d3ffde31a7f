package daemonset

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// After a pod has failed its node gets another at once, the next after a second, then
// after twice as long each time: numbers of the DaemonSets of apps/v1.
const (
	backoffFirst = time.Second
	backoffMost  = 15 * time.Minute
)

// backoff holds back pods of nodes on which they fail again and again. It is the one
// thing that is remembered nowhere else: a process that starts anew tries each node at
// once, and then waits again.
type backoff struct {
	mu    sync.Mutex
	waits map[spot]wait
	swept time.Time
}

// spot is where pods fail. Those of another revision may not.
type spot struct {
	set            types.UID
	revision, node string
}

type wait struct {
	since time.Time // of the last pod that was deleted
	long  time.Duration
}

func newBackoff() *backoff { return &backoff{waits: map[spot]wait{}} }

// over reports whether a spot had no trouble for long enough to begin anew.
func (w wait) over(now time.Time) bool { return now.Sub(w.since) > 2*backoffMost }

// left is how long the failed pod of a spot stays; 0: it can go.
func (b *backoff) left(at spot, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waits[at]
	return max(w.since.Add(w.long).Sub(now), 0)
}

// next takes in that a failed pod was deleted.
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
