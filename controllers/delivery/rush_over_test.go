package delivery

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestRushOver: a rush ends once, some time after its last look, and a few looks are
// none.
func TestRushOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends []time.Duration
		began := time.Now()
		r := newRush(func() { ends = append(ends, time.Since(began)) })
		for range manyLooks - 1 {
			r.looked()
		}
		<-time.After(10 * time.Second)
		synctest.Wait()
		if len(ends) != 0 {
			t.Fatalf("a few looks were a rush: %v", ends)
		}
		for range 3 * manyLooks {
			r.looked()
			<-time.After(10 * time.Millisecond)
		}
		last := time.Since(began)
		<-time.After(time.Minute)
		synctest.Wait()
		if len(ends) != 1 || ends[0] != last-10*time.Millisecond+rushOver {
			t.Errorf("it ended at %v, want once, %s after %s", ends, rushOver, last)
		}
	})
}
