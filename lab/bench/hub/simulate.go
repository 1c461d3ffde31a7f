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
)

// hubName is the cluster that has the Deliveries.
const hubName = "hub"

// clusterName is what the i-th cluster is called, in git too.
func clusterName(i int) string { return fmt.Sprintf("cluster-%03d", i) }

// simulate serves simulated API servers until it is told to end: in a process of
// its own, so that what it needs is in nobody's figures.
func simulate(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("sim", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it
	clusters := flags.Int("clusters", 10, "")
	seed := flags.Uint64("seed", 1, "")
	if err := flags.Parse(args); err != nil || flags.NArg() != 1 || *clusters < 1 {
		return errors.Join(err, errors.New("usage: bench-fleet sim [--clusters N] [--seed N] FOLDER (kubeconfigs are written there)"))
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

// control serves the control API, and says where once everything is served.
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
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // it ends either way
	fmt.Fprintf(out, "http://%s\n", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("control: %w", err)
	}
	return nil
}
