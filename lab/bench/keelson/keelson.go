// Package keelson runs the program that is measured, a process of its own, and
// reads what it says of itself.
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

// Synced is the metric whose sum is how many deliveries are as git says.
const Synced = `keelson_deliveries\{.*sync="Synced"`

// grace is how long a controller may take to end.
const grace = time.Minute

// Options say what a controller works on.
type Options struct {
	Program    string // bin/keelson
	Dir        string // for its log and its clone
	Name       string // of its log; controllers of one run share the clone
	Repo       string
	Kubeconfig string
	Context    string        // the hub's
	Interval   time.Duration // between two looks at git
	More       []string      // flags
}

// Controller is a keelson controller.
type Controller struct {
	*process.Child
	// Started is when.
	Started time.Time

	metrics string // where they are served, once that is known
}

// Start starts keelson controller, with a server for its metrics.
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

// Stop ends it as a deployment does.
func (c *Controller) Stop() error { return c.Child.Stop(grace) }

// Serves is the address at which it serves something, as its log says: "/metrics"
// or "webhooks".
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

// Metrics returns, for each pattern, the sum of the samples whose line begins so.
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
