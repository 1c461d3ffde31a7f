package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/harness/must"
	labports "github.com/keelson-io/keelson/lab/ports"
	"github.com/keelson-io/keelson/lab/process"
)

// Up creates a cluster, or starts the stopped processes of an existing cluster. It
// returns when the API server is ready, the nodes are Ready and pods can be created.
// Up restarts no process that runs already. If starting fails, Up stops all
// processes of the cluster and keeps its folder with the logs.
func (l *Lab) Up(ctx context.Context, name string, change Change, set binaries.Set) error {
	unlock, err := l.locked(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()

	s, err := l.prepare(ctx, name, change, set)
	if err != nil {
		l.discard(name)
		return err
	}
	if err := turns.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("%s: wait for its turn to start: %w", name, context.Cause(ctx))
	}
	start := time.Now()
	started, err := l.start(ctx, s)
	turns.Release(1)
	if err != nil {
		l.printf("%s: failed; stopping it", name)
		// The end of the context may be the cause of the failure, and the processes must
		// be stopped even then.
		return errors.Join(err, l.halt(context.WithoutCancel(ctx), s, stopGrace, components(s.Options)...))
	}
	if started == 0 {
		l.printf("%s: up already  %s", name, s.server())
		return nil
	}
	l.printf("%s: up in %s  %s", name, since(start), s.server())
	return nil
}

// turns limits how many clusters start at the same time. A starting API server needs
// seconds of CPU time. Eight of them on a busy machine with two processors don't complete
// their own TLS handshakes, and none ever starts.
var turns = semaphore.NewWeighted(int64(max(2, runtime.NumCPU()))) //nolint:gochecknoglobals // as many as there are processors, whatever labs there are

// prepare returns the state of an existing cluster with changed options, or
// creates a new cluster with all its files.
func (l *Lab) prepare(ctx context.Context, name string, change Change, set binaries.Set) (*clusterState, error) {
	s, err := l.load(name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if exists := err == nil; exists {
		if s.Options, err = change.apply(s.Options, true); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if err := s.save(); err != nil {
			return nil, err
		}
		return s, must.Try(s.writeConfig)
	}

	now := time.Now()
	s = &clusterState{
		dir:       folder(filepath.Join(l.Dir, name)),
		Name:      name,
		Created:   now.UTC().Truncate(time.Second),
		Bin:       set.Dir,
		Versions:  map[string]string{},
		Processes: map[string]process.ID{},
	}
	if s.Options, err = change.apply(Options{Nodes: DefaultNodes, ServiceCIDR: DefaultServiceCIDR}, false); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var parts []string
	for _, c := range components(s.Options) {
		if c.path == nil {
			parts = append(parts, c.name)
		}
	}
	if err := s.setVersions(set, parts...); err != nil {
		return nil, err
	}
	if s.Options.real() {
		if err := l.takeNodes(s, set); err != nil {
			return nil, err
		}
	}
	return s, l.create(ctx, s, now)
}

// setVersions notes the versions of the cluster's programs. It fails if a program isn't built.
func (s *clusterState) setVersions(set binaries.Set, parts ...string) error {
	if err := set.Require(parts...); err != nil {
		return err
	}
	for _, part := range parts {
		s.Versions[part] = set.Version(part)
	}
	return nil
}

// takeNodes notes the programs of real nodes, after it has checked the machine.
func (l *Lab) takeNodes(s *clusterState, set binaries.Set) error {
	if err := checkMachine(); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	programs, err := set.Node()
	if err != nil {
		return err
	}
	s.NodeBin, s.Program = programs.Dir, l.Program
	if s.Program == "" {
		if s.Program, err = os.Executable(); err != nil {
			return fmt.Errorf("find lab itself: %w", err)
		}
	}
	return s.setVersions(programs, binaries.Kubelet, binaries.KubeProxy, binaries.Containerd, binaries.Shim, binaries.Registry)
}

// discard removes the folder of a cluster if the folder is empty. A folder that isn't
// empty, or can't be removed, stays. Without a state it isn't a cluster.
func (l *Lab) discard(name string) {
	if os.Remove(filepath.Join(l.Dir, name)) == nil {
		_ = l.sweep()
	}
}

// create reserves the ports of a new cluster and writes its files. The state is written
// last, because a folder without one isn't a cluster.
func (l *Lab) create(ctx context.Context, s *clusterState, now time.Time) error {
	reserved, err := labports.Reserve(ctx, string(s.dir), 4)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	s.Ports = ports{Etcd: reserved[0], EtcdPeer: reserved[1], APIServer: reserved[2]}
	if s.Options.real() {
		s.Ports.Registry = reserved[3]
	}
	if err := must.Try(func() { s.writeFiles(now) }); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return s.save()
}

// start starts the stopped processes of a cluster, waits until they serve, and calls
// furnish. It returns the number of processes that it started.
func (l *Lab) start(ctx context.Context, s *clusterState) (started int, err error) {
	if err := s.connect(); err != nil {
		return 0, err
	}
	for _, c := range components(s.Options) {
		fresh, err := l.run(ctx, s, c)
		if err != nil {
			return started, err
		}
		if fresh {
			started++
		}
	}
	return started, l.furnish(ctx, s)
}

func since(start time.Time) time.Duration { return time.Since(start).Round(100 * time.Millisecond) }
