// Command fleet measures the cost of a fleet repository for Keelson: loading and rendering the
// whole fleet once, and the work after a small commit. `make bench` runs it on a fleet of `lab
// fleet`, in its own process, so that the peak of memory contains only Keelson.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/keelson-io/keelson/renderer"
)

// workerArg starts this program as a render worker.
const workerArg = "render-worker"

func main() {
	// Helm writes warnings about the charts to the log. They are irrelevant here.
	log.SetOutput(io.Discard)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if len(os.Args) > 1 && os.Args[1] == workerArg {
		if err := renderer.Work(os.Stdin, os.NewFile(3, "answers")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the returned error includes it
	commits := flags.Int("commits", 10, "commits of each kind to measure; the medians are shown")
	workers := flags.Bool("workers", true, "render in worker processes, as keelson does, and not in this one")
	keelson := flags.String("keelson", "", "program whose previews are measured (default: none)")
	alone := flags.Bool("alone", true, "also time the distinct renders without a cache in front")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("usage: %w", err)
	}
	if flags.NArg() != 1 || *commits < 1 {
		return errors.New("usage: fleet [--commits N] FOLDER (a repository that lab fleet wrote; commits are added to it)")
	}
	cache, err := os.MkdirTemp("", "fleet-cache-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	m := &measurement{dir: flags.Arg(0), keelson: *keelson, cacheDir: cache, out: out, now: time.Now}
	m.engine = renderer.New()
	if *workers {
		pool := renderer.NewPool(renderer.PoolOptions{Args: []string{workerArg}})
		defer pool.Close()
		m.engine = pool
	}
	err = m.run(ctx, *commits, *alone)
	return errors.Join(err, os.RemoveAll(cache))
}
