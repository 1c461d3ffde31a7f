package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/keelson-io/keelson/lab/process"
)

// controller is a keelson controller process.
type controller struct {
	binary, kubeconfig, repo, cache, log, listen string

	cmd  *exec.Cmd
	done chan error
}

// start starts the process; its log goes on where an earlier one ended.
func (c *controller) start() error {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start controller: %w", err)
	}
	defer func() { _ = log.Close() }()                                                                             // the process has its own
	c.cmd = exec.Command(c.binary, "controller", "--repo", c.repo, "--kubeconfig", c.kubeconfig, "--context", hub, //nolint:noctx,gosec // ended by stop and kill
		"--interval", "2s", "--render-timeout", "5s", "--listen", c.listen, "--cache-dir", c.cache)
	c.cmd.Stderr, c.cmd.Stdout = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("start controller: %w", err)
	}
	c.done = make(chan error, 1)
	go func(cmd *exec.Cmd, done chan error) { done <- cmd.Wait() }(c.cmd, c.done)
	return nil
}

// kill ends the process as a power cut does.
func (c *controller) kill() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill controller: %w", err)
	}
	<-c.done //nolint:errcheck // it was killed, so it ended badly
	c.cmd = nil
	return nil
}

// stop ends the process as a deployment does, and returns how it ended.
func (c *controller) stop() error {
	if c.cmd == nil {
		return nil
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop controller: %w", err)
	}
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case err := <-c.done:
		c.cmd = nil
		if err != nil {
			return fmt.Errorf("controller: %w (its log: %s)", err, c.log)
		}
		return nil
	case <-timer.C:
		return errors.Join(errors.New("the controller did not stop within 30s"), c.kill())
	}
}

// keelson runs a command of the binary and returns its output and exit code.
func (s *smoke) keelson(ctx context.Context, args ...string) (string, int, error) {
	c := exec.CommandContext(ctx, s.binary, append(args, "--repo", s.repo.url, "--kubeconfig", s.scene.kubeconfig(), "--context", hub)...)
	out, err := c.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode(), nil
	}
	if err != nil {
		return "", 0, fmt.Errorf("keelson %v: %w", args, err)
	}
	return string(out), 0, nil
}

// usage is what the process uses.
func (c *controller) usage() (process.Usage, error) {
	id, err := process.Identify(c.cmd.Process.Pid)
	if err != nil {
		return process.Usage{}, fmt.Errorf("look at the controller: %w", err)
	}
	u, err := id.Usage()
	if err != nil {
		return process.Usage{}, fmt.Errorf("look at the controller: %w", err)
	}
	return u, nil
}
