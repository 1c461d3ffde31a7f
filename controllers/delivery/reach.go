package delivery

import (
	"context"
	"fmt"
	"net/http"
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

// reached notes whether the API server answers. When it comes back, everything is
// looked at. It must not be called within a request: what is forgotten then may
// be locked by whoever made that.
func (a *agent) reached(err error) {
	a.mu.Lock()
	was := a.unreachable
	a.unreachable = err
	link := a.link
	a.mu.Unlock()
	if (was == nil) == (err == nil) {
		return
	}
	if err != nil {
		a.log.Warn("the API server does not answer", "error", err)
	} else {
		a.log.Info("the API server answers again")
		// It may be another one, or its store may have been restored.
		if link != nil {
			link.cluster.Restart()
			link.cache.restart()
		}
	}
	for _, name := range a.components() {
		a.queue.Forget(name)
	}
	a.all()
}
