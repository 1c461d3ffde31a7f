// Package keelson runs the measured program in its own process and reads its metrics and log.
package keelson

import (
	"context"
	"path/filepath"
	"time"

	"github.com/keelson-io/keelson/lab/harness"
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

// Serves returns [harness.Served] of the controller.
func (c *Controller) Serves(what string) (string, error) { return harness.Served(c.Log, what) }

// Metrics returns [harness.Metrics] of the controller.
func (c *Controller) Metrics(ctx context.Context, patterns ...string) (_ []float64, err error) {
	if c.metrics == "" {
		if c.metrics, err = c.Serves("/metrics"); err != nil {
			return nil, err
		}
	}
	return harness.Metrics(ctx, c.metrics, patterns...)
}
