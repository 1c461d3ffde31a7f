//go:build !linux

package differ_test

import (
	"testing"
	"time"
)

// threadTime is the time, where that of a thread is not at hand.
func threadTime(*testing.T) time.Duration { return time.Duration(time.Now().UnixNano()) }
