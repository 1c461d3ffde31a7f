// Package sandbox starts and confines the processes that handle untrusted content: renders of
// charts, and tasks such as previews of pull requests.
//
// The parent starts the process with one of [Isolations]. The process calls [Confine] before it
// reads untrusted content. From then on the kernel enforces the limits, also for the processes
// that this one starts. docs/decisions/059 gives the reason for each measure.
package sandbox

import "time"

// MaxTaskFiles is how many files the process of a task may have open.
const MaxTaskFiles = 512

// Limits are what a process may use.
type Limits struct {
	Memory int64         // bytes that it may take for itself
	CPU    time.Duration // in its whole life
	Task   bool          // it may start processes, and read files, with the lowest priority
	Read   []string      // files and folders that a task may read
	Lock   []string      // files that it may open for writing, without being able to write
}

// Usage is what a process has used of its [Limits] so far.
type Usage struct {
	Memory int64 // bytes
	CPU    time.Duration
}
