package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// snapshot is the input of an attempt.
type snapshot struct {
	fleet       *registry.Fleet
	cluster     *registry.Cluster
	delivery    *registry.Delivery // nil: not in git
	link        *link              // nil: never connected
	unreachable error
}

func (a *agent) snapshot(component string) snapshot {
	s := a.state.snapshot(component)
	s.link, s.unreachable = a.conn.current()
	return s
}

// attempt takes one component through its stages, and stops at the first stage that can't go on. An
// error asks for a retry. The returned attempt is valid with an error, too.
func (a *agent) attempt(ctx context.Context, component string) (attempt, error) {
	s := a.snapshot(component)
	var t attempt
	switch {
	case len(s.cluster.Problems) > 0:
		return t.stop(v1alpha1.SyncBlocked, problemsMessage(s.cluster.Problems)), nil
	case s.delivery == nil:
		return a.orphan(ctx, s, component)
	}
	d := s.delivery
	t.version, t.revision, t.timeout = d.VersionName, s.fleet.Revision, timeoutOf(d)
	t.ungoverned = s.fleet.PipelineOf(component) == nil
	switch {
	case len(d.Problems) > 0:
		return t.stop(v1alpha1.SyncBlocked, problemsMessage(d.Problems)), nil
	case s.unreachable != nil:
		return t.stop(silent(s.unreachable), s.unreachable.Error()), nil //nolint:nilerr // a ping shows when to go on
	case s.link == nil:
		t.connecting = true
		return t.stop(v1alpha1.SyncProgressing, "connecting"), nil
	}
	if d.Absent {
		v, err := a.resolver.decideRelease(ctx, s, v1alpha1.HashAbsent)
		if t = a.resolver.withDecision(v, err, s, t); t.sync != "" {
			return t, retryable(err)
		}
		if v.waits == "" {
			return a.absent(ctx, s, t)
		}
	}
	on, why := a.state.waitsFor(d)
	waiting := fmt.Sprintf("waits for %s, which is %s", on, why)
	prepared, t, err := a.prepare(ctx, s, t)
	switch {
	case prepared == nil && on != "" && err != nil:
		// The failure may come from a missing dependency, such as a CRD. The component is queued
		// again when the dependency changes.
		return t.stop(v1alpha1.SyncWaiting, waiting), nil //nolint:nilerr // no retry: see above
	case prepared == nil:
		return t, err
	}
	t.planned, t.plan, t.health, t.applied = true, prepared.Plan, prepared.Health, prepared.Applied
	switch {
	case prepared.Settled():
		if t = t.synced(); t.waits != "" && (d.Paused || s.cluster.Spec.Paused) {
			t = t.stop(v1alpha1.SyncPaused, "paused in git: it keeps "+t.keeps.Version)
		}
		t.diagnosis = a.diagnoses.of(ctx, s, prepared, t)
		return t, nil
	case d.Paused || s.cluster.Spec.Paused:
		return t.stop(v1alpha1.SyncPaused, "paused in git: "+t.plan.Summary()), nil
	case on != "" && t.waits == "" && (!prepared.Delivered() || !a.state.waitsForRelease(on)): // the delivered version is not held up
		return t.stop(v1alpha1.SyncWaiting, waiting), nil
	}
	return a.apply(ctx, s, prepared, t)
}

// prepare renders and plans. The plan is nil when the attempt ends here.
func (a *agent) prepare(ctx context.Context, s snapshot, t attempt) (*applier.Prepared, attempt, error) {
	d := s.delivery
	// Read the version first: the pin and the kept delivery come from the record, which may be
	// rewritten before the plan is made.
	from, err := s.link.cluster.RecordVersion(ctx, d.Component)
	if err != nil {
		return nil, t.stop(a.conn.failed(), err.Error()), err
	}
	want, t, err := a.resolver.aim(ctx, s, t)
	want.From = from
	if t.sync != "" {
		if t.sync == v1alpha1.SyncBlocked {
			return nil, t, nil
		}
		return nil, t, err
	}
	if t.pin == nil && t.waits == "" && want.Target != nil {
		a.warn(s.delivery, want.Target)
	}
	want.Others = a.resolver.others(s, d)
	prepared, err := planned(ctx, s.link.cluster, want)
	if errors.Is(err, applier.ErrStale) {
		return nil, t.stop(v1alpha1.SyncProgressing, "its record changed meanwhile; planning again"), err
	}
	if err != nil {
		if errors.As(err, new(*applier.TagMovedError)) || errors.As(err, new(*applier.EmptyTargetError)) ||
			errors.As(err, new(*applier.MalformedSecretError)) {
			return nil, t.stop(v1alpha1.SyncBlocked, err.Error()), nil
		}
		return nil, t.stop(a.conn.failed(), err.Error()), err
	}
	return prepared, t, nil
}

// warn logs the warnings of a new render.
func (a *agent) warn(d *registry.Delivery, target *renderer.Target) {
	if a.state.status(d.Component).TargetHash == target.Hash {
		return
	}
	for _, w := range target.WarningsFor(d.Values) {
		a.log.Warn("render", "component", d.Component, "version", d.VersionName, "warning", w)
	}
}

func (a *agent) apply(ctx context.Context, s snapshot, p *applier.Prepared, t attempt) (attempt, error) {
	var err error
	t.outcome, err = applied(ctx, s.link.cluster, p, applier.ApplyOptions{Now: a.now(), Timeout: t.timeout})
	t.health = t.outcome.Health
	switch {
	case errors.Is(err, applier.ErrStale):
		return t.stop(v1alpha1.SyncProgressing, "an object changed meanwhile; planning again"), err
	case err != nil:
		return t.stop(a.conn.failed(), err.Error()), err
	}
	sync, _ := syncOf(t.plan)
	t.pruning = sync == v1alpha1.SyncProgressing && p.OnlyDeletions()
	if sync == v1alpha1.SyncSynced {
		t.applied = p.Version()
	}
	return t.synced(), nil
}

// synced sets the result after the plan was carried out. A component waits if it has everything
// that is released, but not the state in git.
func (t attempt) synced() attempt {
	t.sync, t.message = syncOf(t.plan)
	if t.sync == v1alpha1.SyncSynced && t.waits != "" {
		t.sync, t.message = v1alpha1.SyncWaiting, t.waits
	}
	return t
}

func timeoutOf(d *registry.Delivery) time.Duration {
	if d.Version == nil || d.Version.Spec.Timeout == nil {
		return defaultTimeout
	}
	return d.Version.Spec.Timeout.Duration
}

func (t attempt) stop(sync v1alpha1.Sync, message string) attempt {
	t.sync, t.message = sync, message
	return t
}

// silent distinguishes an answer that is a refusal (SyncFailed) from no answer (SyncUnreachable).
func silent(err error) v1alpha1.Sync {
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return v1alpha1.SyncFailed
	}
	return v1alpha1.SyncUnreachable
}

func problemsMessage(ps yamlfile.Problems) string {
	message := ps[0].Error()
	if more := len(ps) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more: keelson validate lists them)", more)
	}
	return message
}
