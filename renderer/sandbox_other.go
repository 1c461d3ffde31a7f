//go:build !linux

package renderer

import (
	"os"
	"runtime/debug"
	"syscall"
	"time"
)

// confine bounds what the Go runtime can bound. The wall clock of the pool
// holds everywhere; limits of the kernel are for Linux, where controllers run.
func confine(g greeting) error {
	debug.SetMemoryLimit(g.Memory / 4 * 3)
	return nil
}

func cpuUsed() time.Duration { return 0 }

func isolations() []*syscall.SysProcAttr { return []*syscall.SysProcAttr{{}} }

func self() (string, error) { return os.Executable() } //nolint:wrapcheck // says enough
