package delivery

import (
	"context"
	"errors"
	"net/http"

	"github.com/keelson-io/keelson/controllers/lease"
)

// observe counts the requests to a cluster. After a request without an answer it triggers a ping.
func (c *connection) observe(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		switch {
		case err == nil:
			c.metrics.request(verb(r), resp.StatusCode)
		case r.Context().Err() != nil && !errors.Is(r.Context().Err(), context.DeadlineExceeded):
			// This process ended the request, which says nothing about the server.
		case errors.Is(err, lease.ErrLost):
			// The request was not sent, or the gate ended it.
		default:
			c.metrics.request(verb(r), 0)
			c.requestPing()
		}
		return resp, err //nolint:wrapcheck // a RoundTripper must hand errors through
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// verb returns a value from a bounded set, because it becomes a metric label.
func verb(r *http.Request) string {
	if r.Method == http.MethodGet && r.URL.Query().Get("watch") != "" {
		return "watch"
	}
	switch r.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return r.Method
	}
	return "other"
}
