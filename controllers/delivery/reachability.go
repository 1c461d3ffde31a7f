package delivery

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
)

const (
	// pingTimeout bounds a ping: a busy API server still answers within it.
	pingTimeout = 10 * time.Second
	// maxPingDelay bounds the wait between two pings of an unreachable API server.
	maxPingDelay = 5 * time.Second
)

// newPing returns a function that requests /version, which costs an API server next to nothing.
func newPing(config *rest.Config) (func(context.Context) error, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connection: %w", err)
	}
	host, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("connection: %w", err)
	}
	at := host.JoinPath("/version").String()
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, pingTimeout)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			return fmt.Errorf("ping: %w", err)
		}
		answer, err := client.Do(request)
		if err != nil {
			return err //nolint:wrapcheck // it becomes a status: the address says enough
		}
		return answer.Body.Close()
	}, nil
}

// requestPing is called after a request without an answer, and triggers a ping. One lost request is no
// outage. But in an outage no other request may fail: an open watch can be silent for minutes.
func (c *connection) requestPing() {
	select {
	case c.doubts <- struct{}{}:
	default: // a ping is already due
	}
}

// watchOver pings the API server after each doubt, and until the API server answers again. It ends with the
// context.
func (c *connection) watchOver(ctx context.Context) {
	c.mu.Lock()
	link := c.link
	c.mu.Unlock()
	if link == nil {
		return // the context ended before there was a connection
	}
	backoff := queue.NewBackoff(queue.RetryFirst, maxPingDelay)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.doubts:
		}
		err := link.ping(ctx)
		if err == nil && c.lost() {
			err = c.relearn(ctx, link)
		}
		if ctx.Err() != nil {
			return
		}
		c.reached(err)
		if err == nil {
			backoff.Reset()
			continue
		}
		if !backoff.Wait(ctx) {
			return
		}
		c.requestPing()
	}
}

// lost reports whether the last ping got no answer.
func (c *connection) lost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unreachable != nil
}

// relearn reads again what may have changed during an outage: the API server may be another one, or
// its store may have been restored. A component without changes stays at rest.
func (c *connection) relearn(ctx context.Context, link *link) error {
	leave, err := c.limiters.Learn.Acquire(ctx)
	if err != nil {
		return err
	}
	defer leave()
	link.cluster.Restart() // drops the caches, so that the following reads are fresh
	link.gate.open()
	link.cache.Restart(ctx)
	_, err = link.cluster.Recorded(ctx)
	return err
}

// reached stores whether the API server is reachable. When that changes, all components are queued.
func (c *connection) reached(err error) {
	c.mu.Lock()
	was := c.unreachable
	c.unreachable = err
	link := c.link
	c.mu.Unlock()
	if err != nil && link != nil {
		link.gate.shut()
	}
	if (was == nil) == (err == nil) {
		return
	}
	if err != nil {
		c.log.Warn("the API server does not answer", "error", err)
	} else {
		c.log.Info("the API server answers again")
	}
	c.user.reachable(err == nil)
}

// failed distinguishes a refusal (SyncFailed) from a server that does not answer (SyncUnreachable).
func (c *connection) failed() v1alpha1.Sync {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unreachable != nil {
		return v1alpha1.SyncUnreachable
	}
	return v1alpha1.SyncFailed
}

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
