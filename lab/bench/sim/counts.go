package sim

import (
	"cmp"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// Count is how often one kind of request was answered.
type Count struct {
	Verb        string `json:"verb"` // of Kubernetes: get, list, watch, patch, …
	Group       string `json:"group,omitempty"`
	Resource    string `json:"resource,omitempty"` // empty: discovery, schemas, probes
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"` // keelson-system alone: its own Secrets
	DryRun      bool   `json:"dryRun,omitempty"`
	Code        int    `json:"code"` // 0: a watch that lasts, or a client that went away
	Requests    int    `json:"requests"`
	Bytes       int64  `json:"bytes"` // of answers, packed
	// Last is when the last one was answered; a watch, when it began.
	Last time.Time `json:"last"`
}

// Write says whether such a request changed something.
func (c *Count) Write() bool {
	return !c.DryRun && c.Code < http.StatusMultipleChoices && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, c.Verb) &&
		c.Resource != "selfsubjectaccessreviews"
}

// Watch says whether it is one.
func (c *Count) Watch() bool { return c.Verb == "watch" }

// own is Keelson's namespace.
const own = "keelson-system"

type countKey struct {
	verb, group, resource, subresource, namespace string
	dryRun                                        bool
	code                                          int
}

type counts struct {
	mu  sync.Mutex
	now func() time.Time
	of  map[countKey]*Count
}

// begin counts a request when the returned function is called; a watch at once.
func (c *counts) begin(about *request.RequestInfo, dryRun bool) func(code int, bytes int64) {
	k := countKey{verb: about.Verb, dryRun: dryRun}
	if about.IsResourceRequest {
		k.group, k.resource, k.subresource = about.APIGroup, about.Resource, about.Subresource
		if about.Namespace == own {
			k.namespace = own
		}
	}
	if about.Verb == "watch" {
		c.add(k, 1, 0)
		return func(_ int, bytes int64) { c.add(k, 0, bytes) }
	}
	return func(code int, bytes int64) {
		k.code = code
		c.add(k, 1, bytes)
	}
}

func (c *counts) add(k countKey, n int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.of[k]
	if one == nil {
		one = &Count{
			Verb: k.verb, Group: k.group, Resource: k.resource, Subresource: k.subresource, Namespace: k.namespace, DryRun: k.dryRun, Code: k.code,
		}
		c.of[k] = one
	}
	one.Requests += n
	one.Bytes += bytes
	if n > 0 {
		one.Last = c.now()
	}
}

// all are the counts, in order.
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

// countedWriter counts what is sent.
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
