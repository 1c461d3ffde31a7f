package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// CloseMemory denies other processes of this user access to this process's memory, environment and
// open files, until it ends. This process has credentials, and starts processes that work on
// untrusted input. It also disables core dumps.
func CloseMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close the memory to other processes: %w", err)
	}
	return nil
}
