package renderer_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/renderer"
)

// taskOptions are those of a task in a program without the race detector, whose shadow
// memory would be in the way of the limits.
func taskOptions(t *testing.T) renderer.TaskOptions {
	t.Helper()
	return renderer.TaskOptions{Program: plainWorker(t), Args: []string{"task"}, Memory: 128 << 20, CPU: time.Minute, AnswerBytes: 64 << 10}
}

// Whatever a task does to its process, the error says what, and this process goes on.
func TestTaskEnds(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the limits are Linux's")
	}
	for task, want := range map[string]struct {
		is   error
		says string
	}{
		"memory":    {renderer.ErrTaskMemory, "128 MiB"},
		"recursion": {nil, "stack"},
		"error":     {nil, "it can't be done"},
		"long":      {nil, "too large"},
	} {
		t.Run(task, func(t *testing.T) {
			t.Parallel()
			o := taskOptions(t)
			if task == "recursion" {
				// A stack that grows is copied, and what it leaves behind is collected at some
				// time: it reaches its own limit only where memory has room for several.
				o.Memory = 512 << 20
			}
			answer, err := renderer.RunTask[map[string]string](t.Context(), o, task)
			if err == nil || answer != nil || !strings.Contains(err.Error(), want.says) || errors.Is(err, renderer.ErrTaskMemory) != (want.is != nil) {
				t.Errorf("the answer is %v, and the error %v", answer, err)
			}
		})
	}
}

// A task ends what it has started.
func TestTaskKills(t *testing.T) {
	t.Parallel()
	answer, err := renderer.RunTask[map[string]string](t.Context(), taskOptions(t), "kill")
	if err != nil || answer["ended"] != "signal: killed" {
		t.Errorf("the answer is %v, and the error %v", answer, err)
	}
}

// The end of the context ends the process, whatever it does.
func TestTaskIsKilled(t *testing.T) {
	t.Parallel()
	late := errors.New("it takes too long")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
	defer cancel()
	if _, err := renderer.RunTask[map[string]string](ctx, taskOptions(t), "wait"); !errors.Is(err, late) {
		t.Errorf("the error is %v", err)
	}
}
