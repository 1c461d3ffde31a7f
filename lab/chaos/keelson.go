package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

// keelson is a process of the real binary, with its render workers.
type keelson struct{ *process.Child }

// launch holds the settings that a process is started with.
type launch struct {
	name       string // part of the log's file name
	repo       string
	kubeconfig string
	env        []string // in addition to HOME and PATH
}

// start starts keelson ARGS.
func (w *world) start(l launch, args ...string) *keelson {
	w.mu.Lock()
	w.started++
	log := w.path("logs", fmt.Sprintf("%05d-%s.log", w.started, l.name))
	w.mu.Unlock()
	args = append(slices.Clone(args), "--kubeconfig", l.kubeconfig)
	if l.repo != "" {
		args = append(args, "--repo", l.repo)
	}
	k := &keelson{must.Get(process.StartChild(process.Spec{
		Path: w.keelson, Args: args, Dir: w.folder, Log: log,
		Env: append([]string{"HOME=" + w.folder, "PATH=/usr/bin:/bin"}, l.env...), Orphaned: syscall.SIGKILL,
	}, nil))}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes = append(slices.DeleteFunc(w.processes, func(k *keelson) bool { return k.Ended() }), k)
	return k
}

// killNow sends SIGKILL, but doesn't wait for the end of the process.
func (k *keelson) killNow() error { return k.Signal(syscall.SIGKILL) }

// freeze stops the process with SIGSTOP; thaw resumes it.
func (k *keelson) freeze() error { return k.Signal(syscall.SIGSTOP) }

func (k *keelson) thaw() error { return k.Signal(syscall.SIGCONT) }

// stop ends the process with SIGTERM, as a deployment does.
func (k *keelson) stop(ctx context.Context) {
	must.Do(k.Signal(syscall.SIGTERM))
	must.Get(k.wait(ctx))
}

// wait waits until the process has ended, and returns its exit code. After hungAfter, or
// when the context ends, wait kills the process and returns an error.
func (k *keelson) wait(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, hungAfter, fmt.Errorf("keelson did not end within %s", hungAfter))
	defer cancel()
	return k.ExitCode(ctx)
}

// run runs keelson ARGS to the end, and returns the exit code and the output.
func (w *world) run(ctx context.Context, l launch, args ...string) (int, string) {
	k := w.start(l, args...)
	code := must.Get(k.wait(ctx))
	return code, string(must.Get(os.ReadFile(k.Log)))
}

// succeed runs keelson ARGS to the end, and returns the output. It fails unless the exit code
// is 0.
func (w *world) succeed(ctx context.Context, l launch, args ...string) string {
	code, out := w.run(ctx, l, args...)
	if code != 0 {
		must.Failf("%s: keelson %s: exit code %d\n%s", l.name, args[0], code, tail(out))
	}
	return out
}

// controllerArgs returns the arguments of a controller with a poll interval of 1 s. The
// controller has no HTTP server if listen is empty.
func controllerArgs(listen string, more ...string) []string {
	return append([]string{"controller", "--context", target, "--interval", "1s", "--listen", listen}, more...)
}
