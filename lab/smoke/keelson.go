package main

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

// controller is a keelson controller process.
type controller struct {
	cli                *cli
	cache, log, listen string

	*process.Child // nil: not running
}

// start starts the process. It appends to the log of earlier processes.
func (c *controller) start() {
	c.Child = must.Get(process.StartChild(process.Spec{Path: c.cli.binary, Log: c.log, Args: c.cli.args(
		"controller", "--interval", "2s", "--render-timeout", "5s", "--listen", c.listen, "--cache-dir", c.cache,
	)}, nil))
}

// kill ends the process with SIGKILL, as a power cut does.
func (c *controller) kill() {
	child := c.Child
	c.Child = nil
	must.Do(child.Kill())
}

// stop ends the process as a Deployment would, and fails if it does not end well.
func (c *controller) stop() {
	if child := c.Child; child != nil {
		c.Child = nil
		must.Do(child.Stop(30 * time.Second))
	}
}

// cli runs commands of keelson.
type cli struct {
	binary, kubeconfig string
	repo               *repository
}

// args returns the arguments of a command with the flags that name repository and hub.
func (c *cli) args(args ...string) []string {
	return append(args, "--repo", c.repo.url(), "--kubeconfig", c.kubeconfig, "--context", hub)
}

// exec runs keelson with exactly these arguments. It returns the standard output and the exit
// code, and the standard error in case of a failure.
func (c *cli) exec(ctx context.Context, args ...string) (out string, code int, problems []byte) {
	data, err := exec.CommandContext(ctx, c.binary, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(data), exit.ExitCode(), exit.Stderr
	}
	if err != nil {
		must.Failf("keelson %v: %w", args, err)
	}
	return string(data), 0, nil
}

// try runs a command, whatever its exit code is.
func (c *cli) try(ctx context.Context, args ...string) (out string, code int) {
	out, code, _ = c.exec(ctx, c.args(args...)...)
	return out, code
}

// run runs a command that must end with an exit code, and returns its output without blanks around.
func (c *cli) run(ctx context.Context, want int, args ...string) string {
	return c.expect(ctx, want, c.args(args...)...)
}

// expect is run with exactly these arguments.
func (c *cli) expect(ctx context.Context, want int, args ...string) string {
	out, code, problems := c.exec(ctx, args...)
	if code != want {
		must.Failf("keelson %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, out, problems)
	}
	return strings.TrimSpace(out)
}

// render returns the objects that a cluster should have according to git.
func (c *cli) render(ctx context.Context, cluster string) []unstructured.Unstructured {
	var list unstructured.UnstructuredList
	must.Do(list.UnmarshalJSON([]byte(c.run(ctx, 0, "render", cluster, "-o", "json"))))
	return list.Items
}
