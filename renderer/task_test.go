package renderer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// What a task has started ends with it, in whatever group of processes.
func TestTaskLeavesNothing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("spaces of process numbers are Linux's")
	}
	mark := fmt.Sprintf("mark-%d-%d", os.Getpid(), time.Now().UnixNano())
	answer, err := renderer.RunTask[map[string]string](t.Context(), taskOptions(t), "leave "+mark)
	if err != nil {
		t.Fatal(err)
	}
	if answer["apart"] != "true" {
		t.Skip("this kernel lets a task have no process numbers of its own")
	}
	// By itself it would end after five minutes.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for left := running(t, mark); len(left) > 0; left = running(t, mark) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("process %v goes on", left)
		}
	}
}

// running are the processes that have a text among their arguments.
func running(t *testing.T, argument string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, file := range files {
		if line, _ := os.ReadFile(file); strings.Contains(string(line), argument) { // it may have ended
			out = append(out, filepath.Base(filepath.Dir(file)))
		}
	}
	return out
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
	noEscape(t, answer)
	// It ends what it has started, and knows no other process where the kernel lets it have
	// process numbers of its own.
	if answer["apart"] == "true" && answer["signal"] != "no such process" {
		t.Errorf("it can name its parent: %s", answer["signal"])
	}
	delete(answer, "signal")
	delete(answer, "apart")
	want := map[string]string{"environment": "", "read": "ok", "child": "ok", "priority": "19"}
	if diff := cmp.Diff(want, answer); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
