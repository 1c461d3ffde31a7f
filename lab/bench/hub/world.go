package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/keelson-io/keelson/lab/bench/sim"
	"github.com/keelson-io/keelson/lab/process"
)

// child is a process that ends with this one.
type child struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan error
}

func start(name, dir string, out io.Writer, program string, args ...string) (*child, error) {
	c := &child{name: name, log: filepath.Join(dir, name+".log"), done: make(chan error, 1)}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer func() { _ = log.Close() }()     // the process has its own
	c.cmd = exec.Command(program, args...) //nolint:noctx,gosec // ended by stop
	c.cmd.Stderr, c.cmd.Stdout = log, out
	if out == nil {
		c.cmd.Stdout = log
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { c.done <- c.cmd.Wait() }()
	return c, nil
}

// stop ends the process as a deployment does.
func (c *child) stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", c.name, err)
	}
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case err := <-c.done:
		if err != nil {
			return fmt.Errorf("%s: %w (its log: %s)", c.name, err, c.log)
		}
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not stop within a minute", c.name), c.cmd.Process.Kill())
	}
}

// usage is what a process has used and holds.
type usage struct {
	cpu            time.Duration
	peak, resident int64 // bytes
}

// usage is that of the process, and the CPU of workers that it has waited for.
func (c *child) usage() (usage, error) {
	id, err := process.Identify(c.cmd.Process.Pid)
	if err != nil {
		return usage{}, fmt.Errorf("look at %s: %w", c.name, err)
	}
	u, err := id.Usage()
	if err != nil {
		return usage{}, fmt.Errorf("look at %s: %w", c.name, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", id.PID))
	if err != nil {
		return usage{}, fmt.Errorf("look at %s: %w", c.name, err)
	}
	out := usage{cpu: u.CPU}
	for field, into := range map[string]*int64{"VmHWM": &out.peak, "VmRSS": &out.resident} {
		found := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(status)
		if found == nil {
			return usage{}, fmt.Errorf("look at %s: /proc tells no %s", c.name, field)
		}
		kb, err := strconv.ParseInt(string(found[1]), 10, 64)
		if err != nil {
			return usage{}, fmt.Errorf("look at %s: %w", c.name, err)
		}
		*into = kb << 10
	}
	return out, nil
}

// simulation is the process of the simulated API servers.
type simulation struct {
	*child
	control string
	folder  string // of kubeconfigs
}

func startSimulation(ctx context.Context, dir string, clusters int, seed uint64) (*simulation, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	s := &simulation{folder: filepath.Join(dir, "kubeconfigs")}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the simulation: %w", err)
	}
	defer func() { _ = r.Close() }() // all is read by then
	s.child, err = start("simulation", dir, w, self, "sim", "--clusters", strconv.Itoa(clusters), "--seed", strconv.FormatUint(seed, 10), s.folder)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) }) // or it is waited for in vain
	defer stop()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the simulation did not start: %w (its log: %s)", err, s.log), s.stop())
	}
	s.control = strings.TrimSpace(line)
	return s, nil
}

// statuses are those of some clusters, or all.
func (s *simulation) statuses(ctx context.Context, names ...string) ([]sim.Status, error) {
	at := s.control + "/"
	if len(names) > 0 {
		at += "?clusters=" + strings.Join(names, ",")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the simulation: %w", err)
	}
	var out []sim.Status
	return out, do(request, func(body io.Reader) error { return json.NewDecoder(body).Decode(&out) })
}

// command tells some clusters what is wrong with them.
func (s *simulation) command(ctx context.Context, c sim.Command) error {
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("command the simulation: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.control+"/", bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("command the simulation: %w", err)
	}
	return do(request, func(io.Reader) error { return nil })
}

func do(request *http.Request, read func(io.Reader) error) error {
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask %s: %w", request.URL.Host, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode >= http.StatusMultipleChoices {
		text, err := io.ReadAll(answer.Body)
		return errors.Join(fmt.Errorf("ask %s: %s: %s", request.URL, answer.Status, text), err)
	}
	if err := read(answer.Body); err != nil {
		return fmt.Errorf("read what %s says: %w", request.URL.Host, err)
	}
	return nil
}

// controller is the process that is measured.
type controller struct {
	*child
	started time.Time
	address string // of its metrics
}

func (m *measurement) startController() (*controller, error) {
	m.runs++
	c := &controller{started: time.Now()}
	var err error
	c.child, err = start(fmt.Sprintf("controller-%d", m.runs), m.dir, nil, m.keelson, append([]string{
		"controller", "--repo", m.repo.dir, "--kubeconfig", m.kubeconfig, "--context", hubName,
		"--interval", interval.String(), "--listen", "127.0.0.1:0", "--cache-dir", filepath.Join(m.dir, "cache"),
	}, m.flags...)...)
	return c, err
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

// metrics returns the sum of the samples of each metric that matches a pattern.
func (c *controller) metrics(ctx context.Context, patterns ...string) ([]float64, error) {
	if err := c.served(); err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.address+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	wanted := make([]*regexp.Regexp, len(patterns))
	for i, p := range patterns {
		wanted[i] = regexp.MustCompile("^" + p)
	}
	out := make([]float64, len(patterns))
	return out, do(request, func(body io.Reader) error {
		lines := bufio.NewScanner(body)
		for lines.Scan() {
			at := strings.LastIndexByte(lines.Text(), ' ')
			for i, w := range wanted {
				if at < 0 || !w.MatchString(lines.Text()) {
					continue
				}
				n, err := strconv.ParseFloat(lines.Text()[at+1:], 64)
				if err != nil {
					return err //nolint:wrapcheck // by do
				}
				out[i] += n
			}
		}
		return lines.Err()
	})
}

// until waits until a check passes; what it says last is why it did not.
func (c *controller) until(ctx context.Context, limit, every time.Duration, check func(context.Context) error) error {
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
			return fmt.Errorf("%w: %w (the controller's log: %s)", context.Cause(ctx), err, c.log)
		case ended := <-c.done:
			c.done <- ended
			return fmt.Errorf("the controller ended: %w (its log: %s)", ended, c.log)
		case <-tick.C:
		}
	}
}
