package cmd

import (
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/keelson-io/keelson/renderer"
)

// workerCommand is what Keelson starts itself with to render a chart. It is not
// for people.
const workerCommand = "render-worker"

func newWorker(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    workerCommand,
		Short:  "Render charts for another keelson",
		Hidden: true,
		Args:   args("none", 0, 0),
		// It has no environment and no folder: there are no settings to read.
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
		RunE: func(*cobra.Command, []string) error {
			return renderer.Work(a.env.In, os.NewFile(3, "answers"))
		},
	}
}

// renderFlags bound what rendering may take.
type renderFlags struct {
	workers int
	timeout time.Duration
	memory  resource.QuantityValue
}

func (a *app) renderFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&a.rendering.workers, "render-workers", 0, "processes that render at once (default: the processors)")
	f.DurationVar(&a.rendering.timeout, "render-timeout", 30*time.Second, "time that one chart may take to render")
	a.rendering.memory = resource.QuantityValue{Quantity: resource.MustParse("512Mi")}
	f.Var(&a.rendering.memory, "render-memory", "`BYTES` of memory that one chart may take to render")
}

// checkRendering reports settings that nothing could be rendered with.
func (a *app) checkRendering() error {
	o := a.rendering
	switch least := resource.MustParse("64Mi"); {
	case o.workers < 0:
		return usagef("--render-workers takes at least 1, and not %d", o.workers)
	case o.timeout < time.Second:
		return usagef("--render-timeout takes at least 1s, and not %s", o.timeout)
	case o.memory.Cmp(least) < 0:
		return usagef("--render-memory takes at least %s, and not %s", least.String(), o.memory.String())
	}
	return nil
}

// renderer are the workers of this process, started when there is something to
// render.
func (a *app) renderer() (*renderer.Pool, error) {
	if a.pool != nil {
		return a.pool, nil
	}
	if err := a.checkRendering(); err != nil {
		return nil, err
	}
	workers := a.rendering.workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	a.pool = renderer.NewPool(renderer.PoolOptions{
		Args:    []string{workerCommand},
		Workers: workers,
		Timeout: a.rendering.timeout,
		Memory:  a.rendering.memory.Value(),
	})
	return a.pool, nil
}
