// Package window computes recurring times from a cron expression, a duration and a time zone. It
// does not read the clock.
package window

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Window is a recurring span of time.
type Window struct {
	schedule cron.Schedule
	duration time.Duration
	zone     *time.Location
}

// Windows are open while one of them is open. An empty list is always open.
type Windows []Window

// longest is how long a window may be open. A longer window is a mistake, and the search for its
// last beginning would be long.
const longest = 7 * 24 * time.Hour

// shift bounds how far clocks are set forward or back.
const shift = 3 * time.Hour

// New returns a window that begins by a cron expression of five fields, in the local time of a zone
// ("" is UTC). It is open for a duration of at most 7 days. The error says which argument is
// invalid.
func New(expression string, duration time.Duration, zone string) (Window, error) {
	switch {
	case strings.Contains(expression, "TZ="):
		return Window{}, errors.New("the time zone has a field of its own")
	case zone == "Local": // it differs by machine
		return Window{}, errors.New(`time zone "Local" names none`)
	}
	parser := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	schedule, err := parser.Parse(expression)
	if err != nil {
		return Window{}, fmt.Errorf("cron expression %q: %w", expression, err)
	}
	if duration <= 0 || duration > longest {
		return Window{}, fmt.Errorf("it is open for %s: more than nothing, and at most %s, makes sense", duration, longest)
	}
	location, err := time.LoadLocation(zone)
	if err != nil {
		return Window{}, fmt.Errorf("time zone %q: %w", zone, err)
	}
	return Window{schedule: schedule, duration: duration, zone: location}, nil
}

// At reports whether a window is open. If none is, opens is when the next window opens, or zero if
// never.
func (w Windows) At(now time.Time) (opens time.Time, open bool) {
	if len(w) == 0 {
		return now, true
	}
	for _, one := range w {
		at := one.at(now)
		if !at.IsZero() && !at.After(now) {
			return now, true
		}
		if opens.IsZero() || !at.IsZero() && at.Before(opens) {
			opens = at
		}
	}
	return opens, false
}

// Until returns when time alone changes the answer of [Windows.At]; zero for never. If windows
// overlap, the time may be too early, and the answer still the same.
func (w Windows) Until(now time.Time) time.Time {
	opens, open := w.At(now)
	switch {
	case len(w) == 0:
		return time.Time{}
	case !open:
		return opens
	}
	var closes time.Time
	for _, one := range w {
		if at := one.at(now); !at.IsZero() && !at.After(now) && at.Add(one.duration).After(closes) {
			closes = at.Add(one.duration)
		}
	}
	return closes
}

// at returns when the window that is open at a time began, or when the next window begins; zero if
// never.
//
// Beginnings are computed in local time without clock changes, and converted to the zone
// afterwards. So a beginning in a skipped hour is at the clock change. A beginning in a repeated
// hour happens once. Each window is open for its duration.
func (w Window) at(now time.Time) time.Time {
	begin := onTheWall(now.In(w.zone)).Add(-w.duration - shift)
	for at := w.schedule.Next(begin); !at.IsZero(); at = w.schedule.Next(at) {
		began := inZone(at, w.zone)
		if began.Add(w.duration).After(now) {
			return began
		}
	}
	return time.Time{}
}

// onTheWall returns the time that a local clock shows, as a time in UTC.
func onTheWall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// inZone returns the first time at which a clock in a zone shows wall, or would have shown it.
func inZone(wall time.Time, zone *time.Location) time.Time {
	t := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), wall.Nanosecond(), zone)
	if earlier := t.Add(-time.Hour); onTheWall(earlier.In(zone)).Equal(wall) {
		return earlier
	}
	// In a skipped hour it is the moment of the clock change.
	begins, ends := t.ZoneBounds()
	switch shown := onTheWall(t.In(zone)); {
	case shown.After(wall):
		return begins
	case shown.Before(wall):
		return ends
	}
	return t
}
