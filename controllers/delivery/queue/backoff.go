package queue

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Backoff is the delay between the tries of one task. Each delay is twice as long as the one before.
type Backoff struct {
	delays workqueue.TypedRateLimiter[struct{}]
}

// NewBackoff returns a backoff whose delays grow from first to last.
func NewBackoff(first, last time.Duration) Backoff {
	return Backoff{workqueue.NewTypedItemExponentialFailureRateLimiter[struct{}](first, last)}
}

// Next returns the delay before the next try.
func (b Backoff) Next() time.Duration { return b.delays.When(struct{}{}) }

// Reset makes the next delay the first one again.
func (b Backoff) Reset() { b.delays.Forget(struct{}{}) }

// Wait waits for the next try. It returns false if ctx ends first.
func (b Backoff) Wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(b.Next()):
		return true
	}
}
