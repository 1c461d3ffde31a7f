package connect

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestBeat: a beat wakes all its waiters at the same moment, and none later than it would wake on
// its own. Without waiters no timer runs.
func TestBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, b := time.Now(), &beat{}
		at := func(c <-chan struct{}, want time.Duration, why string) {
			t.Helper()
			if <-c; time.Since(began) != want {
				t.Errorf("%s It woke after %s, not %s.", why, time.Since(began), want)
			}
		}
		first := b.in(10 * time.Second)
		<-time.After(3 * time.Second)
		second, alone := b.in(10*time.Second), (*beat)(nil).in(10*time.Second)
		at(first, 10*time.Second, "It came first.")
		at(second, 10*time.Second, "It came later, and is woken with the first.")
		at(alone, 13*time.Second, "It waits on a beat of its own.")
		at(b.in(10*time.Second), 23*time.Second, "The round before is over.")
	})
}
