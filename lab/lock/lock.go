// Package lock serialises the lab's commands on a directory, between processes.
//
// The lock is an flock on the directory itself. The kernel releases it when a
// process is killed, and no lock file remains.
package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// poll is the interval between attempts to take a lock. A blocking flock would wait
// by itself, but a context can't cancel it.
const poll = 100 * time.Millisecond

// Dir takes the lock of a directory and returns the function that releases the lock.
// Dir creates a missing directory. It waits for the lock until the context ends. Before
// the first wait, Dir calls waiting, unless waiting is nil.
//
// The holder of the lock may remove the directory. A waiting Dir then creates the
// directory again.
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
			continue // the locked directory was removed meanwhile
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

// current reports whether path still names the opened directory.
func current(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(opened, named)
}
