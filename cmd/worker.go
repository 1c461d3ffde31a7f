package cmd

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/renderer"
)

// workerCommand is the hidden command that Keelson runs to render a chart.
const workerCommand = "render-worker"

func newWorker(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    workerCommand,
		Short:  "Render charts for another keelson",
		Hidden: true,
		Args:   cli.Args("none", 0, 0),
		// The process has no environment and no folder, so there are no settings to read.
		PersistentPreRun: func(*cobra.Command, []string) { a.Started = true },
		RunE: func(*cobra.Command, []string) error {
			return renderer.Work(a.Env.In, os.NewFile(3, "answers"))
		},
	}
}

// rendering holds the settings and resources for renders.
type rendering struct {
	workers       int
	timeout       time.Duration
	memory        resource.QuantityValue
	cacheDir      string
	cacheDirBytes resource.QuantityValue

	pool *renderer.Pool // nil: nothing was rendered
	// untrusted renders untrusted proposals; nil: there are none.
	untrusted *renderer.Pool
	disk      *renderer.Disk // nil: no cache on disk
}

func (a *app) renderFlags(cmd *cobra.Command) {
	f, r := cmd.Flags(), &a.rendering
	r.memory = resource.QuantityValue{Quantity: resource.MustParse("512Mi")}
	r.cacheDirBytes = resource.QuantityValue{Quantity: resource.MustParse("1Gi")}
	f.IntVar(&r.workers, "render-workers", 0, "`PROCESSES` that render at once (default: the processors)")
	f.DurationVar(&r.timeout, "render-timeout", 30*time.Second, "`TIME` that one chart may take to render")
	f.Var(&r.memory, "render-memory", "`BYTES` of memory that one chart may take to render")
	f.StringVar(&r.cacheDir, "render-cache-dir", "", "`FOLDER` to keep rendered objects in, for the next run\n(default: none; nothing that was encrypted gets there)")
	f.Var(&r.cacheDirBytes, "render-cache-dir-size", "`BYTES` that the folder may take")
}

// check reports settings that make rendering impossible.
func (r *rendering) check() error {
	least := resource.MustParse("64Mi")
	switch {
	case r.workers < 0:
		return cli.Usagef("--render-workers takes at least 1, and not %d", r.workers)
	case r.timeout < time.Second:
		return cli.Usagef("--render-timeout takes at least 1s, and not %s", r.timeout)
	case r.memory.Cmp(least) < 0:
		return cli.Usagef("--render-memory takes at least %s, and not %s", least.String(), r.memory.String())
	case r.cacheDirBytes.Cmp(least) < 0:
		return cli.Usagef("--render-cache-dir-size takes at least %s, and not %s", least.String(), r.cacheDirBytes.String())
	}
	return nil
}

// renderer returns a renderer with worker processes, which start on demand. Content that SOPS
// encrypted is decrypted outside the workers, and never stored on disk.
func (a *app) renderer() (renderer.Renderer, error) {
	r := &a.rendering
	if err := r.check(); err != nil {
		return nil, err
	}
	r.pool = renderer.NewPool(renderer.PoolOptions{
		Args:    []string{workerCommand},
		Workers: r.workers,
		Timeout: r.timeout,
		Memory:  r.memory.Value(),
	})
	var chain renderer.Renderer = renderer.NewUnsealing(r.pool, a.ageKeys())
	if r.cacheDir == "" {
		return chain, nil
	}
	var err error
	r.disk, err = renderer.OpenDisk(chain, r.cacheDir, a.program(), r.cacheDirBytes.Value())
	return r.disk, err
}

// program identifies this build, also among development builds of the same version.
func (a *app) program() string {
	id := a.Env.Version
	if path, err := os.Executable(); err == nil {
		if info, err := os.Stat(path); err == nil {
			id += fmt.Sprintf(" %d %s", info.Size(), info.ModTime().UTC().Format(time.RFC3339Nano))
		}
	}
	return id
}

// veiled is [app.renderer] for a command that prints: secrets in a target are printed as ***.
func (a *app) veiled() (renderer.Renderer, error) {
	next, err := a.renderer()
	if err != nil {
		return nil, err
	}
	return &remembering{next: next, redactor: a.Env.Redactor}, nil
}

// timed is a renderer that measures how long renders take.
type timed struct {
	next renderer.Renderer
	now  func() time.Time
	took *prometheus.HistogramVec
}

func newTimed(next renderer.Renderer, now func() time.Time) *timed {
	return &timed{next: next, now: now, took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "keelson_render_duration_seconds", Help: "How long a chart took to render, the wait for a worker with it.",
		Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
	}, []string{"result"})}
}

// Render implements [renderer.Renderer].
func (t *timed) Render(ctx context.Context, r renderer.Request) (*renderer.Target, error) {
	began := t.now()
	target, err := t.next.Render(ctx, r)
	result := "ok"
	if err != nil {
		result = "error"
	}
	t.took.WithLabelValues(result).Observe(t.now().Sub(began).Seconds())
	return target, err
}

// metrics count the worker processes.
func (r *rendering) metrics() []prometheus.Collector {
	count := func(name, help string, value func(renderer.PoolStats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help},
			func() float64 { return float64(value(r.pool.Stats())) })
	}
	return []prometheus.Collector{
		count("keelson_render_workers_started_total", "Processes that were started to render charts.",
			func(s renderer.PoolStats) int64 { return s.Started }),
		count("keelson_render_workers_killed_total", "Processes that a chart made overstep a limit, or that died.",
			func(s renderer.PoolStats) int64 { return s.Killed }),
	}
}

func (r *rendering) close() {
	for _, p := range []*renderer.Pool{r.pool, r.untrusted} {
		if p != nil {
			p.Close()
		}
	}
	if r.disk != nil {
		_ = r.disk.Close() // it writes nothing
	}
}
