package cmd

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/controllers/notify"
	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/controllers/promotion"
	"github.com/keelson-io/keelson/controllers/receiver"
	"github.com/keelson-io/keelson/controllers/shard"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Described are all that `keelson controller` may serve at /metrics, but the Go
// runtime's and the process's own.
func Described() ([]*prometheus.Desc, error) {
	r := &describing{}
	renders := newTimed(nil, nil)
	(&app{Invocation: cli.NewInvocation(cli.Env{})}).ownMetrics(r, renders, &share{member: &shard.Member{}})
	_, err := delivery.New(delivery.Options{Hub: &rest.Config{}, Renderer: renderer.NewCache(renders, 0), Registry: r, Sender: &notify.Sender{}})
	r.MustRegister(receiver.New(receiver.Options{}))
	if err != nil {
		return nil, err
	}
	_, _ = forge.Open(forge.Options{Kind: forge.GitHub, Repository: "a/b", Registry: r}) // without a token
	_, err = forge.NewLoop(forge.LoopOptions{Registry: r})
	if err != nil {
		return nil, err
	}
	_, err = promotion.NewLoop(promotion.LoopOptions{Registry: r})
	return r.all, err
}

// describing is a [prometheus.Registerer] that asks what there is.
type describing struct{ all []*prometheus.Desc }

func (d *describing) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		c.Describe(ch)
	}()
	for one := range ch {
		d.all = append(d.all, one)
	}
	return nil
}

func (d *describing) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = d.Register(c) // it always works
	}
}

func (d *describing) Unregister(prometheus.Collector) bool { return false }

// Traces are those of a controller with --trace-endpoint.
func Traces(ctx context.Context, endpoint string, hidden *redact.Redactor, log *slog.Logger) (trace.TracerProvider, func(), error) {
	return (&app{Invocation: cli.NewInvocation(cli.Env{Redactor: hidden, Version: "v1.2.3"})}).traces(ctx, traceOptions{endpoint: endpoint}, "test", log)
}

// UntrustedPreview previews what anybody may propose, in a process whose redactor knows secrets.
func UntrustedPreview(hidden *redact.Redactor) (func(context.Context, *registry.Fleet, *registry.Fleet) (*preview.Preview, *redact.Redactor, error), func()) {
	a := &app{Invocation: cli.NewInvocation(cli.Env{Redactor: hidden, Now: time.Now}), rendering: rendering{timeout: 10 * time.Minute, memory: resource.QuantityValue{Quantity: resource.MustParse("512Mi")}}}
	preview := a.stranger(1 << 30)
	return preview, a.rendering.untrusted.Close
}

// PreviewApart previews commits of a repository in a process of its own.
func PreviewApart(repo *registry.Repo, cacheDir string, memory int64) (func(ctx context.Context, base, head string) (forge.Verdict, error), error) {
	a := &app{Invocation: cli.NewInvocation(cli.Env{}), rendering: rendering{timeout: 10 * time.Minute, memory: resource.QuantityValue{Quantity: resource.MustParse("512Mi")}}}
	return a.previewApart(repo, cacheDir, memory)
}

// Unmirrored is unmirrored.
func Unmirrored(image string, mirrors map[string]string) string { return unmirrored(image, mirrors) }
