package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// again is the delay between the end of a program and its restart.
	again = time.Second
	// grace is how long programs may take to end when the node ends.
	grace = 2 * time.Second
	// reap is the interval at which ended processes are collected. The shims of containers
	// are orphans, so their parent is the first process of the node.
	reap = 100 * time.Millisecond
)

// supervise runs the programs until the context ends.
func (c *Config) supervise(ctx context.Context) error {
	running := map[int]Program{}
	due := map[time.Time]Program{}
	for _, p := range c.Programs {
		if err := c.start(p, running); err != nil {
			return err
		}
	}
	tick := time.NewTicker(reap)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			end(context.WithoutCancel(ctx), running)
			return nil
		case now := <-tick.C:
			for _, p := range collect(running) {
				fmt.Fprintf(os.Stderr, "%s ended; it is started again in %s\n", p.Name, again)
				due[now.Add(again)] = p
			}
			for at, p := range due {
				if now.Before(at) {
					continue
				}
				delete(due, at)
				if err := c.start(p, running); err != nil {
					return err
				}
			}
		}
	}
}

func (c *Config) start(p Program, running map[int]Program) error {
	log, err := os.OpenFile(filepath.Join(c.Logs, c.Name+"-"+p.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer func() { _ = log.Close() }() // the program has its own handle
	child, err := os.StartProcess(p.Path, append([]string{p.Name}, p.Args...), &os.ProcAttr{
		Dir:   "/",
		Env:   []string{"PATH=" + c.Path, "HOME=/root", "GOMAXPROCS=2"},
		Files: []*os.File{nil, log, log},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	running[child.Pid] = p
	return nil
}

// collect reaps every ended process and returns the programs among them.
func collect(running map[int]Program) []Program {
	var ended []Program
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return ended
		}
		if p, ours := running[pid]; ours {
			delete(running, pid)
			ended = append(ended, p)
		}
	}
}

// end sends SIGTERM to the programs and waits up to grace for their end. The kernel kills
// the remaining processes of the node when the first process ends.
func end(ctx context.Context, running map[int]Program) {
	for pid := range running {
		_ = unix.Kill(pid, unix.SIGTERM) // the program may have ended just now
	}
	_ = wait.PollUntilContextTimeout(ctx, reap, grace, false, func(context.Context) (bool, error) {
		collect(running)
		return len(running) == 0, nil
	})
}
