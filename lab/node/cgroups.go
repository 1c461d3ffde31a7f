package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// cgroupWait is the longest wait for cgroups that are still busy. The kernel empties
	// cgroups after it has reported the end of their processes, on a loaded machine
	// seconds later.
	cgroupWait = 15 * time.Second
	cgroupPoll = 50 * time.Millisecond
)

// hierarchies returns the mount points of cgroups: one per controller, or one for all
// controllers with cgroups v2.
func hierarchies() ([]string, error) {
	const root = "/sys/fs/cgroup"
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return nil, fmt.Errorf("look for cgroups: %w", err)
	}
	if fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{root}, nil
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("look for cgroups: %w", err)
	}
	var found []string
	for _, e := range entries {
		if e.IsDir() { // links are further names of the same directories
			found = append(found, filepath.Join(root, e.Name()))
		}
	}
	return found, nil
}

// cgroups creates the cgroup that the kubelet expects.
func (c *Config) cgroups(context.Context) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := os.MkdirAll(filepath.Join(root, c.Cgroup), 0o755); err != nil { //nolint:gosec // as all cgroups
			return fmt.Errorf("make a cgroup: %w", err)
		}
	}
	return nil
}

// RemoveCgroups removes the cgroups of a node whose processes have ended. It waits up to
// 15 s for busy cgroups. If some cgroups stay busy, RemoveCgroups still removes the rest
// and names each remaining cgroup in the error. Missing cgroups are not an error.
func RemoveCgroups(ctx context.Context, cgroup string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	var left error
	_ = wait.PollUntilContextTimeout(ctx, cgroupPoll, cgroupWait, true, func(context.Context) (bool, error) {
		var errs []error
		for _, root := range roots {
			errs = append(errs, removeCgroup(filepath.Join(root, cgroup)))
		}
		left = errors.Join(errs...)
		return !errors.Is(left, unix.EBUSY), nil
	}) // left has the cause
	return left
}

// removeCgroup removes a cgroup and its descendants, as far as they can be removed.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove a cgroup: %w", err)
	}
	var left []error
	for _, e := range entries {
		if e.IsDir() {
			left = append(left, removeCgroup(filepath.Join(dir, e.Name())))
		}
	}
	if err := errors.Join(left...); err != nil {
		return err // a cgroup with a child cannot be removed
	}
	// Rmdir, since the files of a cgroup cannot be removed: the kernel removes them.
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the cgroup %s: %w", dir, err)
	}
	return nil
}
