//go:build linux && cgo

package sandbox

// pidNamespace is 0: builds with cgo have no PID namespace for workers. With cgo, libpsx confines
// the threads of a worker. It finds them in /proc/PID/task, with the PID that the worker sees.
// In a PID namespace that PID is 1, and /proc/1 is another process: libpsx would wait for that
// process's threads without end, and skip the worker's own. Releases are built without cgo.
const pidNamespace = 0
