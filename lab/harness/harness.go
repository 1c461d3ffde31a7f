// Package harness is what the programs and tests of the lab have in common: clients of the
// lab's clusters, Keelson's requests in their audit logs, watches of pods, working clones of
// fleet repositories, and processes of the tested program.
package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Main runs a program until it ends or is interrupted. On an error it prints the error after
// the program's name, and ends the process with exit code 1.
func Main(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // main functions do no more than call Main
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1) //nolint:forbidigo // as above
	}
}

// ParseFlags parses the arguments of a program. If they are wrong, or valid returns false
// afterwards, it returns an error with the usage and all flags.
func ParseFlags(flags *flag.FlagSet, args []string, usage string, valid func() bool) error {
	flags.SetOutput(io.Discard) // the returned error includes it
	err := flags.Parse(args)
	if err == nil && valid() {
		return nil
	}
	text := &strings.Builder{}
	fmt.Fprintln(text, "usage:", usage)
	flags.SetOutput(text)
	flags.PrintDefaults()
	return errors.Join(err, errors.New(text.String()))
}

// Say prints a line of progress with the time.
func Say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// Run runs a program in a folder and returns its output. An error includes the output, too.
func Run(ctx context.Context, dir, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	return output(c)
}

func output(c *exec.Cmd) (string, error) {
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
	}
	return string(out), err
}

// Stderr returns what a failed program wrote to its standard error, for an error message.
func Stderr(err error) []byte {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.Stderr
	}
	return nil
}
