package differ_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is how long this thread has run: what else the machine does is not in it.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}
