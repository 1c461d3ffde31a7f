package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Confine gives up what a render or a task does not need, for the rest of the process.
//
// RLIMIT_DATA bounds memory: it counts writable memory at the moment when the process requests it,
// so that one allocation of 1 GB fails as surely as a million small ones. RLIMIT_AS would count
// what the Go runtime only reserves, and a watchdog would be too late for the one allocation.
//
// It returns a function that returns how much of the limits is used.
func Confine(limits Limits) (func() Usage, error) {
	status, err := os.Open("/proc/self/status") // a confined process can't open it
	if err != nil {
		return nil, fmt.Errorf("read the process's memory: %w", err)
	}
	start, err := writable(status)
	if err != nil {
		return nil, err
	}
	// With cgo, the next steps apply to one thread first. The filter of system calls, the last
	// step, applies to all threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := dropCapabilities(); err != nil {
		return nil, err
	}
	if err := limit(start, limits); err != nil {
		return nil, err
	}
	if limits.Task {
		if err := readOnly(limits); err != nil {
			return nil, err
		}
	}
	if err := filterCalls(limits.Task); err != nil {
		return nil, err
	}
	return func() Usage {
		now, err := writable(status)
		if err != nil {
			now = start + limits.Memory // an unknown value counts as the limit
		}
		return Usage{Memory: now - start, CPU: cpuUsed()}
	}, nil
}

// limit makes the kernel enforce the limits for the process, whose writable memory is start bytes now.
func limit(start int64, limits Limits) error {
	files := uint64(0)
	if limits.Task {
		files = MaxTaskFiles
		if err := giveWay(); err != nil {
			return err
		}
	}
	memory := uint64(start + limits.Memory)
	debug.SetMemoryLimit(limits.Memory / 4 * 3)
	cpu := uint64(limits.CPU/time.Second) + 1
	for _, l := range []struct {
		resource int
		name     string
		value    uint64
	}{
		{unix.RLIMIT_DATA, "memory", memory},
		{unix.RLIMIT_CPU, "processor time", cpu},
		{unix.RLIMIT_CORE, "core dumps", 0},
		{unix.RLIMIT_FSIZE, "written files", 0},
		// A render may open no more files and no sockets, even without a network namespace.
		{unix.RLIMIT_NOFILE, "open files", files},
	} {
		var has unix.Rlimit
		err := unix.Getrlimit(l.resource, &has)
		if err == nil {
			value := min(l.value, has.Max) // the parent's limit is the maximum
			err = unix.Setrlimit(l.resource, &unix.Rlimit{Cur: value, Max: value})
		}
		if err != nil {
			return fmt.Errorf("limit %s: %w", l.name, err)
		}
	}
	if err := noNewPrivileges(); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	// Values may hold secrets, so no other process of the user may read them.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close the memory to debuggers: %w", err)
	}
	return nil
}

// giveWay sets the lowest priority: other processes get the processors first. When the memory of
// the container ends, the kernel kills this process first. Processes that it starts inherit both.
func giveWay() error {
	const lowest = 19
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil || 20-priority != lowest { // a process that a task starts has it already, and may not set it
		// Priorities are of threads: this sets those of the whole process group, which is this
		// process alone.
		err = unix.Setpriority(unix.PRIO_PGRP, 0, lowest)
	}
	if err != nil {
		return fmt.Errorf("give way to other processes: %w", err)
	}
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) // not every kernel has it
	return nil
}

// noNewPrivileges keeps programs that the process starts from getting more rights than it has. It
// is an attribute of threads. With cgo, Go can't set it in existing threads: then it applies to
// this one and those that it starts.
func noNewPrivileges() error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno == 0 {
		return nil
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) //nolint:wrapcheck // the caller says what
}

// writable returns how much memory the process may write to now, in bytes.
func writable(status io.ReaderAt) (int64, error) {
	text := make([]byte, 4<<10)
	n, err := status.ReadAt(text, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("read the process's memory: %w", err)
	}
	for line := range strings.Lines(string(text[:n])) {
		if rest, ok := strings.CutPrefix(line, "VmData:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err //nolint:wrapcheck // a number of the kernel's
		}
	}
	return 0, errors.New("read the process's memory: /proc/self/status has no VmData")
}

// cpuUsed returns the processor time that this process used; 0: unknown.
func cpuUsed() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Isolations returns the ways to start a worker, the best first. The worker ends with its parent.
// If the kernel allows it, it has a network namespace without a device. Except in builds with cgo
// it also has a PID namespace: it can name no process outside, and all that it has started ends
// with it. In a user namespace no user is mapped: a controller that closes its memory to debuggers
// may write no mapping, and a worker needs none.
func Isolations() []*syscall.SysProcAttr {
	attr := func(flags uintptr) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: flags}
	}
	return []*syscall.SysProcAttr{
		attr(syscall.CLONE_NEWNET | pidNamespace),
		attr(syscall.CLONE_NEWNET | pidNamespace | syscall.CLONE_NEWUSER),
		attr(syscall.CLONE_NEWNET),
		attr(syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER),
		attr(0),
	}
}

// Executable returns this program's path, which is valid even after its file was replaced.
func Executable() (string, error) { return "/proc/self/exe", nil }
