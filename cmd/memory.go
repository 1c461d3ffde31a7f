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

// LimitMemory sets the memory limit of the garbage collector to three quarters of the memory that
// the process may use. So garbage alone does not end the process. The rest is for render workers,
// and for memory that the collector does not count. GOMEMLIMIT, if set, takes precedence.
//
// The argument root is the root of the file system.
func LimitMemory(root fs.FS, getenv func(string) string) {
	if limit := cgroupMemory(root); limit < math.MaxInt64 && getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 4 * 3)
	}
}

// cgroupMemory returns the lowest memory limit, in bytes, of the process's cgroup and its parents.
// It returns [math.MaxInt64] if there is no limit, or no cgroup v2.
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
