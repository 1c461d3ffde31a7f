//go:build !linux

package sandbox

import (
	"os"
	"runtime/debug"
	"syscall"
)

// Confine applies the limits that the Go runtime has. The pool's timeout applies everywhere; limits
// of the kernel exist only on Linux, where controllers run.
func Confine(limits Limits) (func() Usage, error) {
	debug.SetMemoryLimit(limits.Memory / 4 * 3)
	return func() Usage { return Usage{} }, nil
}

// Isolations returns the one way to start a worker: without isolation.
func Isolations() []*syscall.SysProcAttr { return []*syscall.SysProcAttr{{}} }

// Executable returns this program's path.
func Executable() (string, error) { return os.Executable() } //nolint:wrapcheck // says enough
