package delivery

import (
	"testing"
	"testing/synctest"
)

// TestWindow: how much is under way at one cluster follows from how much of it ends.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := newWindow(), false
		go func() {
			for w.wait(); !stop; w.wait() {
				w.begin()
			}
		}()
		ends := func(times int) {
			for range times {
				w.end()
				synctest.Wait() // another one begins
			}
		}
		under := func(want int, why string) {
			t.Helper()
			synctest.Wait()
			if w.busy != want {
				t.Errorf("%d looks are under way, want %d: %s", w.busy, want, why)
			}
		}
		under(fewLooksAtOnce, "none has ended, and the cluster may hang")
		ends(3)
		under(fewLooksAtOnce+3, "one more for each that ended")
		ends(4 * mostLooksAtOnce)
		under(mostLooksAtOnce, "the API server is not to be flooded")
		ends(mostLooksAtOnce)
		under(mostLooksAtOnce, "they went on without a break")

		stop = true
		ends(mostLooksAtOnce)
		if w.open != fewLooksAtOnce {
			t.Errorf("the window stands open for %d after all has ended, want %d: what comes may hang", w.open, fewLooksAtOnce)
		}
	})
}
