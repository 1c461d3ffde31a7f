package connect_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/connect"
)

const mebibyte = 1 << 20

// endless repeats a text and counts what was read of it.
type endless struct {
	text string
	read int64
}

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.text[(e.read+int64(i))%int64(len(e.text))]
	}
	e.read += int64(len(p))
	return len(p), nil
}

// target returns settings for a target cluster, and hub those for the hub.
func target(t *testing.T, server string) *rest.Config {
	t.Helper()
	s := connect.Source{Secrets: secret(kubeconfig(fmt.Sprintf(`{server: %q, insecure-skip-tls-verify: %t}`, server, strings.HasPrefix(server, "https")), `{token: `+token+`}`))}
	c, err := s.Config(t.Context(), bySecret())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ask returns an answer with a body, as clients get it.
func ask(ctx context.Context, t *testing.T, c *rest.Config, path string, body io.Reader) io.ReadCloser {
	t.Helper()
	rt := c.WrapTransport(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
	}))
	return send(ctx, t, rt, path)
}

func send(ctx context.Context, t *testing.T, rt http.RoundTripper, path string) io.ReadCloser {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://prod.example"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := rt.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Body
}

// TestAnswersAreBounded: of an answer that never ends no more is read than its kind may
// hold, and the error says which request it was, and what the limit is.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	const object = `{"kind":"Pod"},`
	cases := map[string]struct {
		why, server, path, begin, text string
		atMost                         int64 // bytes
		wantErr                        string
	}{
		"Version":        {why: "It is asked for before all else.", path: "/version", text: " ", atMost: 4 * mebibyte, wantErr: "GET /version with too much: more than 4 MiB"},
		"Groups":         {why: "Discovery.", path: "/apis", text: "x", atMost: 4 * mebibyte, wantErr: "4 MiB"},
		"Resources":      {why: "Discovery without aggregation.", path: "/apis/apps/v1", text: "x", atMost: 4 * mebibyte, wantErr: "4 MiB"},
		"CoreResources":  {why: "The core group has no name.", path: "/api/v1", text: "x", atMost: 4 * mebibyte, wantErr: "4 MiB"},
		"OpenAPI":        {why: "Documents are large.", path: "/openapi/v3/apis/apps/v1", text: "{},", atMost: mebibyte, wantErr: "250000 JSON values"},
		"Object":         {why: "An API server stores objects of at most 1.5 MiB or so.", path: "/apis/apps/v1/namespaces/a/deployments/b", text: "x", atMost: 8 * mebibyte, wantErr: "8 MiB"},
		"Namespace":      {why: "It looks like a list in a namespace.", path: "/api/v1/namespaces/a", text: "x", atMost: 8 * mebibyte, wantErr: "8 MiB"},
		"List":           {why: "In a namespace.", path: "/api/v1/namespaces/a/pods", text: "{},", atMost: 4 * mebibyte, wantErr: "2000000 JSON values"},
		"ListOfAll":      {why: "In all namespaces.", path: "/api/v1/pods", begin: `{"items":[`, text: object, atMost: 16 * mebibyte, wantErr: "2000000 JSON values"},
		"BehindAPrefix":  {why: "A proxy of many clusters has paths of its own.", server: "https://prod.example/k8s/clusters/c-1", path: "/k8s/clusters/c-1/version", text: " ", atMost: 4 * mebibyte, wantErr: "4 MiB"},
		"Values":         {why: "Three bytes become a map: bytes are not all that memory is.", path: "/api/v1/namespaces/a", begin: `{"a":[`, text: "{},", atMost: mebibyte, wantErr: "more than 200000 JSON values"},
		"Lists":          {why: "As above.", path: "/api/v1/namespaces/a", text: "[", atMost: mebibyte, wantErr: "200000 JSON values"},
		"Numbers":        {why: "As above.", path: "/version", begin: "[", text: "1,", atMost: mebibyte, wantErr: "200000 JSON values"},
		"TextIsNoValue":  {why: "A ConfigMap may hold JSON: that is one text.", path: "/api/v1/namespaces/a/configmaps/b", begin: `{"data":{"a":"`, text: `{},[\"`, atMost: 8 * mebibyte, wantErr: "8 MiB"},
		"Event":          {why: "An event of a watch is one object.", path: "/api/v1/pods?watch=true", begin: `{"type":"`, text: "x", atMost: 8 * mebibyte, wantErr: "one item or event of more than 8 MiB"},
		"BetweenEvents":  {why: "Decoders keep white space.", path: "/api/v1/pods?watch=true", begin: `{"type":"ADDED"}`, text: "\n", atMost: 8 * mebibyte, wantErr: "8 MiB"},
		"ValuesOfEvents": {why: "As of objects.", path: "/api/v1/pods?watch=true", begin: `{"object":[`, text: "{},", atMost: mebibyte, wantErr: "200000 JSON values"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.server == "" {
				c.server = "https://prod.example"
			}
			e := &endless{text: c.text}
			body := ask(t.Context(), t, target(t, c.server), c.path, io.MultiReader(strings.NewReader(c.begin), e))
			_, err := io.Copy(io.Discard, body)
			if err == nil || !strings.Contains(err.Error(), c.wantErr) || !strings.Contains(err.Error(), "prod.example") {
				t.Errorf("%s\ngot error %v, want one that says %q", c.why, err, c.wantErr)
			}
			const buffer = 64 << 10
			if e.read > c.atMost+buffer {
				t.Errorf("%s\n%d bytes were read, and %d are allowed", c.why, e.read, c.atMost)
			}
			if again, err := body.Read(make([]byte, 1)); again != 0 || err == nil {
				t.Errorf("after the error it was read on: %d, %v", again, err)
			}
			if err := body.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStreamsGoOn: what is bounded of a watch, and of a list that is decoded item by item,
// is what one event or item may hold.
func TestStreamsGoOn(t *testing.T) {
	t.Parallel()
	const many = 9 * mebibyte
	for name, c := range map[string]struct{ path, begin, text string }{
		"Watch": {path: "/api/v1/pods?watch=true", text: `{"object":{"a":["}",{}]}}` + "\n"},
		"List":  {path: "/api/v1/pods", begin: `{"metadata":{"a":{}},"items":[`, text: `{"object":{"a":["}",{}]}},`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if name == "List" {
				ctx = connect.Streamed(ctx)
			}
			body := ask(ctx, t, target(t, "https://prod.example"), c.path, io.MultiReader(strings.NewReader(c.begin), &endless{text: c.text}))
			if n, err := io.CopyN(io.Discard, body, many); err != nil {
				t.Errorf("after %d bytes: %v", n, err)
			}
			if err := body.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHubIsNotBounded: the workload controllers list all pods of their own cluster.
func TestHubIsNotBounded(t *testing.T) {
	t.Parallel()
	c, err := connect.Source{Kubeconfig: kubeconfigFile(t, `{server: "https://prod.example"}`, `{token: `+token+`}`)}.Config(t.Context(), v1alpha1.Connection{Hub: true})
	if err != nil {
		t.Fatal(err)
	}
	body := ask(t.Context(), t, c, "/version", &endless{text: "{},"})
	if n, err := io.CopyN(io.Discard, body, 5*mebibyte); err != nil {
		t.Errorf("after %d bytes: %v", n, err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
}

// TestCompressedAnswers: what is counted is what clients get, and not what was sent.
func TestCompressedAnswers(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := io.CopyN(z, &endless{text: " "}, 8*mebibyte); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			t.Error("answers are not compressed")
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(bomb.Bytes())
	}))
	t.Cleanup(api.Close)
	rt, err := rest.TransportFor(target(t, api.URL))
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api.URL+"/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := rt.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, answer.Body)
	if err == nil || n > 4*mebibyte {
		t.Errorf("of a bomb of %d bytes %d were read; error %v", bomb.Len(), n, err)
	}
	if err := answer.Body.Close(); err != nil {
		t.Error(err)
	}
}

// TestHeadersAreBounded, also those that come before an answer or over HTTP/2.
func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP2=%t", http2), func(t *testing.T) {
			t.Parallel()
			api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if (r.ProtoMajor == 2) != http2 {
					t.Errorf("it is asked by %s", r.Proto)
				}
				if r.URL.Path == "/version" {
					for i := range 1000 {
						w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 1000))
					}
				}
			}))
			api.EnableHTTP2 = http2
			api.StartTLS()
			t.Cleanup(api.Close)
			c := target(t, api.URL)
			if !http2 {
				c.NextProtos = []string{"http/1.1"}
			}
			client, err := rest.HTTPClientFor(c)
			if err != nil {
				t.Fatal(err)
			}
			for path, fits := range map[string]bool{"/healthz": true, "/version": false} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := client.Do(r)
				if err == nil {
					_ = answer.Body.Close()
				}
				if fits != (err == nil) {
					t.Errorf("%s: the error is %v", path, err)
				}
			}
		})
	}
}

