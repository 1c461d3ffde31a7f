// Package process starts programs that outlive their starter, and finds and
// ends them later, from another process.
//
// A process is recorded with the moment at which it started and the boot that
// it belongs to, so that a pid that meanwhile belongs to someone else is never
// taken for it. This reads /proc: it works on Linux alone.
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
)

// poll is how often a process that was told to end is looked at.
const poll = 25 * time.Millisecond

// killWait bounds the wait for the kernel to end a process after SIGKILL.
const killWait = 10 * time.Second

// ID names one process for good. The zero ID names none.
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
	Log  string // appended to; both outputs
	// Alone are namespaces that it has of its own: CLONE_NEW….
	Alone uintptr
}

// Start starts a program in a session of its own, so that it goes on when the
// caller ends or its terminal closes.
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
	// Before Wait collects it: until then the pid can't be anyone else's.
	id, err := Identify(cmd.Process.Pid)
	if err != nil {
		err = errors.Join(fmt.Errorf("identify %s: %w", name, err), cmd.Process.Kill())
	}
	// Collects the process should it end while the caller still runs; how it
	// ended is in its log.
	go func() { _ = cmd.Wait() }()
	return id, err
}

// Identify returns the ID of a process that runs now; without such a process
// the error wraps [os.ErrNotExist].
func Identify(pid int) (ID, error) {
	id, _, err := identify(pid)
	return id, err
}

func identify(pid int) (ID, stat, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ID{}, stat{}, fmt.Errorf("read the boot ID, which only Linux has: %w", errors.Join(errors.ErrUnsupported, err))
	}
	st, err := readStat(pid)
	if err != nil {
		return ID{}, stat{}, err
	}
	return ID{PID: pid, Start: st.start, Boot: strings.TrimSpace(string(boot))}, st, nil
}

// Alive says whether exactly this process runs. One that ended but was not
// collected by its parent (a zombie) doesn't. An error means that it could not
// be found out, not that the process is gone.
func (id ID) Alive() (bool, error) {
	if id.PID <= 0 {
		return false, nil
	}
	now, st, err := identify(id.PID)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return now == id && st.state != 'Z' && st.state != 'X', nil
}

// Signal sends a signal to exactly this process; one that is gone is
// [os.ErrProcessDone]. The handle (a pidfd) is opened before the identity is
// checked, so that a pid that is reused in between isn't hit.
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

// Stop ends the process: SIGTERM, then SIGKILL after the grace. It returns
// when the process is gone; that it was gone before is no error. A context
// that ends cuts the grace short, not the ending.
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

func (id ID) end(ctx context.Context, sig os.Signal, wait time.Duration) (gone bool, err error) {
	switch err := id.Signal(sig); {
	case errors.Is(err, os.ErrProcessDone):
		return true, nil
	case err != nil:
		return false, err
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		if alive, err := id.Alive(); err != nil || !alive {
			return err == nil, err
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-timeout.C:
			return false, nil
		case <-tick.C:
		}
	}
}
