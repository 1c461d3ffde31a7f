// Package window computes times that come again and again: a cron expression, a
// duration and a time zone. It has no clock.
package window

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Window is a time that comes again and again.
type Window struct {
	schedule cron.Schedule
	duration time.Duration
	zone     *time.Location
}

// Windows are open where one of them is; none are always open.
type Windows []Window

// longest is how long a window may be open at once: longer is a mistake, and what
// looks for the last beginning would look far.
const longest = 7 * 24 * time.Hour

// shift bounds what clocks are set forward or back by.
const shift = 3 * time.Hour

// New returns a window that begins as a cron expression of five fields says, by
// the clock on the wall in a time zone ("" is UTC), and is open for a duration. The
// error says what of it makes no sense.
func New(expression string, duration time.Duration, zone string) (Window, error) {
	switch {
	case strings.Contains(expression, "TZ="):
		return Window{}, errors.New("the time zone has a field of its own")
	case zone == "Local": // says something else on each machine
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

// At reports whether a window is open, or else when the next one opens: the zero time
// if none ever does.
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

// Until is when the answer of [Windows.At] is another one, by time alone: the zero
// time if never. It may be earlier, and the answer the same, where windows overlap.
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

// at is when the window that is open at a time began, or when the next one does.
//
// Beginnings are sought by the clock on the wall, as if it were never set forward or
// back, and made times of the zone afterwards. So one that falls into the hour that is
// left out begins where that hour would, and one in the hour that comes twice begins
// once; each is open for its duration.
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

// onTheWall is what a clock shows, as a time in UTC.
func onTheWall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// inZone is the first time at which a clock in a zone shows that, or would have.
func inZone(wall time.Time, zone *time.Location) time.Time {
	t := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), wall.Nanosecond(), zone)
	if earlier := t.Add(-time.Hour); onTheWall(earlier.In(zone)).Equal(wall) {
		return earlier
	}
	// An hour that is left out: the moment at which the clock was set forward.
	begins, ends := t.ZoneBounds()
	switch shown := onTheWall(t.In(zone)); {
	case shown.After(wall):
		return begins
	case shown.Before(wall):
		return ends
	}
	return t
}
