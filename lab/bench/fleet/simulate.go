package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/keelson-io/keelson/lab/bench/sim"
	"github.com/keelson-io/keelson/lab/harness"
)

// hubName is the name of the cluster that stores the Deliveries.
const hubName = "hub"

// clusterName returns the name of the i-th cluster, also in git.
func clusterName(i int) string { return fmt.Sprintf("cluster-%03d", i) }

// simulate serves simulated API servers until ctx ends. It runs in its own process, so that its CPU
// and memory are not part of the figures.
func simulate(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("sim", flag.ContinueOnError)
	clusters := flags.Int("clusters", 10, "")
	seed := flags.Uint64("seed", 1, "")
	err := harness.ParseFlags(flags, args, "bench-fleet sim [--clusters N] [--seed N] FOLDER (kubeconfigs are written there)", func() bool {
		return flags.NArg() == 1 && *clusters > 0
	})
	if err != nil {
		return err
	}
	names := []string{hubName}
	for i := range *clusters {
		names = append(names, clusterName(i))
	}
	fleet, err := sim.Start(ctx, sim.Options{Clusters: names, Seed: *seed, Now: time.Now, Failed: func(err error) { fmt.Fprintln(os.Stderr, "sim:", err) }})
	if err != nil {
		return err
	}
	return errors.Join(control(ctx, fleet, flags.Arg(0), out), fleet.Stop())
}

// control serves the control API, and prints its address once everything is served.
func control(ctx context.Context, fleet *sim.Fleet, folder string, out io.Writer) error {
	if err := fleet.WriteKubeconfigs(folder); err != nil {
		return err
	}
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	server := &http.Server{Handler: fleet.Control(), ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // an error of Close does not matter: the process ends
	fmt.Fprintf(out, "http://%s\n", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("control: %w", err)
	}
	return nil
}
