// Package lock serialises the lab's commands on a directory, between processes.
//
// The lock is the kernel's (flock on the directory itself): a process that is
// killed lets go of it, and no lock file is left behind.
package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// poll is how often a lock that someone else holds is tried again. flock can
// wait by itself, but not be cancelled by a context.
const poll = 100 * time.Millisecond

// Dir takes the lock of a directory, which is made if need be, and returns
// what gives it back. It waits until the context ends; waiting, if not nil, is
// called once when it has to.
//
// The directory may be removed by whoever holds the lock: those who waited
// then make it again.
func Dir(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("make the directory to lock: %w", err)
		}
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed between the two calls
		}
		if err != nil {
			return nil, fmt.Errorf("open the directory to lock: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && current(f, path) {
			return func() { _ = f.Close() }, nil
		}
		_ = f.Close()
		if err == nil {
			continue // locked a directory that is no longer there
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another lab command holds %s: %w", path, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// current says whether path still names the opened directory.
func current(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(opened, named)
}
