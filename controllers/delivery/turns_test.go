package delivery

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLane: who takes long keeps nobody waiting for longer than the lane allows.
func TestLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLane(2, time.Second)
		began := time.Now()
		take := func(after time.Duration, why string) func() {
			t.Helper()
			leave, err := l.take(t.Context())
			if err != nil || time.Since(began) != after {
				t.Fatalf("%s It came after %s, not %s: %v", why, time.Since(began), after, err)
			}
			return leave
		}
		slow := take(0, "Nobody is there.")
		quick := take(0, "Two may go at once.")
		time.AfterFunc(300*time.Millisecond, quick)
		take(300*time.Millisecond, "One has left.")
		take(time.Second, "The first has had its time.")
		slow() // what it had is another's by now
		slow()
		take(1300*time.Millisecond, "Only the second of the others has had its time.")

		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.take(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("A turn that never came: %v", err)
		}
	})
}
