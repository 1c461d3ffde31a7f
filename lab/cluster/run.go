package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/keelson-io/keelson/lab/binaries"
)

const (
	// readyWait is how long a component may take until it serves. An API server takes
	// 5 s on two idle cores, and several times as long during a build.
	readyWait = 5 * time.Minute
	readyPoll = 50 * time.Millisecond

	// stopGrace is how long a component may take to end by itself. An API server with
	// open watches would wait for a minute.
	stopGrace = 3 * time.Second

	// logLines is the number of lines of a component's log in an error.
	logLines = 15
)

// run starts a component unless it runs already, and waits until it serves. started
// reports whether run started the component.
func (l *Lab) run(ctx context.Context, s *clusterState, c component) (started bool, err error) {
	alive, err := s.alive(c.name)
	if err != nil {
		return false, fmt.Errorf("%s: look for %s: %w", s.Name, c.name, err)
	}
	start := time.Now()
	if !alive {
		if err := s.launch(ctx, c); err != nil {
			return false, err
		}
	}
	ready := s.readyFunc(c.name)
	if ready == nil {
		return !alive, nil
	}
	if err := s.await(ctx, c.name, ready); err != nil {
		return !alive, err
	}
	if !alive {
		l.printf("%s: %s ready in %s", s.Name, c.name, since(start))
	}
	return !alive, nil
}

// launch starts a component and saves its process in the state.
func (s *clusterState) launch(ctx context.Context, c component) error {
	path := filepath.Join(s.Bin, c.name)
	if c.path != nil {
		path = c.path(s)
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s was made with %s %s, which is no longer in %s: build it again, or run: lab down %s",
			s.Name, c.name, s.Versions[c.name], filepath.Dir(path), s.Name)
	}
	id, err := c.start(ctx, s, path)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	s.Processes[c.name] = id
	if err := s.save(); err != nil {
		// No later command would find a process that isn't saved.
		return errors.Join(err, id.Stop(ctx, stopGrace))
	}
	return nil
}

// readyFunc returns the function that checks whether a component serves. It returns nil for
// the controller manager, the scheduler, kwok and real nodes, which have no port here.
// furnish checks their effects instead.
func (s *clusterState) readyFunc(component string) func(context.Context) error {
	return map[string]func(context.Context) error{
		binaries.Etcd: s.etcdReady, binaries.APIServer: s.apiserverReady, binaries.Registry: s.registryReady,
	}[component]
}

// await waits until ready returns nil, at most [readyWait] and only while the component
// runs. The error contains the last lines of the component's log.
func (s *clusterState) await(ctx context.Context, component string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWait, fmt.Errorf("not ready after %s", readyWait))
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		problem := ready(ctx)
		if problem == nil {
			return nil
		}
		alive, err := s.alive(component)
		if err != nil {
			return fmt.Errorf("%s: look for %s: %w", s.Name, component, err)
		}
		if !alive {
			return fmt.Errorf("%s: %s ended while it started\n%s", s.Name, component, s.dir.logTail(component))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %s: %w (%w)\n%s", s.Name, component, context.Cause(ctx), problem, s.dir.logTail(component))
		case <-tick.C:
		}
	}
}

// halt ends components one after the other, in reverse start order, so that no component
// logs errors about a missing component. After a failure halt continues with the next.
func (l *Lab) halt(ctx context.Context, s *clusterState, grace time.Duration, of ...component) error {
	var failed []error
	for _, c := range slices.Backward(of) {
		name := c.name
		if err := s.Processes[name].Stop(ctx, grace); err != nil {
			failed = append(failed, fmt.Errorf("%s: stop %s: %w", s.Name, name, err))
			continue
		}
		delete(s.Processes, name)
		if c.ended != nil {
			failed = append(failed, c.ended(ctx, s))
		}
	}
	return errors.Join(append(failed, s.save())...)
}
