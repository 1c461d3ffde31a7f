package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// keelson is a process of the real binary. The process and its render workers have
// their own process group. The methods are safe for concurrent use.
type keelson struct {
	log  string // path of its output
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended

	mu   sync.Mutex
	gone bool // the process has ended; its pid may be reused
	err  error
}

// launch holds the settings that a process is started with.
type launch struct {
	name       string // part of the log's file name
	repo       string
	kubeconfig string
	env        []string // in addition to HOME and PATH
}

// start starts keelson ARGS.
func (w *world) start(l launch, args ...string) (*keelson, error) {
	w.mu.Lock()
	w.started++
	log := w.path("logs", fmt.Sprintf("%05d-%s.log", w.started, l.name))
	w.mu.Unlock()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of keelson: %w", err)
	}
	defer func() { _ = out.Close() }() // the process has its own
	args = append(slices.Clone(args), "--kubeconfig", l.kubeconfig)
	if l.repo != "" {
		args = append(args, "--repo", l.repo)
	}
	k := &keelson{log: log, done: make(chan struct{})}
	k.cmd = exec.Command(w.keelson, args...) //nolint:noctx,gosec // ended by kill
	k.cmd.Stdout, k.cmd.Stderr = out, out
	k.cmd.Env = append([]string{"HOME=" + w.folder, "PATH=/usr/bin:/bin"}, l.env...)
	k.cmd.Dir = w.folder
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := k.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start keelson: %w", err)
	}
	go func() {
		err := k.cmd.Wait()
		k.mu.Lock()
		k.err, k.gone = err, true
		k.mu.Unlock()
		close(k.done)
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes = append(slices.DeleteFunc(w.processes, (*keelson).ended), k)
	return k, nil
}

func (k *keelson) ended() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gone
}

func (k *keelson) signal(s syscall.Signal) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone {
		return nil
	}
	if err := syscall.Kill(-k.cmd.Process.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal keelson: %w", err)
	}
	return nil
}

// kill sends SIGKILL to the process and its workers, and returns when the process has
// ended.
func (k *keelson) kill() error {
	err := k.signal(syscall.SIGKILL)
	if err == nil {
		<-k.done
	}
	return err
}

// killNow sends SIGKILL, but doesn't wait for the end of the process.
func (k *keelson) killNow() error { return k.signal(syscall.SIGKILL) }

// freeze stops the process with SIGSTOP; thaw resumes it.
func (k *keelson) freeze() error { return k.signal(syscall.SIGSTOP) }

func (k *keelson) thaw() error { return k.signal(syscall.SIGCONT) }

// stop ends the process with SIGTERM, as a deployment does.
func (k *keelson) stop(ctx context.Context) {
	must.Do(k.signal(syscall.SIGTERM))
	_, err := k.wait(ctx)
	must.Do(err)
}

// errKilled is returned for a process that a signal ended.
var errKilled = errors.New("keelson was ended by a signal")

// wait waits until the process has ended, and returns its exit code. After hungAfter, or
// when the context ends, wait kills the process and returns an error. The error is
// errKilled if a signal ended the process.
func (k *keelson) wait(ctx context.Context) (int, error) {
	timer := time.NewTimer(hungAfter)
	defer timer.Stop()
	select {
	case <-k.done:
	case <-timer.C:
		return 0, errors.Join(fmt.Errorf("keelson did not end within %s (its log: %s)", hungAfter, k.log), k.kill())
	case <-ctx.Done():
		return 0, errors.Join(ctx.Err(), k.kill())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	exit, ok := errors.AsType[*exec.ExitError](k.err)
	switch {
	case k.err == nil:
		return 0, nil
	case ok && exit.Exited():
		return exit.ExitCode(), nil
	case ok:
		return 0, errKilled
	}
	return 0, fmt.Errorf("wait for keelson: %w", k.err)
}

// run runs keelson ARGS to the end, and returns the exit code and the output.
func (w *world) run(ctx context.Context, l launch, args ...string) (int, string) {
	k := must.Get(w.start(l, args...))
	code := must.Get(k.wait(ctx))
	return code, string(must.Get(os.ReadFile(k.log)))
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
