package delivery

import (
	"testing"
	"time"
)

// Looks at pods that do not start: soon at first, later while others wait for their turn, and
// ever more seldom, but each minute at least.
func TestPodLookEvery(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		way        time.Duration
		othersWait bool
		want       time.Duration
	}{
		"at first":                 {0, false, 5 * time.Second},
		"at first, others wait":    {0, true, 30 * time.Second},
		"after some time":          {20 * time.Second, false, 20 * time.Second},
		"after some time, they do": {20 * time.Second, true, 30 * time.Second},
		"after longer, they do":    {40 * time.Second, true, 40 * time.Second},
		"after a day":              {24 * time.Hour, true, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := podCheckInterval(test.way, test.othersWait); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
