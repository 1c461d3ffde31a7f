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
	if err == nil {
		var u Usage
		var reaped time.Duration
		u, reaped, err = id.usage()
		u.CPU += reaped
		if err == nil {
			return u, nil
		}
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrProcessDone) {
		return Usage{}, nil
	}
	return Usage{}, err
}

// usage returns the resource use of the process alone, and the CPU time of the children
// that it has waited for.
func (id ID) usage() (_ Usage, reaped time.Duration, _ error) {
	alive, err := id.Alive()
	if err != nil {
		return Usage{}, 0, err
	}
	if !alive {
		return Usage{}, 0, os.ErrProcessDone
	}
	st, err := readStat(id.PID)
	if err != nil {
		return Usage{}, 0, err
	}
	peak, err := readPeak(id.PID)
	if err != nil {
		return Usage{}, 0, err
	}
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return Usage{}, 0, fmt.Errorf("read the uptime: %w", err)
	}
	first, _, _ := strings.Cut(string(up), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return Usage{}, 0, fmt.Errorf("read the uptime: %w", err)
	}
	return Usage{
		RSS:  st.rssPages * int64(os.Getpagesize()),
		Peak: peak,
		CPU:  ticks(st.cpu),
		Age:  max(0, time.Duration(seconds*float64(time.Second))-ticks(st.start)),
	}, ticks(st.reaped), nil
}

// readPeak returns VmHWM of proc_pid_status(5) in bytes. The error wraps
// [os.ErrNotExist] if there is no such process, or if the process has no memory.
func readPeak(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, syscall.ESRCH) { // it ended while we read
		err = os.ErrNotExist
	}
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	_, rest, ok := strings.Cut(string(data), "\nVmHWM:")
	if !ok {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, os.ErrNotExist)
	}
	line, _, _ := strings.Cut(rest, "\n")
	kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(line, "kB")), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return kb << 10, nil
}

func ticks(n uint64) time.Duration { return time.Duration(n) * (time.Second / ticksPerSecond) }

// stat holds the fields of /proc/PID/stat that the lab needs.
type stat struct {
	state    byte
	cpu      uint64 // ticks
	reaped   uint64 // ticks of the children that it has waited for
	start    uint64 // ticks since boot
	rssPages int64
}

// readStat returns an error that wraps [os.ErrNotExist] if there is no such process.
func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, syscall.ESRCH) { // it ended while we read
		err = os.ErrNotExist
	}
	if err != nil {
		return stat{}, fmt.Errorf("read the state of process %d: %w", pid, err)
	}
	st, err := parseStat(string(data))
	if err != nil {
		return stat{}, fmt.Errorf("read the state of process %d: %w", pid, err)
	}
	return st, nil
}

// parseStat parses proc_pid_stat(5). The second field is the program's name in
// parentheses. The name may contain spaces and parentheses.
func parseStat(line string) (stat, error) {
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return stat{}, fmt.Errorf("no program name in %q", line)
	}
	fields := strings.Fields(line[end+1:]) // from the third field on
	const first, state, utime, stime, cutime, cstime, start, rss = 3, 3, 14, 15, 16, 17, 22, 24
	if len(fields) <= rss-first {
		return stat{}, fmt.Errorf("%d fields are too few in %q", len(fields), line)
	}
	var bad error
	number := func(field int) uint64 {
		n, err := strconv.ParseUint(fields[field-first], 10, 64)
		bad = errors.Join(bad, err)
		return n
	}
	st := stat{
		state:    fields[state-first][0],
		cpu:      number(utime) + number(stime),
		reaped:   number(cutime) + number(cstime),
		start:    number(start),
		rssPages: int64(number(rss)),
	}
	return st, bad
}
