//go:build linux && !cgo

package renderer

import "syscall"

// processNumbers is the flag that gives a worker a PID namespace.
const processNumbers = syscall.CLONE_NEWPID
