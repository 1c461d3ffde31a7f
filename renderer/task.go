package renderer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/keelson-io/keelson/renderer/sandbox"
)

// TaskOptions bound a process that does one task. All are required but Program, Args, Read and
// Lock.
type TaskOptions struct {
	// Program is started with Args, and calls [ServeTask] with its standard input and its
	// file 3. Default: this program.
	Program string
	Args    []string
	// Memory in bytes that the process, and each process that it starts, may take above its initial
	// use.
	Memory int64
	// CPU is the processor time of its life, and of each process that it starts.
	CPU time.Duration
	// Read are the files and folders that it may read. Lock are the files that it may open for
	// writing, so that it can lock them. Both apply only if the kernel has Landlock.
	Read, Lock []string
	// AnswerBytes bounds the size of the answer.
	AnswerBytes int64
}

// ErrTaskMemory is wrapped by the error of a task that needed more memory than allowed.
var ErrTaskMemory = errors.New("it needs more memory than it may have")

const (
	// taskProcessors is how many processors work for a task at once.
	taskProcessors = 2
	// maxTask bounds the description of a task, in bytes.
	maxTask = 1 << 20
)

// taskAnswer is the result of a task.
type taskAnswer[Answer any] struct {
	Answer Answer
	Failed string // why there is no answer; empty: there is one
}

// RunTask lets a process of its own do a task, and returns its answer. The process gets nothing of
// this one's environment. It may read some files and start processes, but write no file, and has no
// network if the kernel allows that. Its priority is the lowest. It is killed when ctx ends. The
// error says what the process could not do, or how it died. It may wrap [ErrTaskMemory], or the
// cause of ctx.
func RunTask[Answer any](ctx context.Context, o TaskOptions, task any) (out Answer, err error) {
	w, err := startTask(ctx, o)
	if err != nil {
		return out, err
	}
	defer w.end()
	if err := w.greet(ctx, sandbox.Limits{Memory: o.Memory, CPU: o.CPU, Task: true, Read: o.Read, Lock: o.Lock}, startTimeout); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return out, err
	}
	var reply taskAnswer[Answer]
	if err := w.exchange(ctx, task, o.AnswerBytes, &reply); err != nil {
		w.end()
		switch {
		case ctx.Err() != nil:
			return out, context.Cause(ctx)
		case errors.Is(err, errFrameTooLarge):
			return out, err
		case w.outOfMemory():
			return out, fmt.Errorf("%w: %d MiB", ErrTaskMemory, o.Memory>>20)
		}
		return out, fmt.Errorf("the process ended (%s)%s", w.cmd.ProcessState, w.said())
	}
	if reply.Failed != "" {
		return out, errors.New(reply.Failed)
	}
	return reply.Answer, nil
}

// startTask starts the process, with the best isolation that the kernel allows.
func startTask(ctx context.Context, o TaskOptions) (w *worker, err error) {
	for _, attr := range sandbox.Isolations() {
		if w, err = startWorker(ctx, o.Program, o.Args, attr); err == nil {
			return w, nil
		}
	}
	return nil, err
}

// ServeTask is the main function of a process that [RunTask] started. It gives up what a task does
// not need, reads the task, and writes the answer that do returns.
func ServeTask[Task, Answer any](in io.Reader, out io.Writer, do func(Task) (Answer, error)) error {
	r, w := bufio.NewReader(in), bufio.NewWriter(out)
	var limits sandbox.Limits
	if err := readFrame(r, maxGreeting, &limits); err != nil {
		return fmt.Errorf("a task is started by keelson itself: %w", err)
	}
	log.SetOutput(io.Discard)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	debug.SetMaxStack(maxStack)
	runtime.GOMAXPROCS(min(taskProcessors, runtime.GOMAXPROCS(0)))
	var hello welcome
	if _, err := sandbox.Confine(limits); err != nil {
		hello.Failed = err.Error()
	}
	if err := send(w, hello); err != nil || hello.Failed != "" {
		return err
	}
	var task Task
	if err := readFrame(r, maxTask, &task); err != nil {
		return err
	}
	answer, err := do(task)
	reply := taskAnswer[Answer]{Answer: answer}
	if err != nil {
		reply.Failed = err.Error()
	}
	return send(w, reply)
}

// outOfMemory reports whether an ended worker died for lack of memory.
func (w *worker) outOfMemory() bool {
	words := w.lastWords.String()
	for _, sign := range []string{
		"out of memory", "cannot allocate memory",
		"pthread_create failed", // no memory for its stack
	} {
		if strings.Contains(words, sign) {
			return true
		}
	}
	return false
}