// TestOnlyJSON: values of other encodings can't be counted. A client decodes what an
// answer says that it is, whatever it asked for.
func TestOnlyJSON(t *testing.T) {
	t.Parallel()
	const json, proto = "application/json", "application/vnd.kubernetes.protobuf"
	for name, c := range map[string]struct {
		why, accept, wantAccept string
		is, want                string // of the answer
		wantErr                 string
	}{
		"JSON":        {why: "The ordinary case.", accept: json, wantAccept: json, is: json, want: json},
		"Either":      {why: "Clients of Kubernetes prefer protobuf.", accept: proto + "," + json, wantAccept: json, is: json, want: json},
		"Parameters":  {why: "They say what is asked for.", accept: proto + ";as=PartialObjectMetadata;v=v1, " + json + ";as=PartialObjectMetadata;v=v1," + json, wantAccept: json + ";as=PartialObjectMetadata;v=v1," + json, is: json, want: json},
		"Protobuf":    {why: "Such a client decodes JSON, too.", accept: proto, wantAccept: json, is: json, want: json},
		"Watch":       {why: "A parameter.", accept: json, wantAccept: json, is: json + ";stream=watch", want: json + ";stream=watch"},
		"NotAsked":    {why: "It was not asked for.", accept: json, wantAccept: json, is: proto, wantErr: `(status 200) in "` + proto + `", and JSON was asked for`},
		"CBOR":        {why: "As above.", accept: json, wantAccept: json, is: "application/cbor", wantErr: "JSON was asked for"},
		"YAML":        {why: "As above; it has references.", accept: json, wantAccept: json, is: "application/yaml", wantErr: "JSON was asked for"},
		"Nonsense":    {why: "As above.", accept: json, wantAccept: json, is: ";", wantErr: "JSON was asked for"},
		"Text":        {why: "Proxies say what is wrong.", accept: json, wantAccept: json, is: "text/plain; charset=utf-8", want: "text/plain; charset=utf-8"},
		"NotSaid":     {why: "A client would take what it sends itself, which may be protobuf.", accept: json, wantAccept: json, want: json},
		"NothingSaid": {why: "A client may accept whatever comes.", wantAccept: json, is: json, want: json},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			accept := ""
			rt := target(t, "https://prod.example").WrapTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
				accept = r.Header.Get("Accept")
				header := http.Header{}
				if c.is != "" {
					header.Set("Content-Type", c.is)
				}
				return &http.Response{StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(strings.NewReader(""))}, nil
			}))
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://prod.example/api/v1/pods", nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.accept != "" {
				r.Header.Set("Accept", c.accept)
			}
			answer, err := rt.RoundTrip(r)
			if accept != c.wantAccept || r.Header.Get("Accept") != c.accept {
				t.Errorf("%s\nit asked for %q, want %q; the caller's request has %q", c.why, accept, c.wantAccept, r.Header.Get("Accept"))
			}
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("%s\ngot error %v", c.why, err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s\n%v", c.why, err)
			}
			if is := answer.Header.Get("Content-Type"); is != c.want {
				t.Errorf("%s\nit is %q, want %q", c.why, is, c.want)
			}
			if err := answer.Body.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLargeAnswers: of one cluster they are read one after the other, so that many of them
