package renderer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/renderer/sandbox"
)

// lastMoment ends a context when all was read.
type lastMoment struct {
	io.Reader
	cancel context.CancelFunc
}

func (l lastMoment) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	l.cancel()
	return n, err
}

// A worker is killed when the context of its job ends. One that answers in the same moment
// is not used again: it would die at the next job, of another render.
func TestExchangeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	var answer bytes.Buffer
	if err := writeFrame(&answer, welcome{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &worker{cmd: exec.Command(os.Args[0], "-test.run=^$"), jobs: bufio.NewWriter(io.Discard)} //nolint:noctx // it ends by itself
	w.answers = bufio.NewReader(lastMoment{&answer, cancel})
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.cmd.Wait() }()
	var reply welcome
	if err := w.exchange(ctx, sandbox.Limits{}, maxGreeting, &reply); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v, want that its context ended", err)
	}
}

// A worker that does not answer in time is ended. The error says so, instead of what its pipes say.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	silent, writer, err := os.Pipe() // nothing is written into it until the worker's end
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	w := &worker{cmd: exec.Command("sleep", "60"), jobs: bufio.NewWriter(io.Discard), answers: bufio.NewReader(silent)} //nolint:noctx // greet ends it
	w.cmd.Stdout = writer
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close() // the process has it
	err = w.greet(t.Context(), sandbox.Limits{}, time.Millisecond)
	if !errors.Is(err, errSlowStart) || !strings.Contains(err.Error(), "did not answer within 1ms") {
		t.Errorf("the error is %v, want that the worker did not answer in time", err)
	}
	if err := w.cmd.Wait(); err == nil {
		t.Error("the worker was not ended")
	}
}
