//go:build !linux

package renderer

import (
	"os"
	"runtime/debug"
	"syscall"
)

// confine bounds what the Go runtime can bound. The wall clock of the pool
// holds everywhere; limits of the kernel are for Linux, where controllers run.
func confine(g greeting) (func() usage, error) {
	debug.SetMemoryLimit(g.Memory / 4 * 3)
	return func() usage { return usage{} }, nil
}

func isolations() []*syscall.SysProcAttr { return []*syscall.SysProcAttr{{}} }

func self() (string, error) { return os.Executable() } //nolint:wrapcheck // says enough
