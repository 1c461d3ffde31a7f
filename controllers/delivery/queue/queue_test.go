package queue_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/controllers/delivery/queue"
)

// TestQueue: a queue knows how long its components have waited.
func TestQueue(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var waits []time.Duration
	q := queue.New(func() time.Time { return now }, func(d time.Duration) { waits = append(waits, d) })
	defer q.ShutDown()
	age := func(why string, items int, oldest time.Duration) {
		t.Helper()
		if n, age := q.Age(); n != items || age != oldest {
			t.Errorf("%s: %d wait, the first for %s; want %d and %s", why, n, age, items, oldest)
		}
	}
	age("The queue is empty.", 0, 0)
	q.Add("web")
	now = now.Add(time.Second)
	q.Add("api")
	q.Add("web")
	now = now.Add(time.Second)
	age("A component that is added twice waits once, since the first time.", 2, 2*time.Second)
	q.AddAfter("later", time.Hour)
	age("A component that was added with a delay does not wait yet.", 2, 2*time.Second)

	name, _ := q.Get()
	age("A component that is being reconciled does not wait.", 1, time.Second)
	q.Add(name)
	now = now.Add(time.Second)
	age("A component that is added during its own reconcile does not wait for a worker.", 1, 2*time.Second)
	q.Done(name)
	now = now.Add(time.Second)
	var order []string
	for q.Len() > 0 {
		next, _ := q.Get()
		order = append(order, next)
		q.Done(next)
	}
	if diff := cmp.Diff([]string{"web", "api"}, order); diff != "" {
		t.Errorf("a component that comes again is queued behind those not reconciled yet (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]time.Duration{2 * time.Second, time.Second, 3 * time.Second}, waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	age("All components are done.", 0, 0)
}

// TestQueueTurns: a component that was begun is finished while others still wait for their first
// reconcile, and does not block them.
func TestQueueTurns(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why   string
		first []string
		again map[string]int // how often a component comes again at once
		want  []string
	}{
		"FirstInFirstOut": {
			why:   "No component comes again.",
			first: []string{"a", "b", "c"},
			want:  []string{"a", "b", "c"},
		},
		"Again": {
			why:   "The second reconcile releases what the first one holds in memory.",
			first: []string{"a", "b", "c", "d"}, again: map[string]int{"a": 1, "b": 1},
			want: []string{"a", "a", "b", "b", "c", "d"},
		},
		"Restless": {
			why:   "A component that always comes again gets every other turn at most.",
			first: []string{"a", "b", "c"}, again: map[string]int{"a": 4},
			want: []string{"a", "a", "b", "a", "c", "a", "a"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := queue.New(time.Now, func(time.Duration) {})
			defer q.ShutDown()
			for _, item := range c.first {
				q.Add(item)
			}
			var got []string
			for q.Len() > 0 {
				item, _ := q.Get()
				got = append(got, item)
				if c.again[item] > 0 {
					c.again[item]--
					q.Add(item)
				}
				q.Done(item)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
		})
	}
}
