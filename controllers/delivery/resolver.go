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
	earlier  *applier.EarlierFleets
	wants    *applier.DesiredBuilder
	// board shows which clusters are released; nil: this process works on a single cluster
	// (--cluster).
	board *rollout.Cache
	// later queues a component whose release decision may change by itself.
	later func(component string, after time.Duration)
	// failed is the state of a component after a request to the cluster failed.
	failed func() v1alpha1.Sync
}

// aim returns the state that a component should have now: usually the state in git. An outcome of
// Blocked has no retry: only a commit or a person can help.
func (r *resolver) aim(ctx context.Context, s snapshot, t *attempt) (applier.Desired, stageOutcome) {
	var target *renderer.Target // nil: to be removed; the component keeps its objects until the removal is released
	if !s.delivery.Absent {
		var o stageOutcome
		if target, o = r.render(ctx, s); o.ends() {
			return applier.Desired{}, o
		}
		t.targetHash = target.Hash
	}
	var err error
	if t.wanted, err = r.wanted(s, target); err != nil {
		return applier.Desired{}, stop(v1alpha1.SyncBlocked, err.Error())
	}
	if target == nil {
		return r.due(ctx, s, nil, t)
	}
	return r.want(ctx, s, target, t)
}

// render renders a delivery.
func (r *resolver) render(ctx context.Context, s snapshot) (*renderer.Target, stageOutcome) {
	d := s.delivery
	capabilities, err := s.link.cluster.Capabilities(ctx)
	if err != nil {
		return nil, stopAndRetry(r.failed(), err)
	}
	target, err := rendered(ctx, r.renderer, renderer.Request{
		Version: d.Version, Values: d.Values, ImageMirrors: s.cluster.Spec.ImageMirrors, Capabilities: capabilities,
	})
	if err == nil {
		return target, stageOutcome{}
	}
	// The chart or its values are wrong: only a commit can fix that.
	var wrong *renderer.Error
	if errors.As(err, &wrong) && !wrong.Transient {
		return nil, stop(v1alpha1.SyncBlocked, err.Error())
	}
	return nil, stopAndRetry(v1alpha1.SyncFailed, err)
}
