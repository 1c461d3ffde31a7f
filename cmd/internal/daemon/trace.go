package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	// tracesPath is the default path of a collector's URL.
	tracesPath = "/v1/traces"
	// traceTimeout bounds one request to the collector.
	traceTimeout = 10 * time.Second
	// spanText bounds the text of a span's attribute, name or status, in bytes.
	spanText = 1 << 10
)

// TraceOptions set where traces are sent.
type TraceOptions struct{ Endpoint string }

// AddFlags adds the flags of the options.
func (o *TraceOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Endpoint, "trace-endpoint", "", "`URL` of an OpenTelemetry collector that gets traces, by OTLP\nover HTTP; empty: none")
}

// URL returns the URL for posting traces; nil: traces are off.
func (o TraceOptions) URL() (*url.URL, error) {
	if o.Endpoint == "" {
		return nil, nil
	}
	u, err := url.Parse(o.Endpoint)
	switch {
	case err != nil:
		// The error may contain a part of a password.
		return nil, cli.Usagef("--trace-endpoint is no URL; is something in its password that has to be percent-encoded?")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, cli.Usagef("--trace-endpoint takes a URL such as http://collector:4318, and not %s", u.Redacted())
	case u.Path == "" || u.Path == "/":
		u.Path = tracesPath
	}
	return u, nil
}

// StartTraces starts to send traces. The returned function sends the last ones, and stops. The provider
// is nil without --trace-endpoint. Spans wait in a queue of 2,048; further spans are lost, so that
// no collector delays a delivery.
func (p Process) StartTraces(ctx context.Context, o TraceOptions, identity string, log *slog.Logger) (trace.TracerProvider, func(), error) {
	to, err := o.URL()
	if err != nil || to == nil {
		return nil, func() {}, err
	}
	from, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "keelson"),
			attribute.String("service.version", p.Env.Version),
			attribute.String("service.instance.id", identity)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	exporter := &discreet{
		next:     otlptrace.NewUnstarted(&collector{to: to, client: &http.Client{Timeout: traceTimeout}}),
		redactor: p.Env.Redactor, log: log, complain: rate.Sometimes{First: 1, Interval: time.Minute},
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(from))
	log.Info("sending traces", "to", to.Redacted())
	return provider, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn("the last traces may be lost", "error", err)
		}
	}, nil
}

// collector sends spans by OTLP over HTTP. It implements [otlptrace.Client]. OpenTelemetry's own
// client depends on gRPC, which nothing here uses.
type collector struct {
	to     *url.URL
	client *http.Client
}

// Start implements [otlptrace.Client].
func (c *collector) Start(context.Context) error { return nil }

// Stop implements [otlptrace.Client].
func (c *collector) Stop(context.Context) error {
	c.client.CloseIdleConnections()
	return nil
}

// UploadTraces implements [otlptrace.Client]. Rejected spans are lost.
func (c *collector) UploadTraces(ctx context.Context, spans []*otlp.ResourceSpans) error {
	// An ExportTraceServiceRequest has the same encoding, but its package also contains its gRPC
	// service.
	body, err := proto.Marshal(&otlp.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.to.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send spans: %w", err)
	}
	request.Header.Set("Content-Type", "application/x-protobuf")
	answer, err := c.client.Do(request)
	if err != nil {
		return err //nolint:wrapcheck // it names the address
	}
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // so that the connection can be reused
	err = errors.Join(err, answer.Body.Close())
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answers %s", answer.Status)
	}
	return err
}

// discreet redacts spans and passes them on. It logs a failure at most once a minute. It implements
// [sdk.SpanExporter].
type discreet struct {
	next     sdk.SpanExporter
	redactor *redact.Redactor
	log      *slog.Logger
	complain rate.Sometimes
}

// ExportSpans implements [sdk.SpanExporter]. The error is nil: the SDK would print it.
func (d *discreet) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	seen := make([]sdk.ReadOnlySpan, len(spans))
	for i, s := range spans {
		seen[i] = &redacted{ReadOnlySpan: s, text: d.text}
	}
	if err := d.next.ExportSpans(ctx, seen); err != nil {
		d.complain.Do(func() { d.log.Warn("traces can't be sent, and are lost", "spans", len(spans), "error", err) })
	}
	return nil
}

// Shutdown implements [sdk.SpanExporter].
func (d *discreet) Shutdown(ctx context.Context) error {
	return d.next.Shutdown(ctx) //nolint:wrapcheck // a decorator hands errors through
}

func (d *discreet) text(s string) string {
	s = d.redactor.Text(s)
	if len(s) > spanText {
		s = s[:spanText] + "…"
	}
	return strings.ToValidUTF8(s, "") // invalid UTF-8 would break the encoding of the whole batch
}

// redacted is a redacted span. Keelson's spans have no events and no links.
type redacted struct {
	sdk.ReadOnlySpan
	text func(string) string
}

// Name implements [sdk.ReadOnlySpan].
func (r *redacted) Name() string { return r.text(r.ReadOnlySpan.Name()) }

// Status implements [sdk.ReadOnlySpan].
func (r *redacted) Status() sdk.Status {
	s := r.ReadOnlySpan.Status()
	s.Description = r.text(s.Description)
	return s
}

// Attributes implements [sdk.ReadOnlySpan]. Keelson's attributes are texts.
func (r *redacted) Attributes() []attribute.KeyValue {
	was := r.ReadOnlySpan.Attributes()
	out := make([]attribute.KeyValue, len(was))
	for i, a := range was {
		out[i] = attribute.String(string(a.Key), r.text(a.Value.String()))
	}
	return out
}

// Events implements [sdk.ReadOnlySpan].
func (r *redacted) Events() []sdk.Event { return nil }

// Links implements [sdk.ReadOnlySpan].
func (r *redacted) Links() []sdk.Link { return nil }
