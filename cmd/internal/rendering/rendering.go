// Package rendering renders charts for commands, in worker processes of this machine.
//
// It has the flags that bound a render, the cache on disk, and the keys for values that SOPS
// encrypted. Workers start on demand, and end with the command.
package rendering

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

// WorkerCommand is the hidden command that Keelson runs to render a chart.
const WorkerCommand = "render-worker"

// Local holds the settings and resources for renders.
type Local struct {
	*cli.Invocation
	Workers       int
	timeout       time.Duration
	memory        resource.QuantityValue
	cacheDir      string
	cacheDirBytes resource.QuantityValue

	pool *renderer.Pool // nil: nothing was rendered
	disk *renderer.Disk // nil: no cache on disk
}

// New returns the renders of one command. Nothing starts before the first render.
func New(inv *cli.Invocation) *Local { return &Local{Invocation: inv} }

// AddFlags adds the flags that limit renders.
func (r *Local) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	r.memory = resource.QuantityValue{Quantity: resource.MustParse("512Mi")}
	r.cacheDirBytes = resource.QuantityValue{Quantity: resource.MustParse("1Gi")}
	f.IntVar(&r.Workers, "render-workers", 0, "`PROCESSES` that render at once (default: the processors)")
	f.DurationVar(&r.timeout, "render-timeout", 30*time.Second, "`TIME` that one chart may take to render")
	f.Var(&r.memory, "render-memory", "`BYTES` of memory that one chart may take to render")
	f.StringVar(&r.cacheDir, "render-cache-dir", "", "`FOLDER` to keep rendered objects in, for the next run\n(default: none; nothing that was encrypted gets there)")
	f.Var(&r.cacheDirBytes, "render-cache-dir-size", "`BYTES` that the folder may take")
}

// Limits bound the render of one chart.
type Limits struct {
	Time   time.Duration
	Memory int64 // bytes
}

// Limits returns the limits of one render.
func (r *Local) Limits() Limits {
	return Limits{Time: r.timeout, Memory: r.memory.Value()}
}

// check reports settings that make rendering impossible.
func (r *Local) check() error {
	least := resource.MustParse("64Mi")
	switch {
	case r.Workers < 0:
		return cli.Usagef("--render-workers takes at least 1, and not %d", r.Workers)
	case r.timeout < time.Second:
		return cli.Usagef("--render-timeout takes at least 1s, and not %s", r.timeout)
	case r.memory.Cmp(least) < 0:
		return cli.Usagef("--render-memory takes at least %s, and not %s", least.String(), r.memory.String())
	case r.cacheDirBytes.Cmp(least) < 0:
		return cli.Usagef("--render-cache-dir-size takes at least %s, and not %s", least.String(), r.cacheDirBytes.String())
	}
	return nil
}

// Renderer returns a renderer with worker processes, which start on demand. Content that SOPS
// encrypted is decrypted outside the workers, and never stored on disk.
func (r *Local) Renderer() (renderer.Renderer, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	r.pool = renderer.NewPool(renderer.PoolOptions{
		Args:    []string{WorkerCommand},
		Workers: r.Workers,
		Timeout: r.timeout,
		Memory:  r.memory.Value(),
	})
	r.OnExit(r.close)
	var chain renderer.Renderer = renderer.NewUnsealing(r.pool, AgeKeys(r.AgeKeyFile))
	if r.cacheDir == "" {
		return chain, nil
	}
	var err error
	r.disk, err = renderer.OpenDisk(chain, r.cacheDir, r.program(), r.cacheDirBytes.Value())
	return r.disk, err
}

// program identifies this build, also among development builds of the same version.
func (r *Local) program() string {
	id := r.Env.Version
	if path, err := os.Executable(); err == nil {
		if info, err := os.Stat(path); err == nil {
			id += fmt.Sprintf(" %d %s", info.Size(), info.ModTime().UTC().Format(time.RFC3339Nano))
		}
	}
	return id
}

// ForOutput is [rendering.renderer] for a command that prints: secrets in a target are printed as ***.
func (r *Local) ForOutput() (renderer.Renderer, error) {
	next, err := r.Renderer()
	if err != nil {
		return nil, err
	}
	return &Redacting{Next: next, Redactor: r.Env.Redactor}, nil
}

// Timed is a renderer that measures how long renders take.
type Timed struct {
	next renderer.Renderer
	now  func() time.Time
	Took *prometheus.HistogramVec
}

// NewTimed returns a renderer that measures how long next takes.
func NewTimed(next renderer.Renderer, now func() time.Time) *Timed {
	return &Timed{next: next, now: now, Took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "keelson_render_duration_seconds", Help: "How long a chart took to render, the wait for a worker with it.",
		Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
	}, []string{"result"})}
}

// Render implements [renderer.Renderer].
func (t *Timed) Render(ctx context.Context, r renderer.Request) (*renderer.Target, error) {
	began := t.now()
	target, err := t.next.Render(ctx, r)
	result := "ok"
	if err != nil {
		result = "error"
	}
	t.Took.WithLabelValues(result).Observe(t.now().Sub(began).Seconds())
	return target, err
}

// Metrics count the worker processes.
func (r *Local) Metrics() []prometheus.Collector {
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

func (r *Local) close() {
	r.pool.Close()
	if r.disk != nil {
		_ = r.disk.Close() // it writes nothing
	}
}
