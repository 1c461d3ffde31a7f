package queue

import (
	"testing"
	"testing/synctest"
)

// TestWindow: how many reconciles are under way at one cluster follows from how many of them end.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := NewConcurrencyLimit(), false
		go func() {
			for w.Wait(); !stop; w.Wait() {
				w.Begin()
			}
		}()
		ends := func(times int, scarce bool) {
			for range times {
				w.End(scarce)
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
		under(fewPlaces, "none has ended, and the cluster may hang")
		ends(3, false)
		under(fewPlaces+3, "one more for each that ended")
		ends(4*mostPlaces, false)
		under(mostPlaces, "the API server is not to be flooded")
		ends(5, true)
		under(mostPlaces-5, "one less for each that others had to wait for")
		ends(4*mostPlaces, true)
		under(fewPlaces, "no cluster waits for all others")
		ends(mostPlaces, false)
		under(mostPlaces, "there are turns again")

		stop = true
		ends(mostPlaces, false)
		if w.open != fewPlaces {
			t.Errorf("the window stands open for %d after all has ended, want %d: what comes may hang", w.open, fewPlaces)
		}
	})
}
