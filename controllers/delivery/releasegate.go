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
	// unfinished: an apply has changed objects after that delivery, and was not complete. To return
	// to the delivery is a change that git does not make, so the objects stay as they are.
	unfinished bool
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
	waits := fmt.Sprintf("waits for its turn in pipeline %s", pipeline.Name)
	if r.board == nil {
		waits = fmt.Sprintf("pipeline %s lets clusters go one after the other, and this controller knows of one alone (--cluster)", pipeline.Name)
	}
	return r.keeping(ctx, s, releaseDecision{waits: waits, keeps: had})
}

// isAt reports whether the delivered target is the given one.
func isAt(had records.Delivered, wants string) bool {
	return had.TargetHash == wants || had.TargetHash == "" && wants == v1alpha1.HashAbsent
}

// keeping adds what the cluster keeps to a decision that makes a component wait.
func (r *resolver) keeping(ctx context.Context, s snapshot, v releaseDecision) (releaseDecision, error) {
	unfinished, err := s.link.cluster.Unfinished(ctx, s.delivery.Component)
	if err != nil {
		return releaseDecision{}, err
	}
	switch {
	case v.keeps.TargetHash == "" && unfinished:
		v.waits += ", and stays as it is: it was installed in part"
	case v.keeps.TargetHash == "":
		v.waits += ", and is not there yet"
	case v.keeps.Removing():
		v.waits += ", and stays as it is: its removal has begun"
	case unfinished:
		v.waits += ", and stays as it is: a change after " + v.keeps.Version + " was applied in part"
	default:
		v.waits += ", and keeps " + v.keeps.Version
	}
	v.unfinished = unfinished || v.keeps.Removing()
	return v, nil
}

// decideFreeze decides about a component without a pipeline: no change while the component is frozen.
func (r *resolver) decideFreeze(ctx context.Context, s snapshot, wants string) (releaseDecision, error) {
	reason, until := s.fleet.Frozen(s.cluster, s.delivery.Component, r.now())
	if reason == "" {
		return releaseDecision{}, nil
	}
	had, err := s.link.cluster.Delivered(ctx, s.delivery.Component)
	if err != nil {
		return releaseDecision{}, err
	}
	// To take back what was applied in part is a change, too.
	unfinished, err := s.link.cluster.Unfinished(ctx, s.delivery.Component)
	if err != nil || isAt(had, wants) && !unfinished {
		return releaseDecision{}, err
	}
	return r.keeping(ctx, s, releaseDecision{waits: "frozen: " + reason, keeps: had, until: until})
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
// the delivered version until the target is released.
func (r *resolver) due(ctx context.Context, s snapshot, target *renderer.Target, t *attempt) (applier.Desired, stageOutcome) {
	hash := v1alpha1.HashAbsent
	if target != nil {
		hash = target.Hash
	}
	if o := r.awaitRelease(ctx, s, hash, t); o.ends() {
		return applier.Desired{}, o
	}
	if t.waits == "" && target == nil {
		// Released since the attempt asked first. The next attempt runs the hooks of the removal.
		r.later(s.delivery.Component, 0)
		return applier.Desired{}, stop(v1alpha1.SyncProgressing, "its removal begins")
	}
	if t.waits == "" {
		want, err := r.wants.Build(s.fleet, s.delivery, target)
		if err != nil {
			return want, stop(v1alpha1.SyncBlocked, err.Error())
		}
		return want, stageOutcome{}
	}
	want, err := r.earlier.Delivered(ctx, s.fleet, s.delivery, t.keeps, r.renderThen(s))
	var gone *applier.HistoricalError
	switch {
	case errors.As(err, &gone) && t.unfinished: // a way back that is not taken need not be known
		return want, stop(v1alpha1.SyncWaiting, t.waits)
	case errors.As(err, &gone):
		return want, stop(v1alpha1.SyncBlocked, t.waits+"; none of its objects are changed: "+gone.Error())
	case err != nil:
		return want, stopAndRetry(v1alpha1.SyncFailed, err)
	}
	t.targetHash, t.revision = want.Target.Hash, t.keeps.Revision
	return want, stageOutcome{}
}

// awaitRelease decides whether the target with a hash is released, and adds the decision to t. The
// attempt ends if the decision failed, or if nothing was ever delivered and the target must wait.
func (r *resolver) awaitRelease(ctx context.Context, s snapshot, hash string, t *attempt) stageOutcome {
	v, err := r.decideRelease(ctx, s, hash)
	t.waits, t.keeps, t.unfinished = v.waits, v.keeps, v.unfinished
	switch {
	case errors.Is(err, rollout.ErrUnknown): // queued again when the hub has answered
		return stageOutcome{sync: v1alpha1.SyncWaiting, message: err.Error(), connecting: true}
	case errors.As(err, new(*applier.HistoricalError)):
		return stop(v1alpha1.SyncBlocked, err.Error())
	case err != nil:
		return stopAndRetry(r.failed(), err)
	}
	if !v.until.IsZero() {
		r.later(s.delivery.Component, v.until.Sub(r.now())+time.Second)
	}
	if v.waits != "" && v.keeps.TargetHash == "" {
		return stop(v1alpha1.SyncWaiting, v.waits)
	}
	return stageOutcome{}
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
