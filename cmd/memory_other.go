//go:build !linux

package cmd

// closeMemory does nothing: controllers run on Linux.
func closeMemory() error { return nil }
