package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Child is a program that ends when its parent, the running program, ends. It has its
// own process group: a signal from the terminal reaches only the parent, which then
// ends the child.
type Child struct {
	// Name is the file name of the log without .log.
	Name string
	// Log is the path of the file with the program's outputs.
	Log string

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended

	mu    sync.Mutex
	ended bool  // its pid may be reused
	err   error // how it ended
}

// StartChild starts a program. If spec.Env is nil, the program inherits the environment
// of its parent. If stdout is not nil, the standard output goes there instead of the log.
func StartChild(spec Spec, stdout io.Writer) (*Child, error) {
	c := &Child{Name: strings.TrimSuffix(filepath.Base(spec.Log), ".log"), Log: spec.Log, done: make(chan struct{})}
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	defer func() { _ = log.Close() }()            // the process has its own
	c.cmd = exec.Command(spec.Path, spec.Args...) //nolint:noctx // ended by Stop and Kill
	c.cmd.Env, c.cmd.Dir, c.cmd.Stderr, c.cmd.Stdout = spec.Env, spec.Dir, log, log
	if stdout != nil {
		c.cmd.Stdout = stdout
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: cmp.Or(spec.Orphaned, syscall.SIGTERM)}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	go func() {
		err := c.cmd.Wait()
		c.mu.Lock()
		c.ended, c.err = true, err
		c.mu.Unlock()
		close(c.done)
	}()
	return c, nil
}

// Done returns a channel that is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Ended reports whether the process has ended.
func (c *Child) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// Signal sends a signal to the process and its own children. It does nothing if the process
// has ended.
func (c *Child) Signal(s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	if err := syscall.Kill(-c.cmd.Process.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s: %w", c.Name, err)
	}
	return nil
}

// ErrSignaled is returned for a process that a signal ended.
var ErrSignaled = errors.New("ended by a signal")

// ExitCode waits for the end of the process and returns its exit code. The error wraps
// [ErrSignaled] if a signal ended the process. When the context ends, ExitCode kills the
// process and returns the context's cause.
func (c *Child) ExitCode(ctx context.Context) (int, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		return 0, errors.Join(fmt.Errorf("%w (the log of %s: %s)", context.Cause(ctx), c.Name, c.Log), c.Kill())
	}
	exit, ok := errors.AsType[*exec.ExitError](c.err)
	switch {
	case c.err == nil:
		return 0, nil
	case ok && exit.Exited():
		return exit.ExitCode(), nil
	case ok:
		return 0, fmt.Errorf("%s: %w", c.Name, ErrSignaled)
	}
	return 0, fmt.Errorf("wait for %s: %w", c.Name, c.err)
}

// Stop sends SIGTERM, as a deployment does, and waits up to grace for the end of the
// process. It returns an error if the process fails. If the process doesn't end in time,
// Stop kills it and returns an error.
func (c *Child) Stop(grace time.Duration) error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", c.Name, err)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
		if c.err != nil && !terminated(c.err) {
			return fmt.Errorf("%s: %w (its log: %s)", c.Name, c.err, c.Log)
		}
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not stop within %s (its log: %s)", c.Name, grace, c.Log), c.Kill())
	}
}

// terminated reports whether SIGTERM ended the process. This happens if Stop is called
// before the process has installed its signal handler.
func terminated(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// Kill sends SIGKILL to the process and its own children, and returns when the process has
// ended.
func (c *Child) Kill() error {
	err := c.Signal(syscall.SIGKILL)
	if err == nil {
		<-c.done
	}
	return err
}

// Usage returns the current resource use of the process, without its own children.
func (c *Child) Usage() (Usage, error) { return c.usage(ID.Usage) }

// UsageOfAll returns [ID.UsageOfAll] of the process.
func (c *Child) UsageOfAll() (Usage, error) { return c.usage(ID.UsageOfAll) }

func (c *Child) usage(of func(ID) (Usage, error)) (u Usage, err error) {
	id, err := Identify(c.cmd.Process.Pid)
	if err == nil {
		u, err = of(id)
	}
	if err != nil {
		return Usage{}, fmt.Errorf("look at %s: %w", c.Name, err)
	}
	return u, nil
}

// Until calls check at the given interval until check returns nil, at most for limit and
// only while the process runs. After limit, the error wraps the last error of check.
func (c *Child) Until(ctx context.Context, limit, every time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w (the log of %s: %s)", context.Cause(ctx), err, c.Name, c.Log)
		case <-c.done:
			return fmt.Errorf("%s ended: %w (its log: %s)", c.Name, cmp.Or(c.err, errors.New("by itself")), c.Log)
		case <-tick.C:
		}
	}
}

// Wait waits for d. If the context ends earlier, Wait returns its cause.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
