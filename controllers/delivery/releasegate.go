package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// releaseDecision says whether a cluster may have the desired version of a component.
type releaseDecision struct {
	// waits is why the component may not change; empty: it may.
	waits string
	// keeps is the delivery that stays meanwhile; the zero value: never delivered.
	keeps records.Delivered
	// until is when the decision may change by itself; zero: another event will queue the component.
	until time.Time
}

// decideRelease decides about a component, given the hash of its target. It depends only on what is
// written: the Rollout and the component's record. After an error nothing may be changed. The error
// [rollout.ErrUnknown] passes without a retry.
func (r *resolver) decideRelease(ctx context.Context, s snapshot, wants string) (releaseDecision, error) {
	component := s.delivery.Component
	pipeline := s.fleet.PipelineOf(component)
	if pipeline == nil {
		return r.decideFreeze(ctx, s, wants)
	}
	var entry *v1alpha1.RolloutCluster
	if r.board != nil {
		shown, err := r.board.Of(s.fleet, component)
		if err != nil {
			return releaseDecision{}, err
		}
		entry = entryOf(shown, r.cluster)
	}
	ours := entry != nil && entry.Want == wants // else the entry is about an earlier target
	if ours && entry.Back {
		return r.decideRollback(ctx, s, entry)
	}
	if ours && entry.Released != nil {
		return releaseDecision{}, nil
	}
	had, err := s.link.cluster.Delivered(ctx, component)
	if err != nil || isAt(had, wants) {
		return releaseDecision{}, err
	}
	v := releaseDecision{keeps: had, waits: fmt.Sprintf("waits for its turn in pipeline %s", pipeline.Name)}
	if r.board == nil {
		v.waits = fmt.Sprintf("pipeline %s lets clusters go one after the other, and this controller knows of one alone (--cluster)", pipeline.Name)
	}
	v.waits += keeping(had)
	return v, nil
}

// isAt reports whether the delivered target is the given one.
func isAt(had records.Delivered, wants string) bool {
	return had.TargetHash == wants || had.TargetHash == "" && wants == v1alpha1.HashAbsent
}

func keeping(had records.Delivered) string {
	if had.TargetHash == "" {
		return ", and is not there yet"
	}
	return ", and keeps " + had.Version
}

// decideFreeze decides about a component without a pipeline: no change while the component is frozen.
func (r *resolver) decideFreeze(ctx context.Context, s snapshot, wants string) (releaseDecision, error) {
	reason, until := s.fleet.Frozen(s.cluster, s.delivery.Component, r.now())
	if reason == "" {
		return releaseDecision{}, nil
	}
	had, err := s.link.cluster.Delivered(ctx, s.delivery.Component)
	if err != nil || isAt(had, wants) {
		return releaseDecision{}, err
	}
	return releaseDecision{waits: "frozen: " + reason + keeping(had), keeps: had, until: until}, nil
}

// decideRollback decides about a cluster whose stage is rolled back.
func (r *resolver) decideRollback(ctx context.Context, s snapshot, entry *v1alpha1.RolloutCluster) (releaseDecision, error) {
	component := s.delivery.Component
	past, found, err := s.link.cluster.DeliveredAs(ctx, component, entry.From)
	switch {
	case err != nil:
		return releaseDecision{}, err
	case !found:
		return releaseDecision{}, &applier.HistoricalError{
			Component: component, Past: records.Delivered{TargetHash: entry.From},
			Err: fmt.Errorf("its history has no delivery of target %.12s, to which its rollout takes it back", entry.From),
		}
	}
	return releaseDecision{waits: "its rollout failed, and takes it back to " + past.Version, keeps: past}, nil
}

func entryOf(r *v1alpha1.Rollout, cluster string) *v1alpha1.RolloutCluster {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Status.Clusters, func(c v1alpha1.RolloutCluster) bool { return c.Name == cluster })
	if i < 0 {
		return nil
	}
	return &r.Status.Clusters[i]
}

