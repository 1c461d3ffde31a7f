// Command bench prints the results of the engine benchmarks as tables. `make bench` runs the
// command on the benchmarks' output.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: bench FILE (the output of go test -bench, as make bench writes it)")
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("read the benchmarks' output: %w", err)
	}
	results, err := read(bytes.NewReader(data), args[0])
	if err != nil {
		return err
	}
	return results.print(out)
}
