// Command mutate makes faults in a package, one at a time, and counts the faults that the package's
// own tests catch:
//
//	mutate [-n 100] [-seed 1] [-threshold 80] [-files REGEXP] [-also PACKAGE] ./differ
//
// With -also, faults are also made in a package whose code the tests of the first package run.
//
// A fault is a negated condition, a moved boundary, a forgotten statement, case or operand, and the
// like. The work tree is never changed: the compiler gets the faulty file by an overlay. The exit
// code is 1 if fewer faults than the threshold are caught, and 2 if the tests can't run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

func main() {
	s := settings{}
	flag.IntVar(&s.draw, "n", 100, "how many faults are made")
	flag.StringVar(&s.files, "files", "", "make faults only in files whose name matches this `regexp`")
	flag.Func("also", "make faults in this `package`, too: the tests of the first one must catch them", func(pkg string) error {
		s.also = append(s.also, pkg)
		return nil
	})
	flag.Uint64Var(&s.seed, "seed", 1, "of the draw; the same seed and source give the same faults")
	flag.IntVar(&s.threshold, "threshold", 80, "`percent` of the faults that must be caught")
	flag.IntVar(&s.workers, "workers", runtime.NumCPU(), "how many faults are judged at a time")
	flag.DurationVar(&s.timeout, "timeout", time.Minute, "of the tests with one fault: longer counts as caught")
	flag.Parse()
	if flag.NArg() != 1 || s.draw < 1 || s.workers < 1 {
		fmt.Fprintln(os.Stderr, "mutate: give one package, and at least one fault and worker")
		os.Exit(2)
	}
	s.pkg = flag.Arg(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := runIn(ctx, s)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "mutate:", err)
	if errors.Is(err, errBelow) {
		os.Exit(1)
	}
	os.Exit(2)
}

// runIn runs with the current folder.
func runIn(ctx context.Context, s settings) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the current folder: %w", err)
	}
	s.from = dir
	return run(ctx, os.Stdout, s)
}
