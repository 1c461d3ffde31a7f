package pace_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keelson-io/keelson/controllers/pace"
)

// TestPace counts the reads of ten minutes with an interval of a minute.
func TestPace(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why       string
		asks      time.Duration // between two requests for a read; 0: no requests
		until     time.Duration // no requests from then on
		from, to  int           // reads
		firstSoon bool
	}{
		"Poll": {
			why: "Without requests the interval decides, give or take a tenth.", from: 9, to: 11,
		},
		"Flood": {
			why:  "A thousand requests each second, for a minute: one read each second, and then the interval again.",
			asks: time.Millisecond, until: time.Minute, from: 60, to: 72, firstSoon: true,
		},
		"Once": {
			why:  "A request is answered at once, and costs one read.",
			asks: time.Second, until: time.Second, from: 10, to: 12, firstSoon: true,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				p := pace.New(time.Minute)
				start := time.Now()
				if c.asks > 0 {
					go func() {
						tick := time.NewTicker(c.asks)
						defer tick.Stop()
						for p.Soon(); time.Since(start) < c.until; p.Soon() {
							<-tick.C
						}
					}()
				}
				var reads []time.Duration
				for p.Wait(ctx) {
					reads = append(reads, time.Since(start))
				}
				if len(reads) < c.from || len(reads) > c.to {
					t.Errorf("%d reads, want %d to %d. %s", len(reads), c.from, c.to, c.why)
				}
				if soon := reads[0] < time.Second; soon != c.firstSoon {
					t.Errorf("the first read came after %s. %s", reads[0], c.why)
				}
				for i := 1; i < len(reads); i++ {
					if gap := reads[i] - reads[i-1]; gap < time.Second {
						t.Errorf("reads %s apart. %s", gap, c.why)
					}
				}
			})
		})
	}
}
