package cmd

import (
	"bytes"
	"io/fs"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// LimitMemory has the garbage collector work harder from three quarters of the memory on
// that the process may have, so that garbage alone does not end it. The rest is for render
// workers, and for what the collector does not see. GOMEMLIMIT, if set, goes before.
//
// The root is that of the file system.
func LimitMemory(root fs.FS, getenv func(string) string) {
	if limit := cgroupMemory(root); limit < math.MaxInt64 && getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 4 * 3)
	}
}

// cgroupMemory is the least of the limits of the process's cgroup and of those that it is in;
// [math.MaxInt64]: there is none, or no cgroup v2.
func cgroupMemory(root fs.FS) int64 {
	least := int64(math.MaxInt64)
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return least
	}
	for line := range bytes.Lines(text) {
		at, v2 := strings.CutPrefix(strings.TrimSpace(string(line)), "0::/")
		if !v2 {
			continue
		}
		for at = path.Clean("/" + at); ; at = path.Dir(at) {
			text, err := fs.ReadFile(root, path.Join("sys/fs/cgroup", at, "memory.max"))
			if n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil {
				least = min(least, n)
			}
			if at == "/" {
				break
			}
		}
	}
	return least
}
