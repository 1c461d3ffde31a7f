// Package keelson runs the measured program in its own process and reads its metrics and log.
package keelson

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/process"
)

// Synced is a pattern for Metrics. The sum of its samples is the number of deliveries in sync with
// git.
const Synced = `keelson_deliveries\{.*sync="Synced"`

// grace is the time limit for a controller to stop.
const grace = time.Minute

// Options configure a controller.
type Options struct {
	Program    string // bin/keelson
	Dir        string // of the log and the clone
	Name       string // of the log; all controllers of one run share the clone
	Repo       string
	Kubeconfig string
	Context    string        // of the hub
	Interval   time.Duration // between two polls of git
	More       []string      // additional flags
}

// Controller is a keelson controller.
type Controller struct {
	*process.Child
	// Started is the time at which the controller was started.
	Started time.Time

	metrics string // address of the metrics server, empty until known
}

// Start starts keelson controller with a metrics server.
func Start(o Options) (*Controller, error) {
	c := &Controller{Started: time.Now()}
	var err error
	c.Child, err = process.StartChild(process.Spec{Path: o.Program, Log: filepath.Join(o.Dir, o.Name+".log"), Args: append([]string{
		"controller", "--repo", o.Repo, "--kubeconfig", o.Kubeconfig, "--context", o.Context,
		"--interval", o.Interval.String(), "--listen", "127.0.0.1:0", "--cache-dir", filepath.Join(o.Dir, "cache"),
	}, o.More...)}, nil)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Stop ends the controller as a Deployment would, within a minute.
func (c *Controller) Stop() error { return c.Child.Stop(grace) }

// Serves returns the address at which the controller serves "/metrics" or "webhooks". It reads the
// address from the log, and fails if the log has none yet.
func (c *Controller) Serves(what string) (string, error) {
	log, err := os.ReadFile(c.Log)
	if err != nil {
		return "", fmt.Errorf("look for the controller's address: %w", err)
	}
	found := regexp.MustCompile(`serving ` + regexp.QuoteMeta(what) + `\b.* address=(\S+)`).FindSubmatch(log)
	if found == nil {
		return "", fmt.Errorf("the controller serves no %s yet (its log: %s)", what, c.Log)
	}
	return string(found[1]), nil
}

// Metrics returns, for each pattern, the sum of the samples whose line starts with a match.
func (c *Controller) Metrics(ctx context.Context, patterns ...string) (_ []float64, err error) {
	if c.metrics == "" {
		if c.metrics, err = c.Serves("/metrics"); err != nil {
			return nil, err
		}
	}
	wanted := make([]*regexp.Regexp, len(patterns))
	for i, p := range patterns {
		wanted[i] = regexp.MustCompile("^" + p)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.metrics+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	out := make([]float64, len(patterns))
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ')
		for i, w := range wanted {
			if at < 0 || !w.MatchString(lines.Text()) {
				continue
			}
			n, err := strconv.ParseFloat(lines.Text()[at+1:], 64)
			if err != nil {
				return nil, fmt.Errorf("metric %s: %w", lines.Text(), err)
			}
			out[i] += n
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return out, nil
}
