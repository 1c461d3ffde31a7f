package window_test

import (
	"testing"
	"time"

	"github.com/keelson-io/keelson/registry/window"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	out, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestWindows: a window is open for its duration from each beginning on, by the clock
// on the wall, also in the nights in which that is set.
func TestWindows(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, cron string
		duration  time.Duration
		zone      string
		now       string
		open      bool
		opens     string // when it is closed
	}{
		"Before":   {"It has not begun.", "0 9 * * 1-5", 8 * time.Hour, "Europe/Berlin", "2026-03-02T07:59:59Z", false, "2026-03-02T08:00:00Z"},
		"Begins":   {"The first moment counts.", "0 9 * * 1-5", 8 * time.Hour, "Europe/Berlin", "2026-03-02T08:00:00Z", true, ""},
		"Last":     {"The last moment counts.", "0 9 * * 1-5", 8 * time.Hour, "Europe/Berlin", "2026-03-02T15:59:59Z", true, ""},
		"Ends":     {"The moment after it does not.", "0 9 * * 1-5", 8 * time.Hour, "Europe/Berlin", "2026-03-02T16:00:00Z", false, "2026-03-03T08:00:00Z"},
		"Weekend":  {"Friday evening: the next one is on Monday.", "0 9 * * 1-5", 8 * time.Hour, "Europe/Berlin", "2026-03-06T16:00:00Z", false, "2026-03-09T08:00:00Z"},
		"Summer":   {"Nine on the wall is seven in UTC by then.", "0 9 * * 1-5", 8 * time.Hour, "Europe/Berlin", "2026-03-30T06:59:00Z", false, "2026-03-30T07:00:00Z"},
		"Midnight": {"It goes over midnight.", "0 22 * * *", 4 * time.Hour, "UTC", "2026-03-03T01:59:00Z", true, ""},
		// On 2026-03-29 clocks in Berlin go from 02:00 to 03:00, which is 01:00 in UTC.
		"LeftOut":     {"02:30 is left out: it begins where that hour would have.", "30 2 * * *", time.Hour, "Europe/Berlin", "2026-03-29T00:59:00Z", false, "2026-03-29T01:00:00Z"},
		"LeftOutOpen": {"It is open for an hour from then on.", "30 2 * * *", time.Hour, "Europe/Berlin", "2026-03-29T01:59:00Z", true, ""},
		"LeftOutEnd":  {"And no longer.", "30 2 * * *", time.Hour, "Europe/Berlin", "2026-03-29T02:00:00Z", false, "2026-03-30T00:30:00Z"},
		"Across":      {"Four hours are four hours.", "0 0 * * *", 4 * time.Hour, "Europe/Berlin", "2026-03-29T02:59:00Z", true, ""},
		"AcrossEnd":   {"Which end at five on the wall.", "0 0 * * *", 4 * time.Hour, "Europe/Berlin", "2026-03-29T03:00:00Z", false, "2026-03-29T22:00:00Z"},
		// On 2026-10-25 they go from 03:00 back to 02:00, at 01:00 in UTC.
		"Twice":       {"02:30 comes twice: it begins the first time.", "30 2 * * *", 30 * time.Minute, "Europe/Berlin", "2026-10-25T00:30:00Z", true, ""},
		"TwiceSecond": {"And not the second time.", "30 2 * * *", 30 * time.Minute, "Europe/Berlin", "2026-10-25T01:30:00Z", false, "2026-10-26T01:30:00Z"},
		"Never":       {"There is no such day.", "0 0 31 2 *", time.Hour, "UTC", "2026-03-02T08:00:00Z", false, "0001-01-01T00:00:00Z"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, err := window.New(c.cron, c.duration, c.zone)
			if err != nil {
				t.Fatal(err)
			}
			opens, open := window.Windows{w}.At(at(t, c.now))
			if open != c.open || !open && !opens.Equal(at(t, c.opens)) {
				t.Errorf("%s At %s: open %t, opens %s", c.why, c.now, open, opens.UTC())
			}
		})
	}
}

// TestWindowsRefused: what could not mean what was meant is an error.
func TestWindowsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cron     string
		duration time.Duration
		zone     string
	}{
		"Six":       {"0 0 9 * * 1-5", time.Hour, ""},
		"Word":      {"@daily", time.Hour, ""},
		"Zone":      {"CRON_TZ=UTC 0 9 * * *", time.Hour, ""},
		"NoZone":    {"0 9 * * *", time.Hour, "Europe/Atlantis"},
		"Local":     {"0 9 * * *", time.Hour, "Local"},
		"Nothing":   {"0 9 * * *", 0, ""},
		"Long":      {"0 9 * * *", 1000 * time.Hour, ""},
		"NoHour":    {"0 25 * * *", time.Hour, ""},
		"Backwards": {"0 9 * * *", -time.Hour, ""},
	} {
		if _, err := window.New(c.cron, c.duration, c.zone); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestTwoWindows: of several the one that opens first counts, and one that never does
// is no obstacle.
func TestTwoWindows(t *testing.T) {
	t.Parallel()
	var all window.Windows
	for _, cron := range []string{"0 0 31 2 *", "0 14 * * *", "0 10 * * *"} {
		w, err := window.New(cron, time.Hour, "")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	for now, opens := range map[string]string{"08:00": "10:00", "11:00": "14:00"} {
		got, open := all.At(at(t, "2026-03-02T"+now+":00Z"))
		if open || !got.Equal(at(t, "2026-03-02T"+opens+":00Z")) {
			t.Errorf("%s: open %t, opens %s", now, open, got)
		}
	}
	if _, open := all.At(at(t, "2026-03-02T10:30:00Z")); !open {
		t.Error("10:30: closed")
	}
	if opens, open := all[:1].At(at(t, "2026-03-02T08:00:00Z")); open || !opens.IsZero() {
		t.Errorf("never: open %t, opens %s", open, opens)
	}
}

// TestUntil: whoever waits for a window to open or to close is told when to look again.
func TestUntil(t *testing.T) {
	t.Parallel()
	var all window.Windows
	for _, cron := range []string{"0 10 * * *", "30 10 * * *", "0 0 31 2 *"} {
		w, err := window.New(cron, time.Hour, "")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	for now, until := range map[string]string{"08:00": "10:00", "10:00": "11:00", "10:45": "11:30", "11:29": "11:30"} {
		if got := all.Until(at(t, "2026-03-02T"+now+":00Z")); !got.Equal(at(t, "2026-03-02T"+until+":00Z")) {
			t.Errorf("%s: until %s, want %s", now, got, until)
		}
	}
	if got := all[:0].Until(at(t, "2026-03-02T08:00:00Z")); !got.IsZero() {
		t.Errorf("always open, until %s", got)
	}
	if got := all[2:].Until(at(t, "2026-03-02T08:00:00Z")); !got.IsZero() {
		t.Errorf("never open, until %s", got)
	}
}
