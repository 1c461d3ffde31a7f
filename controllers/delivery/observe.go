package delivery

import (
	"context"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/span"
	"github.com/keelson-io/keelson/renderer"
)

// traced runs [agent.attempt] in a trace of its own.
func (a *agent) traced(ctx context.Context, component string) (attempt, error) {
	ctx, s := span.Root(ctx, a.tracer, "delivery")
	s.Set(span.Cluster, a.name)
	s.Set(span.Component, component)
	t, err := a.attempt(ctx, component)
	s.Set(span.Revision, t.revision)
	s.Set(span.Version, t.version)
	s.Set(span.Sync, string(t.sync))
	s.End(err)
	return t, err
}

func rendered(ctx context.Context, r renderer.Renderer, of renderer.Request) (_ *renderer.Target, err error) {
	ctx, s := span.Start(ctx, "render")
	defer func() { s.End(err) }()
	return r.Render(ctx, of)
}

func planned(ctx context.Context, c *applier.Cluster, w applier.Desired) (_ *applier.Prepared, err error) {
	ctx, s := span.Start(ctx, "plan")
	defer func() { s.End(err) }()
	return c.Plan(ctx, w)
}

func applied(ctx context.Context, c *applier.Cluster, p *applier.Prepared, o applier.ApplyOptions) (_ applier.Outcome, err error) {
	ctx, s := span.Start(ctx, "apply")
	defer func() { s.End(err) }()
	return c.Apply(ctx, p, o)
}