// are not in memory at once. Small ones do not wait, and no cluster waits for another.
func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := target(t, "https://prod.example")
		var sources []*endless
		rt := c.WrapTransport(roundTripper(func(*http.Request) (*http.Response, error) {
			e := &endless{text: "x"}
			sources = append(sources, e)
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(e)}, nil
		}))
		const path, large = "/api/v1/namespaces/a", 3 * mebibyte
		read := func(body io.ReadCloser, n int64) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := io.CopyN(io.Discard, body, n)
				done <- err
			}()
			synctest.Wait()
			return done
		}
		none := func(done <-chan error, why string) {
			t.Helper()
			select {
			case err := <-done:
				t.Errorf("%s: it has ended: %v", why, err)
			default:
			}
		}
		first := send(t.Context(), t, rt, path)
		if err := <-read(first, large); err != nil {
			t.Fatal(err)
		}
		if err := <-read(send(t.Context(), t, rt, path), mebibyte); err != nil {
			t.Errorf("a small one: %v", err)
		}
		other := c.WrapTransport(roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(&endless{text: "x"})}, nil
		}))
		if err := <-read(send(t.Context(), t, other, path), large); err != nil {
			t.Errorf("another cluster: %v", err)
		}
		second := read(send(t.Context(), t, rt, path), large)
		none(second, "the first is still read")
		if n := sources[2].read; n > 2*mebibyte {
			t.Errorf("of the second %d bytes were read meanwhile", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		third := read(send(ctx, t, rt, path), large)
		cancel()
		if err := <-third; !errors.Is(err, context.Canceled) {
			t.Errorf("a request that no longer waits: %v", err)
		}
		none(second, "the first is still read")
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		if err := <-second; err != nil {
			t.Errorf("the first has ended: %v", err)
		}
	})
}
