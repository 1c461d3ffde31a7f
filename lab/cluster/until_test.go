package cluster_test

import (
	"context"
	"os"
	"testing"
	"time"
)

// contextUntil returns a context that ends as soon as a file has something in it.
func contextUntil(t *testing.T, path string) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			if info, err := os.Stat(path); err == nil && info.Size() > 0 {
				cancel()
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return ctx, cancel
}
