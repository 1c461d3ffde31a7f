package span_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/keelson-io/keelson/applier/span"
)

// work is what a delivery does with spans.
func work(ctx context.Context) (err error) {
	ctx, s := span.Start(ctx, "apply")
	defer func() { s.End(err) }()
	s.Set(span.Component, "web")
	_, below := span.Start(ctx, "record")
	below.End(nil)
	return errRefused
}

var errRefused = errors.New("refused")

// TestSpans: what is begun below a root is below it, with what it ended with.
func TestSpans(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	ctx, root := span.Root(t.Context(), sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), "delivery")
	if err := work(ctx); err == nil {
		t.Fatal("it was to fail")
	}
	root.Set(span.Sync, "")
	root.End(nil)
	type is struct{ Name, Below, Error, Component string }
	var got []is
	names := map[string]string{}
	for _, s := range spans.Started() {
		names[s.SpanContext().SpanID().String()] = s.Name()
	}
	for _, s := range spans.Ended() {
		one := is{Name: s.Name(), Below: names[s.Parent().SpanID().String()], Error: s.Status().Description}
		for _, a := range s.Attributes() {
			if a.Key != span.Component {
				t.Errorf("%s has attribute %s", s.Name(), a.Key)
			}
			one.Component = a.Value.AsString()
		}
		got = append(got, one)
	}
	want := []is{{Name: "record", Below: "apply"}, {Name: "apply", Below: "delivery", Error: "refused", Component: "web"}, {Name: "delivery"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}

// TestOff: spans allocate no memory if tracing is off.
func TestOff(t *testing.T) {
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		ctx, root := span.Root(ctx, nil, "delivery")
		_ = work(ctx)
		root.Set(span.Cluster, "prod")
		root.End(errRefused)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkOff(b *testing.B) {
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		ctx, root := span.Root(ctx, nil, "delivery")
		_ = work(ctx)
		root.End(nil)
	}
}
