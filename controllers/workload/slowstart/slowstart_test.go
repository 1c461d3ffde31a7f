package slowstart_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/workload/slowstart"
)

// counter counts what is done, and how much of it at once.
type counter struct {
	mu            sync.Mutex
	done          []int
	running, most int
}

func (c *counter) do(i int, err error) error {
	c.mu.Lock()
	c.done = append(c.done, i)
	c.running++
	c.most = max(c.most, c.running)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.running--
		c.mu.Unlock()
	}()
	return err
}

// However many: each is done once, none twice, never more at once than allowed, and
// after a failure at most as many were tried as had succeeded before, and one.
func TestRun(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	rapid.Check(t, func(rt *rapid.T) {
		n, atOnce := rapid.IntRange(0, 200).Draw(rt, "n"), rapid.IntRange(1, 50).Draw(rt, "at once")
		fails := rapid.IntRange(0, 250).Draw(rt, "from here on they fail")
		var c counter
		succeeded, err := slowstart.Run(n, atOnce, func(i int) error {
			if i >= fails {
				return c.do(i, broken)
			}
			return c.do(i, nil)
		})
		slices.Sort(c.done)
		for i, d := range c.done {
			if d != i {
				rt.Fatalf("%v were done", c.done)
			}
		}
		if c.most > atOnce {
			rt.Errorf("%d at once", c.most)
		}
		if succeeded != min(n, fails) || (err != nil) != (fails < n) || err != nil && !errors.Is(err, broken) {
			rt.Errorf("%d of %d succeeded (%d should), %v", succeeded, n, min(n, fails), err)
		}
		if failed := len(c.done) - succeeded; failed > succeeded+1 {
			rt.Errorf("%d succeeded before %d failed", succeeded, failed)
		}
	})
}

// Batches double: what fails for one reason fails once.
func TestRunFailsOnce(t *testing.T) {
	t.Parallel()
	var c counter
	if n, err := slowstart.Run(1000, 500, func(i int) error { return c.do(i, errors.New("quota")) }); n != 0 || err == nil || len(c.done) != 1 {
		t.Errorf("%d succeeded, %v; %d were tried", n, err, len(c.done))
	}
}

// Nobody who allows none means that nothing shall ever be done.
func TestRunAtLeastOne(t *testing.T) {
	t.Parallel()
	if n, err := slowstart.Run(3, 0, func(int) error { return nil }); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
