//go:build !race

package renderer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/keelson-io/keelson/renderer"
)

// Code of a stranger in a process that renders, by a mistake in Go or Helm, finds no file, no
// network, no other process and no part of the kernel that a render does not need.
func TestRenderEscapes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	words, err := renderer.LastWords(ctx, plainWorker(t), "escape")
	if err != nil {
		t.Fatal(err, words)
	}
	var answer map[string]string
	if err := json.Unmarshal([]byte(words), &answer); err != nil {
		t.Fatal(err, words)
	}
	noEscape(t, answer)
	if is := answer["signal"]; seccomp.Supported() && !strings.Contains(is, "not permitted") {
		t.Errorf("signal: %s", is)
	}
	delete(answer, "signal") // which a task may send: it ends what it has started
	if len(answer) > 0 {
		t.Errorf("it says more: %v", answer)
	}
}

// A task is fenced in where its parent is no administrator, as in a pod; whether the parent has
// closed its memory, as a controller does, or Landlock alone keeps the task out of it.
func TestTaskOfPod(t *testing.T) {
	t.Parallel()
	program := plainWorker(t)
	if err := os.Chmod(filepath.Dir(program), 0o755); err != nil { //nolint:gosec // another user has to start it
		t.Fatal(err)
	}
	for _, args := range [][]string{{"parent"}, {"parent", "closed"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, program, args...)
			if os.Geteuid() == 0 {
				const nonroot = 65532
				c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nonroot, Gid: nonroot}}
			}
			var out, words bytes.Buffer
			c.Stdout, c.Stderr = &out, &words
			if err := c.Run(); err != nil {
				t.Fatal(err, words.String())
			}
			var answer map[string]string
			if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
				t.Fatal(err, out.String())
			}
			noEscape(t, answer)
			for _, what := range []string{"read", "child"} {
				if answer[what] != "ok" {
					t.Errorf("%s: %s", what, answer[what])
				}
			}
		})
	}
}

// What a task may read is listed, and it writes nothing.
func TestTaskFiles(t *testing.T) {
	t.Parallel()
	if !landlocked() {
		t.Skip("this kernel has no Landlock")
	}
	dir := t.TempDir()
	for _, name := range []string{"folder/file", "other", "lock"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := taskOptions(t)
	o.Read, o.Lock = []string{filepath.Join(dir, "folder"), filepath.Join(dir, "missing")}, []string{filepath.Join(dir, "lock")}
	for task, want := range map[string]string{
		"read folder/file":  "",
		"read other":        "permission denied",
		"write lock":        "file too large", // nothing in it
		"write folder/file": "permission denied",
		"write folder/new":  "permission denied",
	} {
		t.Run(task, func(t *testing.T) {
			t.Parallel()
			what, name, _ := strings.Cut(task, " ")
			_, err := renderer.RunTask[map[string]string](t.Context(), o, what+" "+filepath.Join(dir, name))
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("the error is %v, want %q", err, want)
			}
		})
	}
}

func landlocked() bool {
	const version = 1
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	return errno == 0
}

// noEscape takes what was tried out of an answer.
func noEscape(t *testing.T, answer map[string]string) {
	t.Helper()
	landlocked := landlocked()
	held := map[string]bool{ // where the kernel has what holds it
		"capability": true,
		"file":       landlocked, "environment of the parent": landlocked, "memory of the parent": landlocked, "program": landlocked,
	}
	for _, what := range []string{
		"trace", "read memory", "socket", "namespace", "namespace of a child", "io_uring", "bpf", "keyring", "handle",
		"signals by a file", "shared memory", "limits of the parent", "priority of the parent",
	} {
		held[what] = seccomp.Supported()
	}
	for what, holds := range held {
		is, tried := answer[what]
		delete(answer, what)
		switch {
		case !tried:
			t.Errorf("%s: not tried", what)
		case holds && what != "capability" && !strings.Contains(is, "not permitted") && !strings.Contains(is, "denied"):
			t.Errorf("%s: %s", what, is)
		case is == "ok":
			t.Errorf("%s: it can", what)
		}
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
