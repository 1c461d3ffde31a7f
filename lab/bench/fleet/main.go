// Command fleet measures what a fleet repository costs Keelson: reading and
// rendering all of it once, and what a small commit touches from then on.
// `make bench` runs it on a fleet of `lab fleet`, in a process of its own, so
// that the peak of memory is Keelson's alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

func main() {
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
	commits := flags.Int("commits", 10, "commits of each kind to measure; the medians are shown")
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
	m := &measurement{dir: flags.Arg(0), cacheDir: cache, out: out, now: time.Now} //nolint:forbidigo // what is measured is time
	err = m.run(ctx, *commits, *alone)
	return errors.Join(err, os.RemoveAll(cache))
}
