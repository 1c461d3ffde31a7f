//go:build !linux

package differ_test

import (
	"testing"
	"time"
)

// threadTime returns the time of day, because the time of a thread is not available.
func threadTime(*testing.T) time.Duration { return time.Duration(time.Now().UnixNano()) }
