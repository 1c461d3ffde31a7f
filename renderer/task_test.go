package renderer_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
		"write":     {nil, "file too large"},
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

// A task may read files and start processes. It knows nothing of this process's environment,
// and everything else goes first.
func TestTaskMay(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("priorities and networks are Linux's")
	}
	answer, err := renderer.RunTask[map[string]string](t.Context(), taskOptions(t), "look")
	if err != nil {
		t.Fatal(err)
	}
	if answer["dial"] == "ok" {
		t.Error("it reached this machine's network")
	}
	delete(answer, "dial") // refused, or unreachable where it has a network of its own
	want := map[string]string{"environment": "", "read": "ok", "child": "ok", "priority": "19"}
	if diff := cmp.Diff(want, answer); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
