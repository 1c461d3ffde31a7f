package cmd_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/applier/span"
	"github.com/keelson-io/keelson/cmd"
	"github.com/keelson-io/keelson/renderer/redact"
)

// receiver is an OpenTelemetry collector, as far as OTLP over HTTP goes.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	from     map[string]string // attributes of the process
	spans    []*otlp.Span
	mistakes []string
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var sent collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &sent)
		}
		if user, password, _ := req.BasicAuth(); err == nil && user+password != "keelsonS3cret-of-it" {
			err = errors.New("not logged in")
		}
		if req.Method != http.MethodPost || req.URL.Path != "/v1/traces" || req.Header.Get("Content-Type") != "application/x-protobuf" {
			err = fmt.Errorf("%s %s %s", req.Method, req.URL.Path, req.Header.Get("Content-Type"))
		}
		r.take(&sent, err)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) take(sent *collector.ExportTraceServiceRequest, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.mistakes = append(r.mistakes, err.Error())
	}
	for _, of := range sent.GetResourceSpans() {
		r.from = map[string]string{}
		for _, a := range of.GetResource().GetAttributes() {
			r.from[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, s := range of.GetScopeSpans() {
			r.spans = append(r.spans, s.GetSpans()...)
		}
	}
}

func (r *receiver) url() string {
	return strings.Replace(r.URL, "http://", "http://keelson:S3cret-of-it@", 1)
}

// seen is what the spans of a trace say: the way down to each, its error, and its
// attributes.
type seen struct {
	Way, Error string
	Has        map[string]string
}

// traces are what came until now, each from its root.
func (r *receiver) traces() [][]seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	byID := map[string]*otlp.Span{}
	for _, s := range r.spans {
		byID[string(s.GetSpanId())] = s
	}
	byTrace := map[string][]seen{}
	var order []string
	for _, s := range r.spans {
		one := seen{Error: s.GetStatus().GetMessage(), Has: map[string]string{}}
		for _, a := range s.GetAttributes() {
			one.Has[a.GetKey()] = a.GetValue().GetStringValue()
		}
		var way []string
		for at := s; at != nil; at = byID[string(at.GetParentSpanId())] {
			way = append([]string{at.GetName()}, way...)
		}
		one.Way = strings.Join(way, " > ")
		id := string(s.GetTraceId())
		if byTrace[id] == nil {
			order = append(order, id)
		}
		byTrace[id] = append(byTrace[id], one)
	}
	var out [][]seen
	for _, id := range order {
		slices.SortFunc(byTrace[id], func(a, b seen) int { return strings.Compare(a.Way, b.Way) })
		out = append(out, byTrace[id])
	}
	return out
}

// TestTraces: a collector sees one delivery from the fetch to its status.
func TestTraces(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		f := newFleet(t, "traces")
		f.git("rm", "-q", "-r", "clusters/test")
		f.commit()
		r := newReceiver(t)
		c := startController(t, f, start(t).Config, "--trace-endpoint", r.url())
		var delivered []seen
		ways := map[string]seen{}
		until(t, "a delivery was seen, and its status", func() bool {
			for _, one := range r.traces() {
				if one[0].Has[span.Revision] != "" { // a component that waits for another has none yet
					ways[one[0].Way] = one[0]
				}
				if slices.ContainsFunc(one, func(s seen) bool { return s.Way == "delivery > apply > record" }) {
					delivered = one
				}
			}
			return delivered != nil && ways["status"].Has != nil && ways["fetch"].Has != nil
		})
		c.signal(t, syscall.SIGINT)
		if code := c.ends(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		var got []string
		for _, s := range delivered {
			got = append(got, s.Way)
		}
		t.Logf("a delivery: %q", got)
		for _, way := range []string{"delivery", "delivery > render", "delivery > plan", "delivery > apply", "delivery > apply > wave "} {
			if !slices.ContainsFunc(got, func(s string) bool { return s == way || strings.HasSuffix(way, " ") && strings.HasPrefix(s, way) }) {
				t.Errorf("no span %q", way)
			}
		}
		revision := ways["fetch"].Has[span.Revision]
		for _, s := range []seen{delivered[0], ways["status"]} {
			if s.Has[span.Cluster] != "prod" || s.Has[span.Component] == "" || s.Has[span.Revision] != revision || revision == "" {
				t.Errorf("%s has %v, and git is at %q", s.Way, s.Has, revision)
			}
		}
		if r.from["service.name"] != "keelson" || r.from["service.instance.id"] == "" {
			t.Errorf("they come from %v", r.from)
		}
		if len(r.mistakes) > 0 || strings.Contains(c.log.String(), "S3cret-of-it") {
			t.Errorf("mistakes: %q\n%s", r.mistakes, c.log.String())
		}
	})
}

