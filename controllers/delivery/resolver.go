package delivery

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/renderer"
)

// resolver computes what a component should have now: the state in git, a pinned delivery, or the
// delivered version until its successor is released. It has no state, and is safe for concurrent use.
type resolver struct {
	cluster  string
	log      *slog.Logger
	now      func() time.Time
	renderer renderer.Renderer
	past     *past
	wants    *applier.DesiredBuilder
	// board shows which clusters are released; nil: this process works on a single cluster
	// (--cluster).
	board *rollout.Cache
	// later queues a component whose release decision may change by itself.
	later func(component string, after time.Duration)
	// failed is the state of a component after a request to the cluster failed.
	failed func() v1alpha1.Sync
}

// aim returns the state that a component should have now: usually the state in git. A non-empty
// t.sync ends the attempt here.
func (r *resolver) aim(ctx context.Context, s snapshot, t attempt) (want applier.Desired, _ attempt, err error) {
	var target *renderer.Target // nil: to be removed; the component keeps its objects until the removal is released
	if !s.delivery.Absent {
		if target, t, err = r.render(ctx, s, t); target == nil {
			return want, t, err
		}
		t.targetHash = target.Hash
	}
	if t.wanted, err = r.wanted(s, target); err != nil {
		return want, t.stop(v1alpha1.SyncBlocked, err.Error()), err
	}
	if target == nil {
		return r.due(ctx, s, nil, t)
	}
	return r.want(ctx, s, target, t)
}

// render renders a delivery. The target is nil when the attempt ends here.
func (r *resolver) render(ctx context.Context, s snapshot, t attempt) (*renderer.Target, attempt, error) {
	d := s.delivery
	capabilities, err := s.link.cluster.Capabilities(ctx)
	if err != nil {
		return nil, t.stop(r.failed(), err.Error()), err
	}
	target, err := rendered(ctx, r.renderer, renderer.Request{
		Version: d.Version, Values: d.Values, ImageMirrors: s.cluster.Spec.ImageMirrors, Capabilities: capabilities,
	})
	if err == nil {
		return target, t, nil
	}
	// The chart or its values are wrong: only a commit can fix that.
	var wrong *renderer.Error
	if errors.As(err, &wrong) && !wrong.Transient {
		return nil, t.stop(v1alpha1.SyncBlocked, err.Error()), nil
	}
	return nil, t.stop(v1alpha1.SyncFailed, err.Error()), err
}
