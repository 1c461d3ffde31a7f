package connect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/differ/jsonsize"
)

// A target cluster may be run by an attacker. So the answers of its API server are bounded before
// they are decoded: in bytes, after decompression, and in JSON values. Three bytes of JSON may
// become hundreds of bytes of Go values.
//
// Counting values requires JSON, so a target cluster is asked for JSON only.
const (
	maxHeaderBytes = 256 << 10
	// An answer beyond one of these is large. The clients of a cluster read one large answer at a
	// time.
	largeBytes, largeValues = 1 << 20, 50_000
)

// bound limits an answer. The figures of real clusters are in decision 049.
type bound struct{ bytes, values int64 }

// boundDiscovery is for /version and for the lists of served resources.
func boundDiscovery() bound { return bound{bytes: 4 << 20, values: 200_000} }

// boundOpenAPI is for an OpenAPI document of one group and version, and for their index.
func boundOpenAPI() bound { return bound{bytes: 32 << 20, values: 250_000} }

// boundObject is for one object, one event of a watch, and one item of a streamed list.
func boundObject() bound { return bound{bytes: 8 << 20, values: 200_000} }

// boundList is for a list, or one page of it. A server that does not stream initial events sends
// whole lists, and a Deployment with its managedFields has hundreds of values.
func boundList() bound { return bound{bytes: 64 << 20, values: 2_000_000} }

// boundOf selects the bound of an answer by its path below the server's base path.
func boundOf(method, path string) bound {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	below := 0 // number of path parts before the resource
	switch parts[0] {
	case "api":
		below = 2 // api and version
	case "apis":
		below = 3 // apis, group and version
	case "openapi":
		return boundOpenAPI()
	}
	if len(parts) <= max(1, below) {
		return boundDiscovery()
	}
	parts = parts[below:]
	if method == http.MethodGet && (len(parts) == 1 || len(parts) == 3 && parts[0] == "namespaces") {
		return boundList()
	}
	return boundObject()
}

type streamedKey struct{}

// Streamed marks the request for a list that is decoded item by item. Then each item is bounded,
// and the caller must bound the list.
func Streamed(ctx context.Context) context.Context {
	return context.WithValue(ctx, streamedKey{}, true)
}

// boundAnswers bounds the answers that clients with these settings accept.
func boundAnswers(c *rest.Config) {
	if c.Dial == nil {
		// With its own dialer the transport is not shared with other settings, so its headers can
		// be bounded.
		c.Dial = (&net.Dialer{Timeout: RequestTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	base := ""
	if u, err := url.Parse(c.Host); err == nil && u.Host != "" {
		base = strings.TrimSuffix(u.Path, "/")
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		if t := transportOf(next); t != nil {
			t.MaxResponseHeaderBytes = maxHeaderBytes
		}
		return &bounded{next: next, base: base, large: make(chan struct{}, 1)}
	})
}

// transportOf returns the innermost transport; nil: it is of another type.
func transportOf(rt http.RoundTripper) *http.Transport {
	for {
		switch t := rt.(type) {
		case *http.Transport:
			return t
		case utilnet.RoundTripperWrapper:
			rt = t.WrappedRoundTripper()
		default:
			return nil
		}
	}
}

type bounded struct {
	next  http.RoundTripper
	base  string        // prefix of all paths of the server
	large chan struct{} // holds one element while a large answer is read
}

// RoundTrip implements [http.RoundTripper].
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.next.RoundTrip(askJSON(r))
	if err != nil {
		return nil, err //nolint:wrapcheck // a transport passes on what it gets
	}
	what := fmt.Sprintf("the API server at %s answers %s %s", r.URL.Host, r.Method, r.URL.Path)
	if err := isJSON(answer); err != nil {
		_ = answer.Body.Close() // the answer is refused whatever it holds
		return nil, fmt.Errorf("%s (status %d) %w", what, answer.StatusCode, err)
	}
	most, each := boundOf(r.Method, strings.TrimPrefix(r.URL.Path, b.base)), jsonsize.Never
	switch {
	case r.URL.Query().Get("watch") != "":
		most, each = boundObject(), 0 // one event
	case r.Context().Value(streamedKey{}) != nil:
		most, each = boundObject(), 2 // one item
	}
	answer.Body = &meteredBody{
		ReadCloser: answer.Body, ctx: r.Context(), what: what, large: b.large,
		meter: jsonsize.Meter{MaxBytes: most.bytes, MaxValues: most.values, Each: each},
	}
	return answer, nil
}

// WrappedRoundTripper gives client-go the wrapped transport.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

// askJSON limits the encodings that a request accepts to JSON.
func askJSON(r *http.Request) *http.Request {
	var accepted []string
	for one := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if strings.HasPrefix(strings.TrimSpace(one), runtime.ContentTypeJSON) {
			accepted = append(accepted, strings.TrimSpace(one))
		}
	}
	json := cmp.Or(strings.Join(accepted, ","), runtime.ContentTypeJSON)
	if r.Header.Get("Accept") == json {
		return r
	}
	r = r.Clone(r.Context())
	r.Header.Set("Accept", json)
	return r
}

// isJSON refuses answers that a client might decode from another encoding. Text is accepted,
// because proxies answer with text.
func isJSON(answer *http.Response) error {
	is := answer.Header.Get("Content-Type")
	if is == "" { // a client would assume the encoding that it sends
		answer.Header = answer.Header.Clone()
		if answer.Header == nil {
			answer.Header = http.Header{}
		}
		answer.Header.Set("Content-Type", runtime.ContentTypeJSON)
		return nil
	}
	media, _, err := mime.ParseMediaType(is)
	if err == nil && (media == runtime.ContentTypeJSON || strings.HasPrefix(media, "text/")) {
		return nil
	}
	return fmt.Errorf("in %q, and JSON was asked for", is)
}

// meteredBody ends an answer that exceeds its bound with an error.
type meteredBody struct {
	io.ReadCloser
	meter jsonsize.Meter
	ctx   context.Context //nolint:containedctx // of the request whose answer it is
	what  string          // names the answer in errors
	large chan struct{}
	holds bool // a slot of large
	err   error
}

// Read implements [io.Reader].
func (b *meteredBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.meter.Each == jsonsize.Never && !b.holds && (b.meter.Bytes() > largeBytes || b.meter.Values() > largeValues) {
		select {
		case b.large <- struct{}{}:
			b.holds = true
		case <-b.ctx.Done():
			return 0, fmt.Errorf("%s with much, while another large answer is read: %w", b.what, b.ctx.Err())
		}
	}
	n, err := b.ReadCloser.Read(p)
	if much := b.meter.Count(p[:n]); much != nil {
		of := ""
		if b.meter.Each != jsonsize.Never {
			of = "one item or event of "
		}
		b.err = fmt.Errorf("%s with too much: %s%w, which Keelson does not read", b.what, of, much)
		return 0, b.err
	}
	return n, err //nolint:wrapcheck // a transport passes on what it gets
}

// Close implements [io.Closer].
func (b *meteredBody) Close() error {
	if b.holds {
		b.holds = false
		<-b.large
	}
	return b.ReadCloser.Close() //nolint:wrapcheck // as above
}
