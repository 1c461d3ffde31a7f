package cmd_test

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"

	"github.com/keelson-io/keelson/cmd"
)

// TestLimitMemory: the limit is that of the cgroup, or of the tightest one around it.
func TestLimitMemory(t *testing.T) { //nolint:paralleltest // the limit is one of the process
	const unset = math.MaxInt64
	files := func(pairs ...string) fstest.MapFS {
		out := fstest.MapFS{}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
		}
		return out
	}
	for name, c := range map[string]struct {
		why  string
		root fstest.MapFS
		env  string
		want int64
	}{
		"Container": {why: "A container sees its own cgroup as the root.", root: files("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "2147483648\n"), want: 1610612736},
		"Nested":    {why: "All limits around a process hold.", root: files("proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max", "max\n", "sys/fs/cgroup/a/memory.max", "4000\n", "sys/fs/cgroup/memory.max", "8000\n"), want: 3000},
		"Hybrid":    {why: "Controllers of cgroup v1 stand beside v2.", root: files("proc/self/cgroup", "4:memory:/x\n0::/a\n", "sys/fs/cgroup/a/memory.max", "4000"), want: 3000},
		"None":      {why: "A machine of one's own.", root: files("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "max\n"), want: unset},
		"NoCgroup":  {why: "Another system than Linux.", root: files(), want: unset},
		"Escape":    {why: "A path of the kernel may begin with .. in a namespace of cgroups.", root: files("proc/self/cgroup", "0::/../a\n", "sys/fs/cgroup/memory.max", "4000"), want: 3000},
		"Set":       {why: "The variable is set on purpose.", root: files("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "4000"), env: "1GiB", want: unset},
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // as above
			before := debug.SetMemoryLimit(unset)
			t.Cleanup(func() { debug.SetMemoryLimit(before) })
			cmd.LimitMemory(c.root, func(string) string { return c.env })
			if got := debug.SetMemoryLimit(-1); got != c.want {
				t.Errorf("%s\nthe limit is %d, want %d", c.why, got, c.want)
			}
		})
	}
}
