package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/keelson-io/keelson/lab/process"
)

// controller is a keelson controller process.
type controller struct {
	log  string
	cmd  *exec.Cmd
	done chan error
	// address of its metrics.
	address string
}

// startController starts keelson controller with the cluster as its own hub.
func (m *measurement) startController(kubeconfig string) (*controller, error) {
	c := &controller{log: filepath.Join(m.dir, "controller.log"), done: make(chan error, 1)}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, fmt.Errorf("start the controller: %w", err)
	}
	defer func() { _ = log.Close() }() // the process has its own

	c.cmd = exec.Command(m.keelson, "controller", "--repo", m.fleet.bare, "--kubeconfig", kubeconfig, //nolint:noctx,gosec // ended by stop
		"--context", clusterName, "--interval", "1s", "--listen", "127.0.0.1:0", "--cache-dir", filepath.Join(m.dir, "cache"))
	c.cmd.Stderr, c.cmd.Stdout = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the controller: %w", err)
	}
	go func() { c.done <- c.cmd.Wait() }()
	return c, nil
}

// stop ends the process as a deployment does.
func (c *controller) stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the controller: %w", err)
	}
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case err := <-c.done:
		if err != nil {
			return fmt.Errorf("the controller: %w (its log: %s)", err, c.log)
		}
		return nil
	case <-timer.C:
		return errors.Join(errors.New("the controller did not stop within 30s"), c.cmd.Process.Kill())
	}
}

// served finds the address in the log.
func (c *controller) served() error {
	if c.address != "" {
		return nil
	}
	log, err := os.ReadFile(c.log)
	if err != nil {
		return fmt.Errorf("look for the controller's address: %w", err)
	}
	found := regexp.MustCompile(`readyz" address=(\S+)`).FindSubmatch(log)
	if found == nil {
		return errors.New("the controller serves no metrics yet")
	}
	c.address = string(found[1])
	return nil
}

// metrics returns the sum of the samples of each metric that match a pattern.
func (c *controller) metrics(ctx context.Context, patterns ...string) ([]float64, error) {
	if err := c.served(); err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.address+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	out := make([]float64, len(patterns))
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		for i, p := range patterns {
			if matched, err := regexp.MatchString("^"+p, name); err != nil || !matched || !ok {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return nil, fmt.Errorf("metric %s: %w", name, err)
			}
			out[i] += n
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return out, nil
}

// until waits for metrics to be as a check wants them.
func (c *controller) until(ctx context.Context, check func([]float64) error, patterns ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		values, err := c.metrics(ctx, patterns...)
		if err == nil {
			err = check(values)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w (the controller's log: %s)", context.Cause(ctx), err, c.log)
		case err := <-c.done:
			c.done <- err
			return fmt.Errorf("the controller ended: %w (its log: %s)", err, c.log)
		case <-tick.C:
		}
	}
}

// usage is the CPU of the process and of the workers that it waits for, and its
// own peak of memory.
func (c *controller) usage() (cpu time.Duration, peak int64, err error) {
	id, err := process.Identify(c.cmd.Process.Pid)
	if err != nil {
		return 0, 0, fmt.Errorf("look at the controller: %w", err)
	}
	u, err := id.Usage()
	if err != nil {
		return 0, 0, fmt.Errorf("look at the controller: %w", err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", id.PID))
	if err != nil {
		return 0, 0, fmt.Errorf("look at the controller: %w", err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		return 0, 0, errors.New("look at the controller: /proc tells no VmHWM")
	}
	kb, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("look at the controller: %w", err)
	}
	return u.CPU, kb << 10, nil
}

// kubeconfig writes a file whose context is called after the cluster in git.
func (m *measurement) kubeconfig(lab, user string) (string, error) {
	path, err := m.lab.Kubeconfig(lab, user)
	if err != nil {
		return "", err
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return "", fmt.Errorf("kubeconfig of %s: %w", lab, err)
	}
	current := config.Contexts[config.CurrentContext]
	config.Contexts = map[string]*clientcmdapi.Context{clusterName: current}
	config.CurrentContext = clusterName
	out := filepath.Join(m.dir, lab+"-kubeconfig.yaml")
	if err := clientcmd.WriteToFile(*config, out); err != nil {
		return "", fmt.Errorf("kubeconfig of %s: %w", lab, err)
	}
	return out, nil
}
