//go:build linux && cgo

package renderer

// processNumbers is no flag: with cgo, libpsx confines the threads of a worker. It finds them
// in /proc/PID/task by the PID that the worker sees. In a PID namespace of its own that is 1,
// whose folder in the /proc of its parent is that of another process: it would wait for threads
// that it can't reach, and leave out its own. Releases are built without cgo.
const processNumbers = 0
