package renderer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

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
