package expectations_test

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/workload/expectations"
)

func at(version string) metav1.Object {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
}

// An owner waits from a write of its own until the informer has shown it, or something
// later.
func TestWaits(t *testing.T) {
	t.Parallel()
	const a, b = types.UID("a"), types.UID("b")
	for name, c := range map[string]struct {
		why   string
		steps func(e *expectations.Expectations, pass func(time.Duration))
		want  bool
	}{
		"Nothing": {"The owner wrote nothing.", func(*expectations.Expectations, func(time.Duration)) {}, false},
		"Unseen":  {"The event is on its way.", func(e *expectations.Expectations, _ func(time.Duration)) { e.Wrote(a, at("5")) }, true},
		"Seen":    {"The informer has it.", func(e *expectations.Expectations, _ func(time.Duration)) { e.Wrote(a, at("5")); e.Saw(at("5")) }, false},
		"Later":   {"A later version was seen, so the write was seen too.", func(e *expectations.Expectations, _ func(time.Duration)) { e.Wrote(a, at("5")); e.Saw(at("10")) }, false},
		"Earlier": {"An earlier version says nothing about the write.", func(e *expectations.Expectations, _ func(time.Duration)) { e.Wrote(a, at("10")); e.Saw(at("9")) }, true},
		"Before":  {"The event was faster than the answer.", func(e *expectations.Expectations, _ func(time.Duration)) { e.Saw(at("5")); e.Wrote(a, at("5")) }, false},
		"Last": {"All writes of the owner have to be seen.", func(e *expectations.Expectations, _ func(time.Duration)) {
			e.Wrote(a, at("5"))
			e.Wrote(a, at("7"))
			e.Saw(at("6"))
		}, true},
		"AsTheyAnswer": {"Answers to concurrent writes come in any order.", func(e *expectations.Expectations, _ func(time.Duration)) {
			e.Wrote(a, at("7"))
			e.Wrote(a, at("5"))
			e.Saw(at("6"))
		}, true},
		"Other":    {"It is the write of another owner.", func(e *expectations.Expectations, _ func(time.Duration)) { e.Wrote(b, at("5")) }, false},
		"NoNumber": {"There is nothing to wait for.", func(e *expectations.Expectations, _ func(time.Duration)) { e.Wrote(a, at("five")) }, false},
		"Relisted": {"An older list does not undo what was seen.", func(e *expectations.Expectations, _ func(time.Duration)) {
			e.Saw(at("9"))
			e.Saw(at("2"))
			e.Wrote(a, at("8"))
		}, false},
		"Patient": {"Events take their time.", func(e *expectations.Expectations, pass func(time.Duration)) {
			e.Wrote(a, at("5"))
			pass(29 * time.Second)
		}, true},
		"Swallowed": {"A list may skip the event: the owner does not wait forever.", func(e *expectations.Expectations, pass func(time.Duration)) {
			e.Wrote(a, at("5"))
			pass(30 * time.Second)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Unix(1, 0)
			e := expectations.New(func() time.Time { return now })
			c.steps(e, func(d time.Duration) { now = now.Add(d) })
			for range 2 { // to ask changes nothing
				if e.Waits(a) != c.want {
					t.Errorf("%s It waits: %v", c.why, !c.want)
				}
			}
		})
	}
}

// Who doesn't wait sees all of its own writes.
func TestNoDecisionOnThePast(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		e := expectations.New(func() time.Time { return time.Unix(1, 0) })
		written, shown, last := 0, 0, map[types.UID]int{}
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				written++
				owner := rapid.SampledFrom([]types.UID{"a", "b", "c"}).Draw(rt, "owner")
				last[owner] = written
				e.Wrote(owner, at(strconv.Itoa(written)))
			},
			"event": func(*rapid.T) {
				if shown < written {
					shown++
					e.Saw(at(strconv.Itoa(shown)))
				}
			},
			"": func(rt *rapid.T) {
				for _, owner := range []types.UID{"a", "b", "c"} {
					if got, want := e.Waits(owner), last[owner] > shown; got != want {
						rt.Fatalf("%s waits: %v; it wrote %d, and %d was shown", owner, got, last[owner], shown)
					}
				}
			},
		})
	})
}