// TestTracesAreRedacted: what must not be seen is not in a span, whatever it stands
// in, and neither is what no collector could read.
func TestTracesAreRedacted(t *testing.T) {
	t.Parallel()
	r, hidden := newReceiver(t), redact.New()
	hidden.Hide("test", "hunter2-of-the-fleet")
	provider, end, err := cmd.Traces(t.Context(), r.url(), hidden, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, root := span.Root(t.Context(), provider, "delivery")
	root.Set(span.Component, "hunter2-of-the-fleet")
	_, s := span.Start(ctx, "wave hunter2-of-the-fleet")
	s.End(errors.New("refused: hunter2-of-the-fleet \xff"))
	_, long := span.Start(ctx, "z")
	long.End(errors.New(strings.Repeat("x", 1<<20)))
	root.End(nil)
	// What is sent at the end has 5 s, which a busy machine takes.
	until(t, "the trace arrives", func() bool { return len(r.traces()) > 0 })
	end()
	want := []seen{
		{Way: "delivery", Has: map[string]string{span.Component: "***"}},
		{Way: "delivery > wave ***", Error: "refused: *** ", Has: map[string]string{}},
		{Way: "delivery > z", Error: strings.Repeat("x", 1<<10) + "…", Has: map[string]string{}},
	}
	if diff := cmp.Diff([][]seen{want}, r.traces()); diff != "" {
		t.Errorf("traces (-want +got):\n%s", diff)
	}
}

// TestTracesOff: without an endpoint there is no tracer, and no collector is asked.
func TestTracesOff(t *testing.T) {
	t.Parallel()
	provider, end, err := cmd.Traces(t.Context(), "", redact.New(), slog.New(slog.DiscardHandler))
	if err != nil || provider != nil {
		t.Errorf("provider %v, error %v", provider, err)
	}
	end()
}

// TestTracesLost: a collector that is absent, refuses, or never answers delays no work and costs no
// memory. The log reports once that traces are lost.
func TestTracesLost(t *testing.T) {
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client closed the connection
		<-r.Context().Done()
	}))
	defer hanging.Close()
	defer hanging.CloseClientConnections()
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	cases := map[string]struct{ endpoint, says string }{
		"Gone":     {"http://127.0.0.1:1", "connection refused"},
		"Refusing": {refusing.URL, "the collector answers 404"},
		"Hanging":  {hanging.URL, "the last traces may be lost"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var log buffer
			started := time.Now()
			provider, end, err := cmd.Traces(t.Context(), c.endpoint, redact.New(), slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			const spans = 200_000
			before, began := heap(), time.Now()
			for range spans {
				_, s := span.Root(t.Context(), provider, "delivery")
				s.Set(span.Cluster, "prod")
				s.End(nil)
			}
			took, grew := time.Since(began), heap()-before
			if took > patience {
				t.Errorf("%d spans took %s", spans, took)
			}
			if grew > 8<<20 {
				t.Errorf("the heap grew by %d bytes", grew)
			}
			t.Logf("%d spans: %s, %+d bytes", spans, took, grew)
			began = time.Now()
			end()
			if took := time.Since(began); took > patience {
				t.Errorf("the end took %s", took)
			}
			// It is told once a minute, and once more at the end.
			most := 1 + int(time.Since(started)/time.Minute)
			if got := log.String(); strings.Count(got, c.says) < 1 || strings.Count(got, c.says) > most || strings.Count(got, "level=WARN") > most+1 {
				t.Errorf("the log says:\n%s", got)
			}
		})
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // no process has that much
}
