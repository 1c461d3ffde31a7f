package daemonset

import (
	"slices"
	"testing"
	"time"
)

// A node on which pods fail gets the second at once, then one after a second, two, four,
// and so on up to 15 minutes. After half an hour without trouble it begins anew.
func TestBackoff(t *testing.T) {
	t.Parallel()
	b, now := newBackoff(), time.Unix(0, 0)
	at := spot{"uid", "v1", "a"}
	if left := b.remaining(at, now); left != 0 {
		t.Errorf("the first failed pod stays for %s", left)
	}
	var got []time.Duration
	for range 12 {
		b.next(at, now)
		got = append(got, b.remaining(at, now))
		now = now.Add(b.remaining(at, now))
		if left := b.remaining(at, now); left != 0 {
			t.Fatalf("when the time is over %s are left", left)
		}
	}
	want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(got, want) {
		t.Errorf("it waits for %v", got)
	}
	for _, other := range []spot{{"uid", "v2", "a"}, {"uid", "v1", "b"}, {"other", "v1", "a"}} {
		b.next(at, now)
		if left := b.remaining(other, now); left != 0 {
			t.Errorf("%v waits %s for another's trouble", other, left)
		}
	}
	now = now.Add(31 * time.Minute)
	if b.next(at, now); b.remaining(at, now) != time.Second {
		t.Errorf("after half an hour it waits for %s", b.remaining(at, now))
	}
	b.next(spot{"uid", "v1", "b"}, now.Add(time.Hour))
	if len(b.waits) != 1 {
		t.Errorf("what was long ago is kept: %v", b.waits)
	}
}
