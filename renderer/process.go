package renderer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/keelson-io/keelson/renderer/sandbox"
)

// maxLastWords bounds the kept output of a dying worker, in bytes.
const maxLastWords = 4 << 10

// errSlowStart reports a worker that was ended because it took too long to start.
var errSlowStart = errors.New("the process did not answer")

// worker is the parent's view of a process that renders.
type worker struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	out       *os.File
	jobs      *bufio.Writer
	answers   *bufio.Reader
	lastWords *headWriter
	used      sandbox.Usage // up to the last answer
	ended     sync.Once
}

// startWorker starts a program, by default this one, with an empty environment. It has a pipe each
// for jobs, answers and last words.
func startWorker(ctx context.Context, program string, args []string, attr *syscall.SysProcAttr) (_ *worker, err error) {
	if program == "" {
		if program, err = sandbox.Executable(); err != nil {
			return nil, err
		}
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer func() { err = errors.Join(err, theirs.Close()) }()
	// The worker belongs to the pool, and must outlive the first render.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...)
	cmd.Args[0] = "keelson"
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = attr
	words := &headWriter{}
	cmd.Stderr = words
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a worker: %w", err), out.Close())
	}
	return &worker{cmd: cmd, in: in, out: out, jobs: bufio.NewWriter(in), answers: bufio.NewReader(out), lastWords: words}, nil
}

// greet sends a new worker its limits. It ends a worker that does not answer within the timeout.
func (w *worker) greet(ctx context.Context, limits sandbox.Limits, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errSlowStart)
	defer cancel()
	var hello welcome
	if err := w.exchange(ctx, limits, maxGreeting, &hello); err != nil {
		if errors.Is(context.Cause(ctx), errSlowStart) { // the worker was ended, so err is about its pipes
			return fmt.Errorf("start a worker: %w within %s (--render-workers: fewer at once start faster)", errSlowStart, timeout)
		}
		return fmt.Errorf("start a worker: %w", err)
	}
	if hello.Failed != "" {
		return fmt.Errorf("confine a worker: %s", hello.Failed)
	}
	return nil
}

// do lets the worker do a job. After an error the worker must not be used again.
func (w *worker) do(ctx context.Context, j *job) (answer, error) {
	var a answer
	if err := w.exchange(ctx, j, maxFrame(j.MaxOutput), &a); err != nil {
		return answer{}, err
	}
	if (a.Target == nil) == (a.Failed == nil) {
		return answer{}, errors.New("the worker answered neither with a target nor with an error")
	}
	w.used = a.Used
	return a, nil
}

// exchange sends a message and waits for its answer. The end of ctx kills the process, which ends
// the wait. After an error the worker must not be used again.
func (w *worker) exchange(ctx context.Context, message any, limit int64, reply any) error {
	stop := context.AfterFunc(ctx, func() {
		_ = w.cmd.Process.Kill() // it may have died by itself
	})
	err := send(w.jobs, message)
	if err == nil {
		err = readFrame(w.answers, limit, reply)
	}
	if !stop() && err == nil { // it is about to be killed, and would fail at its next job
		err = context.Cause(ctx)
	}
	return err
}

// end ends the process and waits for it.
func (w *worker) end() {
	w.ended.Do(func() {
		// All of this may fail if the process has died already.
		_ = w.cmd.Process.Kill()
		_ = w.in.Close()
		_ = w.cmd.Wait()
		_ = w.out.Close()
	})
}

// died returns the processor time that an ended worker used in its life.
func (w *worker) died() time.Duration {
	state := w.cmd.ProcessState
	if state == nil {
		return 0
	}
	return state.UserTime() + state.SystemTime()
}

// crashed reports whether an ended worker ended by itself: by a fatal error of Go's runtime, or by
// a signal that only a fault of the process raises.
func (w *worker) crashed() bool {
	const fatal = 2 // the exit code of Go's runtime
	state := w.cmd.ProcessState
	if state == nil {
		return false
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return slices.Contains([]syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGABRT}, status.Signal())
	}
	return state.ExitCode() == fatal
}

// said returns the first line that the worker printed, for an error. The Go runtime prints
// addresses and types, and no values.
func (w *worker) said() string {
	line, _, _ := strings.Cut(w.lastWords.String(), "\n")
	if line == "" {
		return ""
	}
	return ": " + line
}

// headWriter keeps the first bytes that are written to it.
type headWriter struct {
	mu   sync.Mutex
	head bytes.Buffer
}

func (h *headWriter) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.head.Write(p[:min(len(p), maxLastWords-h.head.Len())])
	return len(p), nil
}

func (h *headWriter) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.head.String()
}
