package queue

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestBurstOver: when a burst begins and ends, by the calls that the detector makes.
func TestBurstOver(t *testing.T) {
	never := func(int) bool { return false }
	everyOther := func(i int) bool { return i%2 == 0 } // a component that was written is looked at once more
	type look struct {
		times int
		every time.Duration
		wrote func(int) bool
	}
	const fast = 5 * time.Millisecond // 1,000 in a rushOver
	for why, c := range map[string]struct {
		looks []look
		want  []string
	}{
		"a start learns until it is over, and too few looks leave nothing to give back": {
			[]look{{manyReconciles - 1, fast, never}}, []string{"learns 0s", "ends 10s"},
		},
		"while nothing is known yet a start is not over": {
			[]look{{0, time.Minute, nil}, {manyReconciles, fast, never}}, []string{"learns 0s", "ends 1m10s", "over 1m10s"},
		},
		"a few looks are no rush": {
			[]look{{1, time.Minute, never}, {manyReconciles - 1, fast, never}}, []string{"learns 0s", "ends 5s"},
		},
		"many looks are one, although it is no start": {
			[]look{{1, time.Minute, never}, {manyReconciles + sampledReconciles, fast, never}}, []string{"learns 0s", "ends 5s", "learns 1m4.995s", "ends 1m15s", "over 1m15s"},
		},
		"a component that is looked at again and again keeps no rush from its end": {
			[]look{{manyReconciles, fast, never}, {300, 200 * time.Millisecond, everyOther}}, []string{"learns 0s", "ends 10s", "over 10s"},
		},
		"a rush that writes learns nothing that stays": {
			[]look{{2 * manyReconciles, fast, everyOther}}, []string{"learns 0s", "ends 495ms", "over 15s"},
		},
		"nor does it at another time": {
			[]look{{1, time.Minute, never}, {2 * manyReconciles, fast, everyOther}}, []string{"learns 0s", "ends 5s", "over 1m15s"},
		},
		"what has been written may be followed by what is learnt": {
			[]look{{400, fast, everyOther}, {manyReconciles, fast, never}}, []string{"learns 0s", "ends 495ms", "learns 4.995s", "ends 15s", "over 15s"},
		},
	} {
		t.Run(why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var told []string
				tell := func(what string) { told = append(told, what+" "+time.Since(began).String()) }
				r := NewBurstDetector(func(learning bool) { tell(map[bool]string{true: "learns", false: "ends"}[learning]) }, func() { tell("over") })
				for _, l := range c.looks {
					if l.times == 0 {
						<-time.After(l.every)
					}
					for i := range l.times {
						r.Reconciled(l.wrote(i))
						<-time.After(l.every)
					}
				}
				<-time.After(time.Minute)
				synctest.Wait()
				if !slices.Equal(told, c.want) {
					t.Errorf("told %q, want %q", told, c.want)
				}
			})
		})
	}
}
