package renderer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"runtime/debug"

	"github.com/keelson-io/keelson/renderer/sandbox"
)

const (
	// maxStack ends a recursion long before it takes all memory: templates that end nest a few
	// hundred calls, of about 1 KiB each.
	maxStack = 64 << 20
	// gcPercent makes garbage collection rare: a worker keeps little, and its memory is bounded.
	gcPercent = 400
	// maxGreeting bounds the first message, in bytes. It has the names of a few files.
	maxGreeting = 64 << 10
)

// Work is the main function of a worker process: it renders the jobs that come in, one at a time,
// and writes the answers, until in ends. Before the first job it gives up what rendering does not
// need: memory above its share, files, sockets, and processor time above its limit.
func Work(in io.Reader, out io.Writer) error {
	r, w := bufio.NewReader(in), bufio.NewWriter(out)
	var limits sandbox.Limits
	if err := readFrame(r, maxGreeting, &limits); err != nil {
		return fmt.Errorf("a worker is started by keelson itself: %w", err)
	}
	log.SetOutput(io.Discard) // Helm warns through the standard log
	slog.SetDefault(slog.New(slog.DiscardHandler))
	debug.SetMaxStack(maxStack)
	debug.SetGCPercent(gcPercent)
	var hello welcome
	used, err := sandbox.Confine(limits)
	if err != nil {
		hello.Failed = err.Error()
	}
	if err := send(w, hello); err != nil || hello.Failed != "" {
		return err
	}
	for {
		var j job
		switch err := readFrame(r, 1<<32-1, &j); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := send(w, j.answer(used)); err != nil {
			return err
		}
	}
}

func send(w *bufio.Writer, message any) error {
	if err := writeFrame(w, message); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write a message: %w", err)
	}
	return nil
}

func (j *job) answer(used func() sandbox.Usage) answer {
	t, err := j.run()
	a := answer{Target: t, Used: used()}
	if err != nil {
		a.Failed = &failure{At: err.At, Message: err.Message, Violations: err.violations}
	}
	return a
}
