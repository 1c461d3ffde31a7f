package queue

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// learners bounds how many clusters are read at once, after connecting or after an outage.
	learners = 16
	// relearners bounds the same for clusters whose first read failed before. If many of them hang,
	// they must not delay the other clusters.
	relearners = 4
	// learnFor bounds how long one cluster may hold a slot of Learn or Relearn. Most need a second
	// or two.
	learnFor = 20 * time.Second
	// firstReconciles bounds, per processor, how many clusters are in their first reconcile at once. In
	// that phase all records and objects of a cluster are in memory.
	firstReconciles = 2
	// firstReconcileFor bounds how long one cluster may hold a slot of First.
	firstReconcileFor = 5 * time.Second
	// reconciles bounds how many components are reconciled at once. Each needs memory for what is
	// compared, encoded and sent. A few keep all processors busy while requests are in flight.
	reconciles = 64
	// reconcileFor bounds how long one reconcile may hold a slot. A longer one is waiting for a cluster,
	// and has its memory by then.
	reconcileFor = time.Second
)

// Limiters are the limiters that all clusters of a process share.
type Limiters struct {
	Learn     Limiter // reads of the state of a cluster
	Relearn   Limiter // the same, of clusters whose first read failed before
	First     Limiter // first reconciles of a cluster
	Reconcile Limiter // reconciles of one component
}

// NewLimiters returns limiters of which every slot is free.
func NewLimiters() Limiters {
	return Limiters{
		Learn: newLimiter(learners, learnFor), Relearn: newLimiter(relearners, learnFor),
		First: newLimiter(firstReconciles*runtime.GOMAXPROCS(0), firstReconcileFor), Reconcile: newLimiter(reconciles, reconcileFor),
	}
}

// Limiter is a semaphore with a longest hold. Callers enter in the order of their calls. It is safe
// for concurrent use.
type Limiter struct {
	slots   chan struct{}
	longest time.Duration
}

func newLimiter(width int, hold time.Duration) Limiter {
	return Limiter{make(chan struct{}, width), hold}
}

// Acquire waits for a slot. The slot is released by leave, which may be called more than once, or
// after the hold. So a hanging caller blocks no slot. The error is ctx's.
func (l Limiter) Acquire(ctx context.Context) (leave func(), err error) {
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	done := sync.OnceFunc(func() { <-l.slots })
	late := time.AfterFunc(l.longest, done)
	return func() {
		late.Stop()
		done()
	}, nil
}

// IsFull reports whether all slots are taken.
func (l Limiter) IsFull() bool { return len(l.slots) == cap(l.slots) }
