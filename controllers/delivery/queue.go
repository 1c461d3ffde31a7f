package delivery

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// waiting is the line of a work queue, and it knows since when each item waits.
// What was put off until later, or is being worked on, does not stand in it. The
// queue calls Push, Touch, Len and Pop one at a time.
//
// It is first in, first out, but for those that come again while others still wait
// for their first turn since the line was empty: the two take turns. A component
// comes to rest at its second look, and until then its objects and its record are
// in memory; behind the first looks at all others that would be those of the whole
// cluster.
type waiting struct {
	now func() time.Time
	// took hears how long an item has waited when its turn comes.
	took func(time.Duration)

	mu    sync.Mutex // age is called by others
	first []waiter   // of those that had no turn since the line was empty
	again []waiter
	had   map[string]bool // who had one
	// next says whose turn is next where both wait.
	next bool
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
		*from = nil // a queue that was long once is nearly always empty
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

// age is how many items wait, and how long the first of them has done so.
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
