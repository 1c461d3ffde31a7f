package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticksPerSecond is USER_HZ: 100 on every architecture that Go supports, see
// proc_pid_stat(5).
const ticksPerSecond = 100

// Usage is what a process uses.
type Usage struct {
	RSS int64         // resident memory, bytes
	CPU time.Duration // user and system time since its start
	Age time.Duration // since its start
}

// Usage reads what the process uses now; one that is gone is [os.ErrProcessDone].
func (id ID) Usage() (Usage, error) {
	alive, err := id.Alive()
	if err != nil {
		return Usage{}, err
	}
	if !alive {
		return Usage{}, os.ErrProcessDone
	}
	st, err := readStat(id.PID)
	if err != nil {
		return Usage{}, err
	}
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return Usage{}, fmt.Errorf("read the uptime: %w", err)
	}
	first, _, _ := strings.Cut(string(up), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return Usage{}, fmt.Errorf("read the uptime: %w", err)
	}
	return Usage{
		RSS: st.rssPages * int64(os.Getpagesize()),
		CPU: ticks(st.cpu),
		Age: max(0, time.Duration(seconds*float64(time.Second))-ticks(st.start)),
	}, nil
}

func ticks(n uint64) time.Duration { return time.Duration(n) * (time.Second / ticksPerSecond) }

// stat is what the lab needs of /proc/PID/stat.
type stat struct {
	state    byte
	cpu      uint64 // ticks
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
// parentheses and may itself hold spaces and parentheses.
func parseStat(line string) (stat, error) {
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return stat{}, fmt.Errorf("no program name in %q", line)
	}
	fields := strings.Fields(line[end+1:]) // from the third field on
	const first, state, utime, stime, start, rss = 3, 3, 14, 15, 22, 24
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
		start:    number(start),
		rssPages: int64(number(rss)),
	}
	return st, bad
}
