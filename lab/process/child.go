package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Child is a program that ends with this one, in a process group of its own: a
// signal from the terminal reaches only its parent, which ends it in its turn.
type Child struct {
	// Name is that of its log, without the ending.
	Name string
	// Log is where its outputs are.
	Log string

	cmd  *exec.Cmd
	done chan error
}

// StartChild starts a program. Without an environment in the spec it has that of
// this one; stdout, unless nil, gets its standard output in the log's place.
func StartChild(spec Spec, stdout io.Writer) (*Child, error) {
	c := &Child{Name: strings.TrimSuffix(filepath.Base(spec.Log), ".log"), Log: spec.Log, done: make(chan error, 1)}
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
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	go func() { c.done <- c.cmd.Wait() }()
	return c, nil
}

// Stop ends the process as a deployment does, and returns how it ended. One that
// is still there after the grace is killed, which is an error.
func (c *Child) Stop(grace time.Duration) error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", c.Name, err)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-c.done:
		c.done <- err // whoever stops it twice is told the same
		if err != nil && !terminated(err) {
			return fmt.Errorf("%s: %w (its log: %s)", c.Name, err, c.Log)
		}
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not stop within %s (its log: %s)", c.Name, grace, c.Log), c.Kill())
	}
}

// terminated says that a process ended by the signal of Stop, as one does that has not
// come as far as to handle it.
func terminated(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// Kill ends the process as a power cut does, and returns when it is gone.
func (c *Child) Kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", c.Name, err)
	}
	c.done <- <-c.done // that it ended badly is what was asked for
	return nil
}

// Usage is what the process uses now, without its own children.
func (c *Child) Usage() (Usage, error) {
	id, err := c.id()
	if err != nil {
		return Usage{}, err
	}
	u, err := id.Usage()
	if err != nil {
		return Usage{}, fmt.Errorf("look at %s: %w", c.Name, err)
	}
	return u, nil
}

// UsageOfAll is [ID.UsageOfAll] of the process.
func (c *Child) UsageOfAll() (Usage, error) {
	id, err := c.id()
	if err != nil {
		return Usage{}, err
	}
	u, err := id.UsageOfAll()
	if err != nil {
		return Usage{}, fmt.Errorf("look at %s: %w", c.Name, err)
	}
	return u, nil
}

func (c *Child) id() (ID, error) {
	id, err := Identify(c.cmd.Process.Pid)
	if err != nil {
		return ID{}, fmt.Errorf("look at %s: %w", c.Name, err)
	}
	return id, nil
}

// Until waits until a check passes: as long as the limit says, and as long as the
// process runs. What the check says last is in the error.
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
		case ended := <-c.done:
			c.done <- ended
			if ended == nil {
				ended = errors.New("by itself")
			}
			return fmt.Errorf("%s ended: %w (its log: %s)", c.Name, ended, c.Log)
		case <-tick.C:
		}
	}
}

// Wait waits for a while, or until the context ends, and returns why that ended.
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
