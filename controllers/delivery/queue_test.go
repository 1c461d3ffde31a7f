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
	if diff := cmp.Diff([]string{"api", "web"}, order); diff != "" {
		t.Errorf("not first in, first out (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]time.Duration{2 * time.Second, 3 * time.Second, time.Second}, waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	age("All is done.", 0, 0)
}
