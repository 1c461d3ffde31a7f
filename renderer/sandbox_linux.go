package renderer

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

// confine gives up what a render does not need, for the rest of the process.
//
// Memory is bounded by RLIMIT_DATA: it counts what the process may write to,
// at the moment when it asks for it, so that one allocation of 1 GB fails as
// surely as a million small ones. RLIMIT_AS would count what the Go runtime
// only reserves, and a watchdog would come too late for the one allocation.
//
// It returns what tells how much of the greeting is used.
func confine(g greeting) (func() usage, error) {
	status, err := os.Open("/proc/self/status") // once confined it can't be opened
	if err != nil {
		return nil, fmt.Errorf("read the process's memory: %w", err)
	}
	start, err := writable(status)
	if err != nil {
		return nil, err
	}
	// With cgo what follows holds for one thread first, and the filter of system calls, the
	// last, for all that there are.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := dropCapabilities(); err != nil {
		return nil, err
	}
	if err := limit(start, g); err != nil {
		return nil, err
	}
	if g.Task {
		if err := readOnly(g); err != nil {
			return nil, err
		}
	}
	if err := filterCalls(g.Task); err != nil {
		return nil, err
	}
	return func() usage {
		now, err := writable(status)
		if err != nil {
			now = start + g.Memory // not knowing is not little
		}
		return usage{Memory: now - start, CPU: cpuUsed()}
	}, nil
}

// limit has the kernel hold the process, which may write to start bytes, to g.
func limit(start int64, g greeting) error {
	files := uint64(0)
	if g.Task {
		files = taskFiles
		if err := giveWay(); err != nil {
			return err
		}
	}
	memory := uint64(start + g.Memory)
	debug.SetMemoryLimit(g.Memory / 4 * 3)
	cpu := uint64(g.CPU/time.Second) + 1
	for _, l := range []struct {
		resource int
		name     string
		value    uint64
	}{
		{unix.RLIMIT_DATA, "memory", memory},
		{unix.RLIMIT_CPU, "processor time", cpu},
		{unix.RLIMIT_CORE, "core dumps", 0},
		{unix.RLIMIT_FSIZE, "written files", 0},
		// For a render no more files and no sockets, be there a network namespace or not.
		{unix.RLIMIT_NOFILE, "open files", files},
	} {
		var has unix.Rlimit
		err := unix.Getrlimit(l.resource, &has)
		if err == nil {
			value := min(l.value, has.Max) // what its parent may, is the most
			err = unix.Setrlimit(l.resource, &unix.Rlimit{Cur: value, Max: value})
		}
		if err != nil {
			return fmt.Errorf("limit %s: %w", l.name, err)
		}
	}
	if err := noNewPrivileges(); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	// Values may hold secrets: no other process of the user may look in.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close the memory to debuggers: %w", err)
	}
	return nil
}

// giveWay lets everything else go first: the processors go to others, and when the memory
// of the container ends, the kernel takes this process. What it starts inherits both.
func giveWay() error {
	const lowest = 19
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil || 20-priority != lowest { // what a task starts has it, and may set none
		// Priorities are of threads: all in the group of processes, which is this one alone.
		err = unix.Setpriority(unix.PRIO_PGRP, 0, lowest)
	}
	if err != nil {
		return fmt.Errorf("give way to other processes: %w", err)
	}
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) // not every kernel has it
	return nil
}

// noNewPrivileges makes programs that the process may start no more than it is
// itself. It is an attribute of threads, and with cgo Go can't reach those that
// it has: then it holds for this one and those that it starts.
func noNewPrivileges() error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno == 0 {
		return nil
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) //nolint:wrapcheck // the caller says what
}

// writable is how much memory the process may write to now, in bytes.
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

// cpuUsed is the processor time that this process used.
func cpuUsed() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// isolations are the ways to start a worker, the best first. It ends with its
// parent, and has a network of its own, without a device, where the kernel lets us. So it
// has a space of process numbers, but in builds with cgo: it can name no process outside, and
// all that it has started ends with it. In a user namespace no user has a number: a controller
// that closes its memory to debuggers may write no mapping of users, and a worker needs none.
func isolations() []*syscall.SysProcAttr {
	attr := func(flags uintptr) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: flags}
	}
	return []*syscall.SysProcAttr{
		attr(syscall.CLONE_NEWNET | processNumbers),
		attr(syscall.CLONE_NEWNET | processNumbers | syscall.CLONE_NEWUSER),
		attr(syscall.CLONE_NEWNET),
		attr(syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER),
		attr(0),
	}
}

// self is this program, also after its file was replaced by a newer one.
func self() (string, error) { return "/proc/self/exe", nil }
