package connect

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// RequestTimeout bounds every request, including the reading of its answer. For a watch it bounds
// only the time until the answer begins.
const RequestTimeout = 30 * time.Second

// limitRequests wraps a transport to bound requests. The Timeout of a rest.Config would end
// watches, too.
func limitRequests(next http.RoundTripper) http.RoundTripper {
	return &limited{next: next, timeout: RequestTimeout}
}

type limited struct {
	next    http.RoundTripper
	timeout time.Duration
}

// RoundTrip implements [http.RoundTripper].
func (l *limited) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") != "" {
		return l.begin(r)
	}
	ctx, cancel := context.WithTimeout(r.Context(), l.timeout)
	answer, err := l.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err //nolint:wrapcheck // a transport passes on what it gets
	}
	answer.Body = &cancelingBody{ReadCloser: answer.Body, cancel: cancel}
	return stayAt(r, answer)
}

// stayAt refuses the redirect of an API server to another server: a cluster must not choose the
// targets of the hub's requests. Clients follow a redirect on the same server, such as that of an
// OpenAPI document whose hash has changed.
func stayAt(r *http.Request, answer *http.Response) (*http.Response, error) {
	location := answer.Header.Get("Location")
	if answer.StatusCode < http.StatusMultipleChoices || answer.StatusCode >= http.StatusBadRequest || location == "" {
		return answer, nil
	}
	to, err := r.URL.Parse(location)
	if err == nil && to.Scheme == r.URL.Scheme && to.Host == r.URL.Host {
		return answer, nil
	}
	_ = answer.Body.Close() // the answer is refused whatever it holds
	return nil, fmt.Errorf("the API server at %s answers %s %s with a redirect to another server, which is not followed", r.URL.Host, r.Method, r.URL.Path)
}

// begin sends a watch. An API server answers before the first event. Without the timeout a hanging
// server would block the caller for ever.
func (l *limited) begin(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	late := time.AfterFunc(l.timeout, cancel)
	answer, err := l.next.RoundTrip(r.WithContext(ctx))
	inTime := late.Stop()
	switch {
	case err == nil:
		answer.Body = &cancelingBody{ReadCloser: answer.Body, cancel: cancel}
		return stayAt(r, answer)
	case !inTime && r.Context().Err() == nil:
		err = fmt.Errorf("the watch did not begin within %s: %w", l.timeout, context.DeadlineExceeded)
	}
	cancel()
	return nil, err
}

// WrappedRoundTripper gives client-go the wrapped transport.
func (l *limited) WrappedRoundTripper() http.RoundTripper { return l.next }

// cancelingBody ends the request's context when the answer is closed.
type cancelingBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements [io.Closer].
func (b *cancelingBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close() //nolint:wrapcheck // a transport passes on what it gets
}
