//go:build !linux

package renderer

import (
	"os"
	"runtime/debug"
	"syscall"
)

// confine applies the limits that the Go runtime has. The pool's timeout applies everywhere; limits
// of the kernel exist only on Linux, where controllers run.
func confine(g greeting) (func() usage, error) {
	debug.SetMemoryLimit(g.Memory / 4 * 3)
	return func() usage { return usage{} }, nil
}

func isolations() []*syscall.SysProcAttr { return []*syscall.SysProcAttr{{}} }

func self() (string, error) { return os.Executable() } //nolint:wrapcheck // says enough
