// Package apply measures the cost of keelson controller to bring a cluster to the state in git. It
// compares that cost with the limit of the API server. The fleet has many small components on one
// cluster of the lab. For the comparison, a loop of server-side applies applies the same objects to
// a fresh cluster of the same kind.
//
// The mode apply has a controller that polls. In the mode push a webhook notifies the controller of
// pushes, and a long idle period follows. The mode peer does the same, and then measures Flux on a
// cluster of the same kind from the same git server.
//
// It prints figures, and fails only if a result is wrong: a component that is not delivered, or a
// request where there is nothing to do.
package apply

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// mode selects how a controller learns of commits, and whether Flux is measured too.
type mode string

const (
	byPoll   mode = "apply"
	byPush   mode = "push"
	withPeer mode = "peer"
)

// options parses the command line.
func options(how string, args []string) (*measurement, error) {
	m := &measurement{mode: mode(how)}
	flags := flag.NewFlagSet("bench "+how, flag.ContinueOnError)
	flags.StringVar(&m.keelson, "keelson", "bin/keelson", "the program to measure")
	flags.IntVar(&m.components, "components", 1000, "components of the fleet, of four objects each")
	flags.IntVar(&m.workers, "workers", 10, "requests that the bare loop has in flight")
	more := ""
	if m.mode != byPoll {
		flags.DurationVar(&m.quiet, "quiet", 10*time.Minute, "how long nothing happens")
		flags.StringVar(&more, "controller-flags", "", "more flags of the controller, separated by blanks")
	}
	if m.mode == withPeer {
		flags.DurationVar(&m.flux.building, "build-timeout", 30*time.Minute, "how long building Flux may take, once")
		flags.IntVar(&m.flux.groups, "kustomizations", 0, "Kustomizations over which Flux has the components spread; 0: one each")
		flags.IntVar(&m.flux.concurrent, "concurrent", 20, "what Flux's controllers work on at once")
		flags.DurationVar(&m.flux.interval, "interval", 10*time.Minute, "of Flux's Kustomizations")
	}
	err := harness.ParseFlags(flags, args, "bench apply|push|peer [FLAGS]", func() bool {
		return flags.NArg() == 0 && m.components > 0 && m.workers > 0 && m.quiet >= 0 && m.flux.groups >= 0
	})
	if err != nil {
		return nil, err
	}
	m.flags = strings.Fields(more)
	if m.keelson, err = filepath.Abs(m.keelson); err != nil {
		return nil, fmt.Errorf("find keelson: %w", err)
	}
	return m, nil
}

// Run measures in a mode: apply, push or peer. It creates all files in a folder of its own, and
// keeps the folder on failure.
func Run(ctx context.Context, how string, args []string, out io.Writer) (err error) {
	m, err := options(how, args)
	if err != nil {
		return err
	}
	m.out = out
	if m.set, err = binaries.Find(); err != nil {
		return err
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
		for _, folder := range append(m.scratch, m.dir) {
			err = errors.Join(err, os.RemoveAll(folder))
		}
	}()
	return must.Try(func() { m.run(ctx) })
}
