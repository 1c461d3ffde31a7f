package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/keelson-io/keelson/lab/node"
)

// A process keeps its cgroup busy. The cgroups beside it go at once; it goes as soon as
// the process has ended.
func TestRemoveCgroups(t *testing.T) {
	t.Parallel()
	const hierarchy = "/sys/fs/cgroup/pids"
	name := fmt.Sprintf("/keelson-test-%d", os.Getpid())
	busy, idle := filepath.Join(hierarchy, name, "a-busy"), filepath.Join(hierarchy, name, "b-idle", "below")
	for _, dir := range []string{busy, idle} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Skipf("needs root and writable cgroups (version 1): %v", err)
		}
	}
	t.Cleanup(func() {
		if err := node.RemoveCgroups(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	})
	sleeper := exec.CommandContext(t.Context(), "sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(busy, "cgroup.procs"), []byte(strconv.Itoa(sleeper.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := node.RemoveCgroups(ended, name)
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), busy) {
		t.Errorf("error %v; want that %s is busy", err, busy)
	}
	if _, err := os.Stat(filepath.Dir(idle)); !os.IsNotExist(err) {
		t.Errorf("an idle cgroup stayed beside a busy one: %v", err)
	}

	removed := make(chan error, 1)
	go func() { removed <- node.RemoveCgroups(t.Context(), name) }()
	if err := sleeper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = sleeper.Wait() // it was killed
	if err := <-removed; err != nil {
		t.Errorf("not removed once its process had ended: %v", err)
	}
}
