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

// Each index is called once at most, and never more at once than allowed. At most one more call
// fails than had succeeded before.
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

// Batches double: if all calls fail for the same reason, only one is made.
func TestRunFailsOnce(t *testing.T) {
	t.Parallel()
	var c counter
	if n, err := slowstart.Run(1000, 500, func(i int) error { return c.do(i, errors.New("quota")) }); n != 0 || err == nil || len(c.done) != 1 {
		t.Errorf("%d succeeded, %v; %d were tried", n, err, len(c.done))
	}
}

// A limit of 0 counts as 1: otherwise no call would ever be made.
func TestRunAtLeastOne(t *testing.T) {
	t.Parallel()
	if n, err := slowstart.Run(3, 0, func(int) error { return nil }); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
