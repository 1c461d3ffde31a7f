package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// downGrace is how long a process may take to end. It is short because Down removes
// the data of the process next.
const downGrace = 5 * time.Second

// Down ends a cluster's processes and removes its folder. With the last cluster it
// also removes the directory of the clusters. A missing cluster is not an error. If a
// process can't be ended, the folder stays, so that Down can be repeated.
func (l *Lab) Down(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	dir := filepath.Join(l.Dir, name)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		l.printf("%s: not there", name)
		return nil
	}
	unlock, err := l.locked(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	start := time.Now()
	s, err := l.load(name)
	switch {
	case errors.Is(err, ErrNotFound): // Up was killed before it started a process
	case err != nil:
		return err
	default:
		ended := l.halt(ctx, s, downGrace, components(s.Options)...)
		if len(s.Processes) == 0 { // even if a callback of halt failed
			ended = errors.Join(ended, s.disconnect(ctx))
		}
		if ended != nil {
			return ended
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	l.printf("%s: down in %s", name, since(start))
	return l.sweep()
}

// sweep removes the directory of the clusters if it is empty.
func (l *Lab) sweep() error {
	err := os.Remove(l.Dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the empty directory of the clusters: %w", err)
	}
	return nil
}

// Stop ends the named components of a cluster, or all components if no name is given,
// and keeps the cluster's state.
func (l *Lab) Stop(ctx context.Context, name string, parts ...string) error {
	return l.each(ctx, name, parts, "stopped", func(s *clusterState, of []component) error { return l.halt(ctx, s, stopGrace, of...) })
}

// Start starts the named components of a cluster again, on their old ports, or all
// components if no name is given. Start waits until they serve.
func (l *Lab) Start(ctx context.Context, name string, parts ...string) error {
	return l.each(ctx, name, parts, "started", func(s *clusterState, of []component) error {
		if err := s.connect(); err != nil {
			return err
		}
		if len(parts) == 0 {
			if _, err := l.start(ctx, s); err != nil {
				return err
			}
		}
		for _, c := range of {
			if _, err := l.run(ctx, s, c); err != nil {
				return err
			}
		}
		return nil
	})
}

// each calls do with the named components of a cluster, or with all components if no name is
// given, under the cluster's lock. It prints what was done to which of them.
func (l *Lab) each(ctx context.Context, name string, parts []string, done string, do func(*clusterState, []component) error) error {
	s, unlock, err := l.change(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	of, err := s.pick(parts)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := do(s, of); err != nil {
		return err
	}
	l.printf("%s: %s %s in %s", name, done, list(of), since(start))
	return nil
}
