package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/keelson-io/keelson/lab/lock"
)

// EnvDir is the environment variable with the directory of the clusters.
const EnvDir = "KEELSON_LAB_DIR"

// DefaultDir returns the directory of the clusters: the value of [EnvDir], else
// keelson/lab in XDG_STATE_HOME, else keelson/lab in ~/.local/state.
func DefaultDir() (string, error) {
	if dir := os.Getenv(EnvDir); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("%s: %w", EnvDir, err)
		}
		return abs, nil
	}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "keelson", "lab"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find where to keep clusters (set HOME or %s): %w", EnvDir, err)
	}
	return filepath.Join(home, ".local", "state", "keelson", "lab"), nil
}

// Lab manages the clusters in one directory. Its methods are safe for concurrent use,
// also from several processes. A method that changes a cluster takes the cluster's lock.
type Lab struct {
	Dir string // an absolute path; created with the first cluster

	// Program is the path of the lab program, which starts real nodes. Empty means the
	// running program. testimage must be in the same folder.
	Program string

	// Say, if not nil, is called with each line of progress. Calls don't overlap.
	Say func(line string)

	mu sync.Mutex
}

func (l *Lab) printf(format string, args ...any) {
	if l.Say == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Say(fmt.Sprintf(format, args...))
}

// Names returns the names of the clusters, sorted.
func (l *Lab) Names() ([]string, error) {
	entries, err := os.ReadDir(l.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the clusters: %w", err)
	}
	var found []string
	for _, e := range entries {
		if e.IsDir() && checkName(e.Name()) == nil {
			found = append(found, e.Name())
		}
	}
	return found, nil
}

// load returns the state of one cluster.
func (l *Lab) load(name string) (*clusterState, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return load(filepath.Join(l.Dir, name))
}

// locked takes the lock of one cluster and creates the cluster's folder.
func (l *Lab) locked(ctx context.Context, name string) (unlock func(), err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return lock.Dir(ctx, filepath.Join(l.Dir, name), func() { l.printf("%s: waiting for another lab command", name) })
}

// change loads an existing cluster under its lock.
func (l *Lab) change(ctx context.Context, name string) (s *clusterState, unlock func(), err error) {
	if _, err := l.load(name); err != nil {
		return nil, nil, err
	}
	unlock, err = l.locked(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if s, err = l.load(name); err != nil { // another process may have removed the cluster
		unlock()
		return nil, nil, err
	}
	return s, unlock, nil
}

// AuditLog returns the path of a cluster's audit log.
func (l *Lab) AuditLog(name string) (string, error) {
	s, err := l.load(name)
	if err != nil {
		return "", err
	}
	return s.dir.auditLog(), nil
}

// Kubeconfig returns the path of the kubeconfig of [Admin] or [Keelson].
func (l *Lab) Kubeconfig(name, user string) (string, error) {
	if user != Admin && user != Keelson {
		return "", fmt.Errorf("%w: user %q: there are %s and %s", ErrOptions, user, Admin, Keelson)
	}
	s, err := l.load(name)
	if err != nil {
		return "", err
	}
	return s.dir.kubeconfig(user), nil
}

// Log returns the path of the log of a component of a cluster.
func (l *Lab) Log(name, component string) (string, error) {
	s, err := l.load(name)
	if err != nil {
		return "", err
	}
	if _, err := s.pick([]string{component}); err != nil {
		return "", err
	}
	return s.dir.log(component), nil
}

// Registry returns the address (host:port) of the registry of a cluster with real
// nodes. Image names begin with the address. Without real nodes, the error wraps
// [ErrOptions].
func (l *Lab) Registry(name string) (string, error) {
	s, err := l.load(name)
	if err != nil {
		return "", err
	}
	if !s.Options.real() {
		return "", fmt.Errorf("%w: %s has no registry: its nodes aren't real", ErrOptions, name)
	}
	return s.registry(), nil
}
