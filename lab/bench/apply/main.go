// Command apply measures what it costs Keelson to bring a cluster to what git
// says, beside what the API server can take: a fleet of many small components on
// one cluster of the lab, delivered by keelson controller, and the same objects
// on a fresh cluster of the same kind by a loop of server-side applies that does
// nothing else. `make bench-apply` runs it.
//
// It prints figures, and fails only when an answer is wrong: a component that is
// not delivered, or a request where there is nothing to do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "apply:", err)
		os.Exit(1)
	}
}

// run makes everything in a folder of its own, which stays when it fails.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("apply", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it
	keelson := flags.String("keelson", "bin/keelson", "the keelson binary")
	components := flags.Int("components", 1000, "components of the fleet, of four objects each")
	workers := flags.Int("workers", 10, "requests that the bare loop has in flight")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("usage: %w", err)
	}
	if flags.NArg() > 0 || *components < 1 || *workers < 1 {
		return errors.New("usage: apply [--keelson FILE] [--components N] [--workers N]")
	}
	set, err := binaries.Find()
	if err != nil {
		return err
	}
	m := &measurement{components: *components, workers: *workers, set: set, out: out}
	if m.keelson, err = filepath.Abs(*keelson); err != nil {
		return fmt.Errorf("find keelson: %w", err)
	}
	if m.dir, err = os.MkdirTemp("", "keelson-apply-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	m.lab = &cluster.Lab{Dir: filepath.Join(m.dir, "clusters")}
	defer func() {
		err = errors.Join(err, m.down(context.WithoutCancel(ctx)))
		if err != nil {
			fmt.Fprintln(os.Stderr, "the files of this run stay in", m.dir)
			return
		}
		err = os.RemoveAll(m.dir)
	}()
	return m.run(ctx)
}
