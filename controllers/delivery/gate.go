package delivery

import (
	"context"
	"sync"
)

// gate blocks requests while the API server does not answer.
type gate struct {
	mu sync.Mutex
	is chan struct{} // closed channel: the gate is open
}

func newGate() *gate {
	g := &gate{is: make(chan struct{})}
	close(g.is)
	return g
}

func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	is := g.is
	g.mu.Unlock()
	select {
	case <-is:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.is:
	default:
		close(g.is)
	}
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.is:
		g.is = make(chan struct{})
	default:
	}
}
