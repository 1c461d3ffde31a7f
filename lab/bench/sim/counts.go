package sim

import (
	"cmp"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// Count is the number of answered requests of one kind.
type Count struct {
	Verb        string `json:"verb"` // Kubernetes verb: get, list, watch, patch, …
	Group       string `json:"group,omitempty"`
	Resource    string `json:"resource,omitempty"` // empty: discovery, schemas, probes
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"` // set only for keelson-system, Keelson's own namespace
	DryRun      bool   `json:"dryRun,omitempty"`
	Code        int    `json:"code"` // 0: a watch, or a client that disconnected
	Requests    int    `json:"requests"`
	Bytes       int64  `json:"bytes"` // size of the answers as sent
	// Last is the time of the last answer; for a watch, of its start.
	Last time.Time `json:"last"`
}

// Write reports whether such a request was a successful write, without dry runs.
func (c *Count) Write() bool {
	return !c.DryRun && c.Code < http.StatusMultipleChoices && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, c.Verb) &&
		c.Resource != "selfsubjectaccessreviews"
}

// Watch reports whether the verb is watch.
func (c *Count) Watch() bool { return c.Verb == "watch" }

// own is Keelson's namespace.
const own = "keelson-system"

type counts struct {
	mu  sync.Mutex
	now func() time.Time
	of  map[Count]*Count // by what is counted: without numbers and times
}

// begin returns a function that counts the request when it ends. A watch is counted at once.
func (c *counts) begin(about *request.RequestInfo, dryRun bool) func(code int, bytes int64) {
	k := Count{Verb: about.Verb, DryRun: dryRun}
	if about.IsResourceRequest {
		k.Group, k.Resource, k.Subresource = about.APIGroup, about.Resource, about.Subresource
		if about.Namespace == own {
			k.Namespace = own
		}
	}
	if about.Verb == "watch" {
		c.add(k, 1, 0)
		return func(_ int, bytes int64) { c.add(k, 0, bytes) }
	}
	return func(code int, bytes int64) {
		k.Code = code
		c.add(k, 1, bytes)
	}
}

func (c *counts) add(k Count, n int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.of[k]
	if one == nil {
		one = new(k)
		c.of[k] = one
	}
	one.Requests += n
	one.Bytes += bytes
	if n > 0 {
		one.Last = c.now()
	}
}

// all returns the counts in a fixed order.
func (c *counts) all() []Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Count, 0, len(c.of))
	for _, one := range c.of {
		out = append(out, *one)
	}
	slices.SortFunc(out, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Subresource, b.Subresource),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.Code, b.Code))
	})
	return out
}

// countedWriter records the status code and the number of bytes sent.
type countedWriter struct {
	http.ResponseWriter
	code  int
	bytes int64
}

func (w *countedWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

func (w *countedWriter) Write(b []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err //nolint:wrapcheck // as the wrapped
}

// Flush implements [http.Flusher].
func (w *countedWriter) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}
