// Package registry measures the cost of a fleet repository for Keelson: loading and rendering the
// whole fleet once, and the work after a small commit. `make bench-registry` runs it on a fleet of
// `lab fleet`, in a process of its own, so that the peak of memory contains only Keelson.
package registry

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"

	"github.com/keelson-io/keelson/renderer"
)

// WorkerArg is the argument with which the program has to call [Work].
const WorkerArg = "render-worker"

// Work makes this process a render worker.
func Work() error {
	silence()
	return renderer.Work(os.Stdin, os.NewFile(3, "answers"))
}

// silence drops what Helm logs about the charts. It is irrelevant here.
func silence() {
	log.SetOutput(io.Discard)
	slog.SetDefault(slog.New(slog.DiscardHandler))
}

// Run measures the repository in a folder.
func Run(ctx context.Context, args []string, out io.Writer) error {
	silence()
	flags := flag.NewFlagSet("bench registry", flag.ContinueOnError)
	commits := flags.Int("commits", 10, "commits of each kind to measure; the medians are shown")
	workers := flags.Bool("workers", true, "render in worker processes, as keelson does, and not in this one")
	keelson := flags.String("keelson", "", "program whose previews are measured (default: none)")
	alone := flags.Bool("alone", true, "also time the distinct renders without a cache in front")
	err := harness.ParseFlags(flags, args, "bench registry [FLAGS] FOLDER (a repository that lab fleet wrote; commits are added to it)", func() bool {
		return flags.NArg() == 1 && *commits > 0
	})
	if err != nil {
		return err
	}
	cache, err := os.MkdirTemp("", "fleet-cache-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	m := &measurement{dir: flags.Arg(0), keelson: *keelson, cacheDir: cache, out: out, now: time.Now}
	m.engine = renderer.New()
	if *workers {
		pool := renderer.NewPool(renderer.PoolOptions{Args: []string{WorkerArg}})
		defer pool.Close()
		m.engine = pool
	}
	err = must.Try(func() { m.run(ctx, *commits, *alone) })
	return errors.Join(err, os.RemoveAll(cache))
}
