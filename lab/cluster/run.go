package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
func (l *Lab) run(ctx context.Context, r *record, c component) (started bool, err error) {
	alive, err := r.alive(c.name)
	if err != nil {
		return false, fmt.Errorf("%s: look for %s: %w", r.Name, c.name, err)
	}
	start := time.Now()
	if !alive {
		if err := r.launch(ctx, c); err != nil {
			return false, err
		}
	}
	ready, probed := r.probe(c.name)
	if !probed {
		return !alive, nil
	}
	if err := r.await(ctx, c.name, ready); err != nil {
		return !alive, err
	}
	if !alive {
		l.printf("%s: %s ready in %s", r.Name, c.name, since(start))
	}
	return !alive, nil
}

// launch starts a component and records it.
func (r *record) launch(ctx context.Context, c component) error {
	path := filepath.Join(r.Bin, c.name)
	if c.path != nil {
		path = c.path(r)
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s was made with %s %s, which is no longer in %s: build it again, or run: lab down %s",
			r.Name, c.name, r.Versions[c.name], filepath.Dir(path), r.Name)
	}
	id, err := c.start(ctx, r, path)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	r.Processes[c.name] = id
	if err := r.save(); err != nil {
		// No later command would find a process that isn't recorded.
		return errors.Join(err, id.Stop(ctx, stopGrace))
	}
	return nil
}

// probe returns the function that checks whether a component serves. The controller
// manager, the scheduler, kwok and real nodes have no such function, since they have no
// port here. furnish checks their effects instead.
func (r *record) probe(component string) (ready func(context.Context) error, ok bool) {
	switch component {
	case binaries.Etcd:
		return r.etcdReady, true
	case binaries.APIServer:
		return r.apiserverReady, true
	case binaries.Registry:
		return r.registryReady, true
	default:
		return nil, false
	}
}

// await waits until ready returns nil, at most [readyWait] and only while the component
// runs. The error contains the last lines of the component's log.
func (r *record) await(ctx context.Context, component string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWait, fmt.Errorf("not ready after %s", readyWait))
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		problem := ready(ctx)
		if problem == nil {
			return nil
		}
		alive, err := r.alive(component)
		if err != nil {
			return fmt.Errorf("%s: look for %s: %w", r.Name, component, err)
		}
		if !alive {
			return fmt.Errorf("%s: %s ended while it started\n%s", r.Name, component, r.logTail(component))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %s: %w (%w)\n%s", r.Name, component, context.Cause(ctx), problem, r.logTail(component))
		case <-tick.C:
		}
	}
}

// logTail returns the last lines of a component's log, for an error.
func (r *record) logTail(component string) string {
	path := r.log(component)
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Sprintf("(its log can't be read: %v)", err)
	}
	lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
	if len(lines) > logLines {
		lines = lines[len(lines)-logLines:]
	}
	return "last lines of " + path + ":\n  " + strings.Join(lines, "\n  ")
}

// halt ends components one after the other, in reverse start order, so that no component
// logs errors about a missing component. After a failure halt continues with the next.
func (l *Lab) halt(ctx context.Context, r *record, grace time.Duration, of ...component) error {
	var failed []error
	for _, c := range slices.Backward(of) {
		name := c.name
		if err := r.Processes[name].Stop(ctx, grace); err != nil {
			failed = append(failed, fmt.Errorf("%s: stop %s: %w", r.Name, name, err))
			continue
		}
		delete(r.Processes, name)
		if c.ended != nil {
			failed = append(failed, c.ended(ctx, r))
		}
	}
	return errors.Join(append(failed, r.save())...)
}
