package records

import (
	"context"
	"time"
)

const (
	// writeTimeout bounds the last write of a record: a large one takes several requests of a
	// megabyte.
	writeTimeout = time.Minute
	// writeGrace bounds the same write after the apply was cancelled: it must end before Kubernetes
	// kills the process, 30 s after the signal.
	writeGrace = 20 * time.Second
)

// Outlive returns a context for the last write of a record. It ends 20 seconds after ctx has ended,
// and after a minute at the latest.
func Outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	stop := context.AfterFunc(ctx, func() {
		grace := time.NewTimer(writeGrace)
		defer grace.Stop()
		select {
		case <-grace.C:
			cancel()
		case <-out.Done():
		}
	})
	return out, func() { stop(); cancel() }
}
