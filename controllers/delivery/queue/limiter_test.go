package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimiter: a slow caller blocks a slot for no longer than the limiter allows.
func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(2, time.Second)
		began := time.Now()
		take := func(after time.Duration, why string) func() {
			t.Helper()
			leave, err := l.Acquire(t.Context())
			if err != nil || time.Since(began) != after {
				t.Fatalf("%s It came after %s, not %s: %v", why, time.Since(began), after, err)
			}
			return leave
		}
		slow := take(0, "All slots are free.")
		quick := take(0, "Two callers may have slots at once.")
		time.AfterFunc(300*time.Millisecond, quick)
		take(300*time.Millisecond, "One slot was released.")
		take(time.Second, "The first caller reached the longest hold.")
		slow() // its slot belongs to another caller by now
		slow()
		take(1300*time.Millisecond, "Only the third caller reached the longest hold.")

		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no slot was free before the deadline: %v", err)
		}
	})
}
