// Package process starts programs that outlive their starter. Another process can
// find and end them later.
//
// The ID of a process contains its start time and the boot ID of the machine. So another
// process that later gets the same pid is never mistaken for it. The package reads
// /proc, so it works only on Linux.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"k8s.io/apimachinery/pkg/util/wait"
)

// poll is the interval of checks whether a signalled process has ended.
const poll = 25 * time.Millisecond

// killWait is the longest wait for the end of a process after SIGKILL.
const killWait = 10 * time.Second

// ID identifies one process uniquely, also after its pid is reused. The zero ID
// identifies no process.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"startTicks"` // clock ticks from boot to the start
	Boot  string `json:"bootID"`
}

// Spec is a program to start.
type Spec struct {
	Path string
	Args []string
	Env  []string // the whole environment
	Dir  string
	Log  string // file that both outputs are appended to
	// Alone are the clone flags (CLONE_NEW…) of the process's own namespaces.
	Alone uintptr
	// Orphaned is the signal that a [Child] gets when its parent ends; 0: SIGTERM.
	Orphaned syscall.Signal
}

// Start starts a program in its own session, so that the program keeps running when the
// caller ends or the caller's terminal closes.
func Start(spec Spec) (ID, error) {
	name := filepath.Base(spec.Path)
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return ID{}, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer func() { _ = log.Close() }() // the process has its own handle

	cmd := exec.Command(spec.Path, spec.Args...) //nolint:noctx // it must outlive every context of ours
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = spec.Env, spec.Dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: spec.Alone}
	if err := cmd.Start(); err != nil {
		return ID{}, fmt.Errorf("start %s: %w", name, err)
	}
	// Before Wait collects the process: until then no other process gets its pid.
	id, err := Identify(cmd.Process.Pid)
	if err != nil {
		err = errors.Join(fmt.Errorf("identify %s: %w", name, err), cmd.Process.Kill())
	}
	// Collects the process if it ends while the caller still runs. The log shows
	// the reason of the end.
	go func() { _ = cmd.Wait() }()
	return id, err
}

// Identify returns the ID of the process that has a pid now. The error wraps
// [os.ErrNotExist] if there is no such process.
func Identify(pid int) (ID, error) {
	id, _, err := identify(pid)
	return id, err
}

func identify(pid int) (ID, procfs.ProcStat, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ID{}, procfs.ProcStat{}, fmt.Errorf("read the boot ID, which only Linux has: %w", errors.Join(errors.ErrUnsupported, err))
	}
	st, err := read(pid, procfs.Proc.Stat)
	if err != nil {
		return ID{}, procfs.ProcStat{}, err
	}
	return ID{PID: pid, Start: st.Starttime, Boot: strings.TrimSpace(string(boot))}, st, nil
}

// Alive reports whether exactly this process runs. A zombie, which ended but was not
// collected by its parent, doesn't run. An error means that the state is unknown, not
// that the process has ended.
func (id ID) Alive() (bool, error) {
	_, running, err := id.stat()
	return running, err
}

// stat returns what the kernel knows of exactly this process, and whether the process runs.
func (id ID) stat() (st procfs.ProcStat, running bool, err error) {
	if id.PID <= 0 {
		return st, false, nil
	}
	now, st, err := identify(id.PID)
	if errors.Is(err, os.ErrNotExist) {
		return st, false, nil
	}
	return st, now == id && st.State != "Z" && st.State != "X", err
}

// Signal sends a signal to exactly this process. It returns [os.ErrProcessDone] if the
// process has ended. Signal opens a handle (a pidfd) before it checks the identity,
// so that the signal never reaches another process that reuses the pid.
func (id ID) Signal(sig os.Signal) error {
	handle, err := os.FindProcess(id.PID)
	if err != nil {
		return fmt.Errorf("find process %d: %w", id.PID, err)
	}
	defer func() { _ = handle.Release() }()
	alive, err := id.Alive()
	if err != nil {
		return err
	}
	if !alive {
		return os.ErrProcessDone
	}
	if err := handle.Signal(sig); err != nil {
		return fmt.Errorf("signal process %d: %w", id.PID, err)
	}
	return nil
}

// Stop ends the process with SIGTERM, and after grace with SIGKILL. It returns when the
// process has ended. A process that had ended before is not an error. If the context
// ends, Stop sends SIGKILL at once.
func (id ID) Stop(ctx context.Context, grace time.Duration) error {
	gone, err := id.end(ctx, syscall.SIGTERM, grace)
	if gone || err != nil {
		return err
	}
	gone, err = id.end(context.WithoutCancel(ctx), syscall.SIGKILL, killWait)
	if err == nil && !gone {
		err = fmt.Errorf("process %d is still there %s after SIGKILL", id.PID, killWait)
	}
	return err
}

func (id ID) end(ctx context.Context, sig os.Signal, limit time.Duration) (gone bool, err error) {
	switch err := id.Signal(sig); {
	case errors.Is(err, os.ErrProcessDone):
		return true, nil
	case err != nil:
		return false, err
	}
	err = wait.PollUntilContextTimeout(ctx, poll, limit, true, func(context.Context) (bool, error) {
		alive, err := id.Alive()
		return !alive, err
	})
	if wait.Interrupted(err) {
		return false, nil
	}
	return err == nil, err //nolint:wrapcheck // it is Alive's
}
