package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ticksPerSecond is USER_HZ: 100 on every architecture that Go supports, see
// proc_pid_stat(5).
const ticksPerSecond = 100

// Usage is the resource use of a process.
type Usage struct {
	RSS  int64         // resident memory, bytes
	Peak int64         // highest resident memory so far, bytes
	CPU  time.Duration // user and system time since its start
	Age  time.Duration // time since its start
}

// Usage returns the current resource use of the process. The error is
// [os.ErrProcessDone] if the process has ended.
func (id ID) Usage() (Usage, error) {
	u, _, err := id.usage()
	return u, err
}

// UsageOfAll returns the resource use of the process and its children. A running child
// counts fully; a child that the process has waited for counts only with its CPU time.
// Shared memory counts in each process. Peak is the sum of all peaks, although the
// processes reached them at different times.
func (id ID) UsageOfAll() (Usage, error) {
	all, reaped, err := id.usage()
	if err != nil {
		return Usage{}, err
	}
	all.CPU += reaped
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", id.PID))
	if err != nil {
		return Usage{}, fmt.Errorf("look for the children of process %d: %w", id.PID, err)
	}
	for _, list := range lists {
		pids, err := os.ReadFile(list)
		if err != nil {
			continue // the thread ended; the lists of other threads contain its children
		}
		for pid := range strings.FieldsSeq(string(pids)) {
			one, err := ofChild(pid)
			if err != nil {
				return Usage{}, err
			}
			all.RSS, all.Peak, all.CPU = all.RSS+one.RSS, all.Peak+one.Peak, all.CPU+one.CPU
		}
	}
	return all, nil
}

// ofChild returns the resource use of a child. It is zero if the child has ended.
func ofChild(pid string) (Usage, error) {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return Usage{}, fmt.Errorf("read a list of children: %w", err)
	}
	id, err := Identify(n)
	var u Usage
	if err == nil {
		var reaped time.Duration
		u, reaped, err = id.usage()
		u.CPU += reaped
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrProcessDone) {
		return Usage{}, nil
	}
	return u, err
}

// usage returns the resource use of the process alone, and the CPU time of the children
// that it has waited for.
func (id ID) usage() (_ Usage, reaped time.Duration, _ error) {
	st, running, err := id.stat()
	if err != nil {
		return Usage{}, 0, err
	}
	if !running {
		return Usage{}, 0, os.ErrProcessDone
	}
	status, err := read(id.PID, procfs.Proc.NewStatus)
	if err != nil {
		return Usage{}, 0, err
	}
	if status.VmHWM == 0 {
		return Usage{}, 0, fmt.Errorf("process %d has no memory: %w", id.PID, os.ErrNotExist)
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return Usage{}, 0, fmt.Errorf("read the uptime: %w", err)
	}
	return Usage{
		RSS:  int64(st.ResidentMemory()),
		Peak: int64(status.VmHWM), //nolint:gosec // bytes of memory
		CPU:  ticks(st.UTime + st.STime),
		Age:  max(0, time.Duration(up.Nano())-ticks(st.Starttime)),
	}, ticks(st.CUTime + st.CSTime), nil
}

func ticks[N int | uint | uint64](n N) time.Duration {
	return time.Duration(n) * (time.Second / ticksPerSecond) //nolint:gosec // less than centuries
}

// read reads a file of a process. The error wraps [os.ErrNotExist] if there is no such process.
func read[T any](pid int, file func(procfs.Proc) (T, error)) (content T, err error) {
	p, err := procfs.NewProc(pid)
	if err == nil {
		content, err = file(p)
	}
	if errors.Is(err, syscall.ESRCH) { // it ended while we read
		err = os.ErrNotExist
	}
	if err != nil {
		return content, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return content, nil
}
