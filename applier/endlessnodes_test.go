//go:build !race

package applier_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/differ"
)

// An API server that answers without end is asked a bounded number of times, once a minute, and its
// nodes are unknown.
func TestEndlessNodes(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", daemonSet))
	page := `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"more"},"items":[` +
		`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","labels":{"a":"` + strings.Repeat("x", 200_000) + `"}}}]}`
	lists := w.countingNodes(func(r *http.Request) *http.Response {
		return &http.Response{
			StatusCode: http.StatusOK, Status: "200 OK", Request: r, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(page)),
		}
	})
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
