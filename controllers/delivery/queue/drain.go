package queue

import (
	"context"
	"errors"
	"time"

	"github.com/keelson-io/keelson/controllers/lease"
)

// DrainTimeout bounds how long a stopping process may finish the work in progress.
const DrainTimeout = 15 * time.Second

// Drain calls stop after [DrainTimeout], unless the returned function is called before. It calls
// stop at once if the context ended because the lease is lost: another process may already have
// started.
func Drain(ctx context.Context, stop context.CancelFunc) (cancel func() bool) {
	after := DrainTimeout
	if errors.Is(context.Cause(ctx), lease.ErrLost) {
		after = 0
	}
	return time.AfterFunc(after, stop).Stop
}
