// Command bench measures Keelson. Each subcommand has a target of make, prints figures beside
// their goals, and fails only if an answer is wrong. fleet is a program of its own, since it is
// made from Kubernetes' own packages.
//
//	bench apply|push|peer [FLAGS]    a cluster with many components (make bench-apply, …)
//	bench registry [FLAGS] FOLDER    a large fleet repository (make bench-registry)
//	bench workloads [FLAGS]          a CloneSet and a DaemonSet (make bench-workloads)
//	bench results FILE               tables of the engine benchmarks (make bench)
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/keelson-io/keelson/lab/bench/apply"
	"github.com/keelson-io/keelson/lab/bench/registry"
	"github.com/keelson-io/keelson/lab/bench/workloads"
	"github.com/keelson-io/keelson/lab/harness"
)

func main() {
	harness.Main("bench", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) })
}

const usage = `usage: bench apply|push|peer|registry|workloads [FLAGS]
       bench results FILE (the output of go test -bench, as make bench writes it)`

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	switch args[0] {
	case "apply", "push", "peer":
		return apply.Run(ctx, args[0], args[1:], out)
	case "registry":
		return registry.Run(ctx, args[1:], out)
	case registry.WorkerArg:
		return registry.Work()
	case "workloads":
		return workloads.Run(ctx, args[1:], out)
	case "results":
		return printResults(args[1:], out)
	}
	return errors.New(usage)
}

// printResults prints the results of the engine benchmarks as tables.
func printResults(files []string, out io.Writer) error {
	if len(files) != 1 {
		return errors.New(usage)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		return fmt.Errorf("read the benchmarks' output: %w", err)
	}
	results, err := read(bytes.NewReader(data), files[0])
	if err != nil {
		return err
	}
	return results.print(out)
}
