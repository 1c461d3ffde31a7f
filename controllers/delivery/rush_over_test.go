package delivery

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestRushOver: a rush ends once, some time after its last look. A start is one; after
// that a few looks are none.
func TestRushOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type event struct {
			at   time.Duration
			what string
		}
		var is, want []event
		began := time.Now()
		note := func(into *[]event, at time.Duration, what string) {
			*into = append(*into, event{at.Round(time.Millisecond), what})
		}
		r := newRush(
			func() { note(&is, time.Since(began), "begins") },
			func(many bool) { note(&is, time.Since(began), map[bool]string{true: "over", false: "was none"}[many]) },
		)
		note(&want, 0, "begins")
		look := func(times int) (last time.Duration) {
			for range times {
				r.looked()
				last = time.Since(began)
				<-time.After(10 * time.Millisecond)
			}
			return last
		}
		pass := func() {
			<-time.After(time.Minute)
			synctest.Wait()
		}
		pass() // while it learns nothing is over
		note(&want, look(manyLooks-1)+rushOver, "was none")
		pass()
		note(&want, look(1)+rushOver, "was none")
		pass()
		first := time.Since(began)
		last := look(3 * manyLooks)
		note(&want, first+(manyLooks-1)*10*time.Millisecond, "begins")
		note(&want, last+rushOver, "over")
		pass()
		if !slices.Equal(is, want) {
			t.Errorf("%v, want %v", is, want)
		}
	})
}
