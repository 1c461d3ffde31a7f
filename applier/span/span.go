// Package span records durations in OpenTelemetry, if a provider is set.
//
// Without a provider for [Root], nothing is kept, called or allocated. With one, contexts carry a
// span, and calls with such a context start spans below it. Names of spans come from a bounded set.
// Attributes hold no content of cluster objects that could be secret. Errors may hold such content:
// the exporter has to redact them.
package span

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// scope is what OpenTelemetry calls the code that spans come from.
const scope = "github.com/keelson-io/keelson"

// The attributes of spans.
const (
	Cluster   = "keelson.cluster"
	Component = "keelson.component"
	Revision  = "keelson.revision"
	Version   = "keelson.version"
	Sync      = "keelson.sync"
)

// Span is work in progress. The zero Span records nothing.
type Span struct{ span trace.Span }

// Root begins a trace. Without a provider it returns the zero Span.
func Root(ctx context.Context, p trace.TracerProvider, name string) (context.Context, Span) {
	if p == nil {
		return ctx, Span{}
	}
	ctx, s := p.Tracer(scope).Start(ctx, name, trace.WithNewRoot())
	return ctx, Span{s}
}

// Start begins a span below the span of the context. Without one it returns the zero Span.
func Start(ctx context.Context, name string) (context.Context, Span) {
	above := trace.SpanFromContext(ctx)
	if !above.IsRecording() {
		return ctx, Span{}
	}
	ctx, s := above.TracerProvider().Tracer(scope).Start(ctx, name)
	return ctx, Span{s}
}

// Set sets an attribute, unless its value is empty.
func (s Span) Set(key, value string) {
	if s.span != nil && value != "" {
		s.span.SetAttributes(attribute.String(key, value))
	}
}

// End ends the span, with the error that the work ended with, or nil.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}
