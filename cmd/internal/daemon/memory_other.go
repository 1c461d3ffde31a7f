//go:build !linux

package daemon

// CloseMemory does nothing: controllers run on Linux.
func CloseMemory() error { return nil }
