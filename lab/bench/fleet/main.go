// Command fleet (bench-fleet) measures `keelson controller` on a fleet of simulated clusters. It
// measures the first sync of all clusters, a restart, an idle period, and the sync of a commit.
//
//	bench-fleet [FLAGS]           measure, and print tables
//	bench-fleet sim FOLDER        serve simulated API servers alone
//	bench-fleet record KUBECONFIG FOLDER   record what a real one serves
package main

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/keelson-io/keelson/lab/harness"
)

func main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	harness.Main("bench-fleet", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) })
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "sim":
			return simulate(ctx, args[1:], out)
		case "record":
			return record(ctx, args[1:])
		}
	}
	return measure(ctx, args, out)
}
