// Package queue decides when which component of which cluster is reconciled.
//
// A cluster has a [Queue] of components and a [ConcurrencyLimit]. All clusters of a process share
// [Limiters], whose slots have a longest hold: a hanging cluster delays no other cluster. A
// [BurstDetector] tunes the garbage collector while many components are reconciled.
package queue

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// waiting is the storage of a work queue, and records since when each item waits. Delayed items,
// and items in work, are not in it. The queue calls Push, Touch, Len and Pop one at a time.
//
// It is first in, first out, with one exception. After the queue was empty, items in their first
// turn alternate with items that return. A component comes to rest at its second reconcile, and
// until then its objects and its record are in memory. If all second reconciles came after all
// first ones, the whole cluster would be in memory.
type waiting struct {
	now func() time.Time
	// took is called with the waiting time of an item when it leaves the queue.
	took func(time.Duration)

	mu    sync.Mutex // age is called concurrently
	first []waiter   // items without a turn since the queue was empty
	again []waiter
	had   map[string]bool // items that had a turn since then
	// next: if both lists have items, the next one comes from again.
	next bool
}

type waiter struct {
	name  string
	since time.Time
}

// The backoff of a [Queue] after transient failures.
const (
	RetryFirst = 200 * time.Millisecond
	RetryLast  = 30 * time.Second
)

// Queue is a work queue that knows how long its items wait. It is safe for concurrent use.
type Queue struct {
	workqueue.TypedRateLimitingInterface[string]
	waiting *waiting
}

// New makes an empty queue. took is called with the waiting time of each item that leaves the queue.
func New(now func() time.Time, took func(time.Duration)) *Queue {
	items := &waiting{now: now, took: took}
	return &Queue{
		waiting: items,
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](RetryFirst, RetryLast),
			workqueue.TypedRateLimitingQueueConfig[string]{
				DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
					Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Queue: items}),
				}),
			}),
	}
}

// Age returns how many items wait, and how long the oldest item has waited.
func (q *Queue) Age() (n int, oldest time.Duration) { return q.waiting.age() }

// Touch implements [workqueue.Queue]. An item that is added again keeps its place and time.
func (w *waiting) Touch(string) {}

// Push implements [workqueue.Queue].
func (w *waiting) Push(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	is := waiter{name: name, since: w.now()}
	if w.had[name] {
		w.again = append(w.again, is)
	} else {
		w.first = append(w.first, is)
	}
}

// Len implements [workqueue.Queue].
func (w *waiting) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.first) + len(w.again)
}

// Pop implements [workqueue.Queue]. It is not called while Len is 0.
func (w *waiting) Pop() string {
	w.mu.Lock()
	is := w.popLocked()
	w.mu.Unlock()
	w.took(w.now().Sub(is.since))
	return is.name
}

func (w *waiting) popLocked() (is waiter) {
	from := &w.first
	if len(w.first) == 0 || w.next && len(w.again) > 0 {
		from = &w.again
	}
	w.next = from == &w.first
	is, (*from)[0] = (*from)[0], waiter{}
	if *from = (*from)[1:]; len(*from) == 0 {
		*from = nil // free the memory of a long queue
	}
	if w.first == nil && w.again == nil {
		w.had = nil
		return is
	}
	if w.had == nil {
		w.had = map[string]bool{}
	}
	w.had[is.name] = true
	return is
}

// age returns how many items wait, and how long the oldest item has waited.
func (w *waiting) age() (n int, oldest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range [][]waiter{w.first, w.again} {
		if len(line) > 0 {
			oldest = max(oldest, w.now().Sub(line[0].since))
		}
		n += len(line)
	}
	return n, oldest
}
