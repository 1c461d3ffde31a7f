package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/keelson-io/keelson/lab/process"
)

// controller is a keelson controller process.
type controller struct {
	binary, kubeconfig, repo, cache, log, listen string

	*process.Child // nil: not running
}

// start starts the process. It appends to the log of earlier processes.
func (c *controller) start() (err error) {
	c.Child, err = process.StartChild(process.Spec{Path: c.binary, Log: c.log, Args: []string{
		"controller", "--repo", c.repo, "--kubeconfig", c.kubeconfig, "--context", hub,
		"--interval", "2s", "--render-timeout", "5s", "--listen", c.listen, "--cache-dir", c.cache,
	}}, nil)
	return err
}

// kill ends the process with SIGKILL, as a power cut does.
func (c *controller) kill() error {
	err := c.Kill()
	c.Child = nil
	return err
}

// stop ends the process as a Deployment would, and returns an error if it did not end well.
func (c *controller) stop() error {
	if c.Child == nil {
		return nil
	}
	err := c.Stop(30 * time.Second)
	c.Child = nil
	return err
}

// keelson runs a command of the binary and returns its standard output and exit code.
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
