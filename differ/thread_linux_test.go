package differ_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns the processor time of this thread, without that of other load on the machine.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}
