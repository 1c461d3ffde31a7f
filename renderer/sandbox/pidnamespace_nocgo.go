//go:build linux && !cgo

package sandbox

import "syscall"

// pidNamespace is the flag that gives a worker a PID namespace.
const pidNamespace = syscall.CLONE_NEWPID
