package cmd

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/daemon"
	"github.com/keelson-io/keelson/cmd/internal/rendering"
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
	renders := rendering.NewTimed(nil, nil)
	(&controllerRun{renders: rendering.New(cli.NewInvocation(Env{}))}).ownMetrics(r, renders, &daemon.Share{Member: &shard.Member{}})
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
	return daemon.Process{Invocation: cli.NewInvocation(Env{Redactor: hidden, Version: "v1.2.3"})}.StartTraces(ctx, daemon.TraceOptions{Endpoint: endpoint}, "test", log)
}

// UntrustedPreview previews what anybody may propose, in a process whose redactor knows secrets.
func UntrustedPreview(*redact.Redactor) (func(context.Context, *registry.Fleet, *registry.Fleet) (*preview.Preview, *redact.Redactor, error), func()) {
	u := newUntrustedPreviewer(time.Now, rendering.Limits{Time: 10 * time.Minute, Memory: 512 << 20}, 1<<30)
	return u.previews(), u.pool.Close
}

// PreviewApart previews commits of a repository in a process of its own.
func PreviewApart(repo *registry.Repo, cacheDir string, memory int64) (func(ctx context.Context, base, head string) (forge.Verdict, error), error) {
	limits := previewLimits{render: rendering.Limits{Time: 10 * time.Minute, Memory: 512 << 20}, memory: memory}
	return previewApart(repo, cacheDir, nil, limits)
}

// Unmirrored is unmirrored.
func Unmirrored(image string, mirrors map[string]string) string { return unmirrored(image, mirrors) }