// due returns what a component should have now: the desired target (nil: git wants it absent), or
// the delivered version until the target is released. A non-empty t.sync ends the attempt here.
func (r *resolver) due(ctx context.Context, s snapshot, target *renderer.Target, t attempt) (applier.Desired, attempt, error) {
	hash := v1alpha1.HashAbsent
	if target != nil {
		hash = target.Hash
	}
	v, err := r.decideRelease(ctx, s, hash)
	if t = r.withDecision(v, err, s, t); t.sync != "" {
		return applier.Desired{}, t, retryable(err)
	}
	if v.waits == "" {
		want, err := r.wants.Build(s.fleet, s.delivery, target)
		if err != nil {
			return want, t.stop(v1alpha1.SyncBlocked, err.Error()), err
		}
		return want, t, nil
	}
	want, err := r.renderDelivered(ctx, s, v.keeps)
	var gone *applier.HistoricalError
	switch {
	case errors.As(err, &gone):
		t = t.stop(v1alpha1.SyncBlocked, v.waits+"; none of its objects are changed: "+gone.Error())
		return want, t, nil
	case err != nil:
		return want, t.stop(v1alpha1.SyncFailed, err.Error()), err
	}
	t.targetHash, t.revision = want.Target.Hash, v.keeps.Revision
	return want, t, nil
}

// withDecision returns the attempt with the decision in it. It sets a result if the decision or its error
// already ends the attempt.
func (r *resolver) withDecision(v releaseDecision, err error, s snapshot, t attempt) attempt {
	t.waits, t.keeps = v.waits, v.keeps
	var gone *applier.HistoricalError
	switch {
	case errors.Is(err, rollout.ErrUnknown):
		t.connecting = true // queued again when the hub has answered
		return t.stop(v1alpha1.SyncWaiting, err.Error())
	case errors.As(err, &gone):
		return t.stop(v1alpha1.SyncBlocked, err.Error())
	case err != nil:
		return t.stop(r.failed(), err.Error())
	}
	if !v.until.IsZero() {
		r.later(s.delivery.Component, v.until.Sub(r.now())+time.Second)
	}
	if v.waits != "" && v.keeps.TargetHash == "" {
		return t.stop(v1alpha1.SyncWaiting, v.waits)
	}
	return t
}

// retryable returns err if a retry can succeed, else nil.
func retryable(err error) error {
	if errors.Is(err, rollout.ErrUnknown) || errors.As(err, new(*applier.HistoricalError)) {
		return nil
	}
	return err
}

// renderDelivered renders the version that a component has, from the revision of its delivery.
func (r *resolver) renderDelivered(ctx context.Context, s snapshot, has records.Delivered) (applier.Desired, error) {
	then, err := r.past.at(ctx, has.Revision)
	if err != nil {
		if ctx.Err() != nil {
			return applier.Desired{}, ctx.Err()
		}
		return applier.Desired{}, &applier.HistoricalError{Past: has, Component: s.delivery.Component, Err: err}
	}
	return applier.HistoricalDesired{Past: has, Now: s.fleet, Delivery: s.delivery, Then: then}.Build(ctx, r.renderThen(s))
}

// renderThen renders the manifests of another revision for the cluster as it is now.
func (r *resolver) renderThen(s snapshot) applier.Render {
	return func(ctx context.Context, c *registry.Cluster, d *registry.Delivery) (*renderer.Target, error) {
		capabilities, err := s.link.cluster.Capabilities(ctx)
		if err != nil {
			return nil, err
		}
		return r.renderer.Render(ctx, renderer.Request{
			Version: d.Version, Values: d.Values, ImageMirrors: c.Spec.ImageMirrors, Capabilities: capabilities,
		})
	}
}

// wanted returns what git wants of a component with a pipeline; nil: there is no pipeline.
func (r *resolver) wanted(s snapshot, target *renderer.Target) (*v1alpha1.WantedDelivery, error) {
	if s.fleet.PipelineOf(s.delivery.Component) == nil {
		return nil, nil //nolint:nilnil // as said
	}
	inputs, err := rollout.InputsOf(s.cluster, s.delivery)
	if err != nil {
		return nil, err
	}
	w := &v1alpha1.WantedDelivery{TargetHash: v1alpha1.HashAbsent, Inputs: inputs}
	if target != nil {
		w.TargetHash = target.Hash
	}
	return w, nil
}
