package base

import (
	"sync"
	"time"
)

// Timer says when a workload is to be reconciled again without a change. The zero Timer says never.
// It is safe for concurrent use.
type Timer struct {
	mu    sync.Mutex
	after time.Duration
}

// RequeueAfter requests a reconcile after a time. The shortest time is used; 0 requests nothing.
func (t *Timer) RequeueAfter(after time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if after > 0 && (t.after == 0 || after < t.after) {
		t.after = after
	}
}

// After returns the shortest time requested; 0 if there is none.
func (t *Timer) After() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.after
}
