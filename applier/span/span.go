// Package span tells OpenTelemetry what takes how long, if somebody wants to know.
//
// Nobody does until [Root] is given a provider: then, and only then, contexts carry
// a span, and what is called with one begins others below it. Without, nothing is
// kept, called or allocated. Names of spans come from a bounded set; what of a
// cluster's objects could be secret is in none of their attributes but in errors,
// which whoever exports them has to redact.
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

// Span is some work on its way. The zero Span is one that nobody wants to know of.
type Span struct{ span trace.Span }

// Root begins a trace; without a provider, none.
func Root(ctx context.Context, p trace.TracerProvider, name string) (context.Context, Span) {
	if p == nil {
		return ctx, Span{}
	}
	ctx, s := p.Tracer(scope).Start(ctx, name, trace.WithNewRoot())
	return ctx, Span{s}
}

// Start begins a span below the one of the context; without one, none.
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
