package delivery_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/controllers/delivery"
)

// TestQueue: a queue knows how long what stands in it has waited.
func TestQueue(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var waits []time.Duration
	q := delivery.NewLine(func() time.Time { return now }, func(d time.Duration) { waits = append(waits, d) })
	defer q.ShutDown()
	age := func(why string, items int, oldest time.Duration) {
		t.Helper()
		if n, age := q.Age(); n != items || age != oldest {
			t.Errorf("%s: %d wait, the first for %s; want %d and %s", why, n, age, items, oldest)
		}
	}
	age("Nobody waits.", 0, 0)
	q.Add("web")
	now = now.Add(time.Second)
	q.Add("api")
	q.Add("web")
	now = now.Add(time.Second)
	age("Who asks twice waits once, since the first time.", 2, 2*time.Second)
	q.AddAfter("later", time.Hour)
	age("What was put off does not wait.", 2, 2*time.Second)

	name, _ := q.Get()
	age("What is worked on does not wait.", 1, time.Second)
	q.Add(name)
	now = now.Add(time.Second)
	age("What is asked for while it is worked on waits for itself, and for no worker.", 1, 2*time.Second)
	q.Done(name)
	now = now.Add(time.Second)
	var order []string
	for q.Len() > 0 {
		next, _ := q.Get()
		order = append(order, next)
		q.Done(next)
	}
	if diff := cmp.Diff([]string{"web", "api"}, order); diff != "" {
		t.Errorf("who comes again stands behind those that had no turn yet (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]time.Duration{2 * time.Second, time.Second, 3 * time.Second}, waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	age("All is done.", 0, 0)
}

// TestQueueTurns: what was begun comes to its end while others still wait to be begun,
// and keeps none of them from its turn.
func TestQueueTurns(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why   string
		first []string
		again map[string]int // how often one comes again at once
		want  []string
	}{
		"FirstInFirstOut": {
			why:   "Nobody comes again.",
			first: []string{"a", "b", "c"},
			want:  []string{"a", "b", "c"},
		},
		"Again": {
			why:   "A second look lets go of what the first one has in memory.",
			first: []string{"a", "b", "c", "d"}, again: map[string]int{"a": 1, "b": 1},
			want: []string{"a", "a", "b", "b", "c", "d"},
		},
		"Restless": {
			why:   "One that comes again and again takes every other turn, and no more.",
			first: []string{"a", "b", "c"}, again: map[string]int{"a": 4},
			want: []string{"a", "a", "b", "a", "c", "a", "a"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := delivery.NewLine(time.Now, func(time.Duration) {})
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
