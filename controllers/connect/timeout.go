package connect

import (
	"context"
	"io"
	"net/http"
	"time"
)

// RequestTimeout bounds every request that is not a watch, the reading of its
// answer included.
const RequestTimeout = 30 * time.Second

// limitRequests is a transport that bounds requests. The Timeout of a
// rest.Config would end watches, too.
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
		return l.next.RoundTrip(r) //nolint:wrapcheck // a transport passes on what it gets
	}
	ctx, cancel := context.WithTimeout(r.Context(), l.timeout)
	answer, err := l.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err //nolint:wrapcheck // as above
	}
	answer.Body = &cancelingBody{ReadCloser: answer.Body, cancel: cancel}
	return answer, nil
}

// WrappedRoundTripper lets client-go look inside.
func (l *limited) WrappedRoundTripper() http.RoundTripper { return l.next }

// cancelingBody ends the request's context once the answer was read.
type cancelingBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements [io.Closer].
func (b *cancelingBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close() //nolint:wrapcheck // as above
}
