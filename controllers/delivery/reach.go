package delivery

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
)

const (
	// probeTimeout bounds a probe: a busy API server still answers within it.
	probeTimeout = 10 * time.Second
	// probeLast bounds the wait between two probes of one that does not answer.
	probeLast = 5 * time.Second
)

// newProbe makes a request that costs an API server next to nothing.
func newProbe(config *rest.Config) (func(context.Context) error, error) {
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
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		answer, err := client.Do(request)
		if err != nil {
			return err //nolint:wrapcheck // it becomes a status: the address says enough
		}
		return answer.Body.Close()
	}, nil
}

// doubt hears that a request was not answered. One lost request is no outage,
// and of an outage nothing else may ask: a watch that was begun before can be
// silent for minutes. So a probe decides.
func (a *agent) doubt() {
	select {
	case a.doubts <- struct{}{}:
	default: // a probe is coming already
	}
}

// watchOver probes whenever there is doubt, and until the API server answers
// again; it ends with the context.
func (a *agent) watchOver(ctx context.Context) {
	a.mu.Lock()
	link := a.link
	a.mu.Unlock()
	if link == nil {
		return // it ended before there was a connection
	}
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, probeLast)
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.doubts:
		}
		err := link.probe(ctx)
		if err == nil && a.lost() {
			err = a.relearn(ctx, link)
		}
		if ctx.Err() != nil {
			return
		}
		a.reached(err)
		if err == nil {
			backoff.Forget("")
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff.When("")):
			a.doubt()
		}
	}
}

// lost reports whether the API server did not answer when it was asked last.
func (a *agent) lost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unreachable != nil
}

// relearn reads what may be another than before the API server was away: it may be
// another one, or its store may have been restored. What is as it was stays at rest.
func (a *agent) relearn(ctx context.Context, link *link) error {
	leave, err := a.turns.learn.take(ctx)
	if err != nil {
		return err
	}
	defer leave()
	link.cluster.Restart() // what it is asked for from now on is fresh
	link.cache.gate.open()
	link.cache.restart(ctx)
	_, err = link.cluster.Recorded(ctx)
	return err
}

// reached notes whether the API server answers. When it comes back, everything is
// looked at.
func (a *agent) reached(err error) {
	a.mu.Lock()
	was := a.unreachable
	a.unreachable = err
	link := a.link
	a.mu.Unlock()
	if err != nil && link != nil {
		link.cache.gate.shut()
	}
	if (was == nil) == (err == nil) {
		return
	}
	if err != nil {
		a.log.Warn("the API server does not answer", "error", err)
		a.seenAll()
	} else {
		a.log.Info("the API server answers again")
	}
	for _, name := range a.components() {
		a.queue.Forget(name)
	}
	a.all()
}

// gate holds back those who would ask while nobody answers.
type gate struct {
	mu sync.Mutex
	is chan struct{} // closed: it is open
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
