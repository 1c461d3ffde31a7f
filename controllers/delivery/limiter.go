package delivery

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
	// learnFor bounds how long one cluster may hold a slot of learn or relearn. Most need a second
	// or two.
	learnFor = 20 * time.Second
	// firstReconciles bounds, per processor, how many clusters are in their first reconcile at once. In
	// that phase all records and objects of a cluster are in memory.
	firstReconciles = 2
	// firstReconcileFor bounds how long one cluster may hold a slot of first.
	firstReconcileFor = 5 * time.Second
	// reconciles bounds how many components are reconciled at once. Each needs memory for what is
	// compared, encoded and sent. A few keep all processors busy while requests are in flight.
	reconciles = 64
	// reconcileFor bounds how long one reconcile may hold a slot. A longer one is waiting for a cluster,
	// and has its memory by then.
	reconcileFor = time.Second
)

// limiters are the limiters that all clusters of this process share.
type limiters struct{ learn, relearn, first, reconcile limiter }

func newLimiters() limiters {
	return limiters{
		learn: newLimiter(learners, learnFor), relearn: newLimiter(relearners, learnFor),
		first: newLimiter(firstReconciles*runtime.GOMAXPROCS(0), firstReconcileFor), reconcile: newLimiter(reconciles, reconcileFor),
	}
}

// limiter is a semaphore with a longest hold. Callers enter in the order of their calls.
type limiter struct {
	slots   chan struct{}
	longest time.Duration
}

func newLimiter(width int, hold time.Duration) limiter {
	return limiter{make(chan struct{}, width), hold}
}

// acquire waits for a slot. The slot is released by leave, which may be called more than once, or
// after the hold. So a hanging caller blocks no slot. The error is ctx's.
func (l limiter) acquire(ctx context.Context) (leave func(), err error) {
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

// isFull reports whether all slots are taken.
func (l limiter) isFull() bool { return len(l.slots) == cap(l.slots) }

// beginFirstReconcile begins the first reconcile of a cluster. It ends when each component was reconciled.
func (a *agent) beginFirstReconcile(leave func()) {
	names := a.components()
	a.mu.Lock()
	a.unseen, a.leave = make(map[string]bool, len(names)), leave
	a.link.cache.Expect(names)
	for _, name := range names {
		a.unseen[name] = true
	}
	a.mu.Unlock()
	if len(names) == 0 {
		leave()
	}
}

// markReconciled notes that a component was reconciled.
func (a *agent) markReconciled(component string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.unseen, component)
	if len(a.unseen) == 0 && a.leave != nil {
		a.leave()
		a.unseen, a.leave = nil, nil
	}
}

// endFirstReconcile ends the first reconcile early, because the cluster became unreachable.
func (a *agent) endFirstReconcile() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leave != nil {
		a.leave()
		a.unseen, a.leave = nil, nil
	}
}
