package delivery

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/delivery/hubstatus"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// shared is what all agents of a process share. Each field is safe for concurrent use.
type shared struct {
	log *slog.Logger
	now func() time.Time
	// connect and follow are [Options.Connect] and [Options.Follow].
	connect  func(context.Context, v1alpha1.Connection) (*rest.Config, error)
	follow   func(ctx context.Context, of v1alpha1.Connection, changed func())
	renderer renderer.Renderer
	schemas  *applier.Shared
	redactor *redact.Redactor
	tracer   trace.TracerProvider // nil: no tracing
	earlier  *applier.EarlierFleets
	wants    *applier.DesiredBuilder
	limiters queue.Limiters
	bursts   *queue.BurstDetector
	// board shows which clusters are released; nil: this process works on a single cluster
	// (--cluster).
	board  *rollout.Cache
	writer *hubstatus.Writer
	// queued is called with how long a component was queued.
	queued func(time.Duration)
}

func newShared(o Options, board *rollout.Cache, writer *hubstatus.Writer, queued func(time.Duration)) shared {
	return shared{
		log: o.Log, now: o.Now, connect: o.Connect, follow: o.Follow, renderer: o.Renderer,
		schemas: cmp.Or(o.Schemas, applier.NewShared()), redactor: o.Redactor, tracer: o.Tracer,
		earlier: applier.NewEarlierFleets(o.Repo), wants: &applier.DesiredBuilder{}, limiters: queue.NewLimiters(),
		bursts: queue.NewBurstDetector(queue.NewGCTuner(o.Renderer.Pack)), board: board, writer: writer, queued: queued,
	}
}
