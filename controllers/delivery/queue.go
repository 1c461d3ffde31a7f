package delivery

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// waiting is the line of a work queue: first in, first out, and it knows since when
// each item waits. What was put off until later, or is being worked on, does not
// stand in it. The queue calls Push, Touch, Len and Pop one at a time.
type waiting struct {
	now func() time.Time
	// took hears how long an item has waited when its turn comes.
	took func(time.Duration)

	mu    sync.Mutex // age is called by others
	items []waiter
}

type waiter struct {
	name  string
	since time.Time
}

// newQueue makes a work queue on a line, with the waits after failures in row.
func newQueue(line *waiting, first, last time.Duration) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](first, last),
		workqueue.TypedRateLimitingQueueConfig[string]{
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
				Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Queue: line}),
			}),
		})
}

// Touch implements [workqueue.Queue]. Who asks again waits since the first time.
func (w *waiting) Touch(string) {}

// Push implements [workqueue.Queue].
func (w *waiting) Push(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.items = append(w.items, waiter{name: name, since: w.now()})
}

// Len implements [workqueue.Queue].
func (w *waiting) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.items)
}

// Pop implements [workqueue.Queue]. It is not called while Len is 0.
func (w *waiting) Pop() string {
	w.mu.Lock()
	first := w.items[0]
	w.items[0] = waiter{}
	w.items = w.items[1:]
	if len(w.items) == 0 {
		w.items = nil // a queue that was long once is nearly always empty
	}
	w.mu.Unlock()
	w.took(w.now().Sub(first.since))
	return first.name
}

// age is how many items wait, and how long the first of them has done so.
func (w *waiting) age() (n int, oldest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.items) == 0 {
		return 0, 0
	}
	return len(w.items), w.now().Sub(w.items[0].since)
}
