package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/keelson-io/keelson/controllers/delivery/queue"
)

// TestBackoff: delays double up to the last one, and begin anew after a reset.
func TestBackoff(t *testing.T) {
	t.Parallel()
	b := queue.NewBackoff(time.Second, 5*time.Second)
	for i, want := range []time.Duration{1, 2, 4, 5, 5} {
		if got := b.Next(); got != want*time.Second {
			t.Errorf("delay %d is %s, want %ds", i, got, want)
		}
	}
	b.Reset()
	if got := b.Next(); got != time.Second {
		t.Errorf("after a reset the delay is %s", got)
	}
}

// TestBackoffWait: a wait ends with the context, without the delay.
func TestBackoffWait(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	if !queue.NewBackoff(time.Nanosecond, time.Nanosecond).Wait(ctx) {
		t.Error("it did not wait for the next try")
	}
	cancel()
	if queue.NewBackoff(time.Hour, time.Hour).Wait(ctx) {
		t.Error("it goes on after the context has ended")
	}
}
