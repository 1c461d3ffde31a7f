//go:build !race

package applier_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/differ"
)

// An API server that answers without end is asked a bounded number of times, once a minute, and its
// nodes are unknown.
func TestEndlessNodes(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", daemonSet))
	lists, config := &atomic.Int32{}, rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != "/api/v1/nodes" {
				return next.RoundTrip(r)
			}
			lists.Add(1)
			labels := strings.Repeat("x", 200_000)
			body := `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"more"},"items":[` +
				`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","labels":{"a":"` + labels + `"}}}]}`
			return &http.Response{
				StatusCode: http.StatusOK, Status: "200 OK", Request: r, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(body)),
			}, nil
		})
	})
	w.connect(config)
	next := w.want("v2", onNodes("on-no-node"))
	for range 3 {
		if c := change(t, w.plan(next), "DaemonSet"); c.Op != differ.OpUpdate || c.Unread.Nodes {
			t.Errorf("want an update, as where nodes are not known: %s", show(w.plan(next)))
		}
	}
	if n := lists.Load(); n > 200 {
		t.Errorf("nodes were listed %d times", n)
	}
}
