//go:build linux && !cgo

package renderer

import "syscall"

// processNumbers is the flag that gives a worker a space of process numbers.
const processNumbers = syscall.CLONE_NEWPID
