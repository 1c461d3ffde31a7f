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
	"github.com/keelson-io/keelson/differ"
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

// stageOutcome says whether an attempt goes on after a stage. The zero value goes on.
type stageOutcome struct {
	// sync is the state in which the attempt ends; empty: it goes on.
	sync    v1alpha1.Sync
	message string
	// retry is why the component is tried again; nil: only an event, a commit or a person can help.
	retry error
	// connecting: the cluster, or the hub, has not answered anything yet.
	connecting bool
}

// ends reports whether the attempt ends.
func (o stageOutcome) ends() bool { return o.sync != "" }

// stop ends an attempt without a retry.
func stop(sync v1alpha1.Sync, message string) stageOutcome {
	return stageOutcome{sync: sync, message: message}
}

// stopAndRetry ends an attempt because of an error that a retry may help against.
func stopAndRetry(sync v1alpha1.Sync, err error) stageOutcome {
	return stageOutcome{sync: sync, message: err.Error(), retry: err}
}

// attempt takes one component through its stages, and ends at the first stage that can't go on. The
// error asks for a retry. The returned attempt is valid with an error, too.
func (a *agent) attempt(ctx context.Context, component string) (attempt, error) {
	var t attempt
	o := a.stages(ctx, component, &t)
	t.sync, t.message, t.connecting = o.sync, o.message, o.connecting
	return t, o.retry
}

// stages runs the stages of an attempt. Each stage adds to t what it found, even if it ends the
// attempt.
func (a *agent) stages(ctx context.Context, component string, t *attempt) stageOutcome {
	s := a.snapshot(component)
	switch {
	case len(s.cluster.Problems) > 0:
		return stop(v1alpha1.SyncBlocked, problemsMessage(s.cluster.Problems))
	case s.delivery == nil:
		return a.orphan(ctx, s, component, t)
	}
	d := s.delivery
	t.version, t.revision, t.timeout = d.VersionName, s.fleet.Revision, timeoutOf(d)
	t.ungoverned = s.fleet.PipelineOf(component) == nil
	switch {
	case len(d.Problems) > 0:
		return stop(v1alpha1.SyncBlocked, problemsMessage(d.Problems))
	case s.unreachable != nil: // a ping shows when to go on
		return stop(silent(s.unreachable), s.unreachable.Error())
	case s.link == nil:
		return stageOutcome{sync: v1alpha1.SyncProgressing, message: "connecting", connecting: true}
	}
	if d.Absent {
		if o := a.resolver.awaitRelease(ctx, s, v1alpha1.HashAbsent, t); o.ends() {
			return o
		}
		if t.waits == "" {
			return a.absent(ctx, s, t)
		}
	}
	on, why := a.state.waitsFor(d)
	waiting := stop(v1alpha1.SyncWaiting, fmt.Sprintf("waits for %s, which is %s", on, why))
	prepared, o := a.prepare(ctx, s, t)
	switch {
	case o.ends() && on != "" && o.retry != nil:
		// The failure may come from a missing dependency, such as a CRD. The component is queued
		// again when the dependency changes.
		return waiting
	case o.ends():
		return o
	}
	paused := d.Paused || s.cluster.Spec.Paused
	t.planned, t.plan, t.health, t.applied = true, prepared.Plan, prepared.Health, prepared.Applied
	switch {
	case t.unfinished:
		t.plan = differ.Plan{} // a way back that git does not ask for
		if paused {
			return stop(v1alpha1.SyncPaused, "paused in git: "+t.waits)
		}
		return stop(v1alpha1.SyncWaiting, t.waits)
	case prepared.Settled():
		t.diagnosis = a.diagnoses.of(ctx, s, prepared, *t)
		if t.waits != "" && paused {
			return stop(v1alpha1.SyncPaused, "paused in git: it keeps "+t.keeps.Version)
		}
		return t.synced()
	case paused:
		return stop(v1alpha1.SyncPaused, "paused in git: "+t.plan.Summary())
	case on != "" && t.waits == "" && (!prepared.Delivered() || !a.state.waitsForRelease(on)): // the delivered version is not held up
		return waiting
	}
	return a.apply(ctx, s, prepared, t)
}

// prepare renders and plans.
func (a *agent) prepare(ctx context.Context, s snapshot, t *attempt) (*applier.Prepared, stageOutcome) {
	d := s.delivery
	// Read the version first: the pin and the kept delivery come from the record, which may be
	// rewritten before the plan is made.
	from, err := s.link.cluster.RecordVersion(ctx, d.Component)
	if err != nil {
		return nil, stopAndRetry(a.conn.failed(), err)
	}
	want, o := a.resolver.aim(ctx, s, t)
	want.From = from
	if o.ends() {
		return nil, o
	}
	if t.pin == nil && t.waits == "" && want.Target != nil {
		a.warn(s.delivery, want.Target)
	}
	want.Others = a.resolver.others(s, d)
	prepared, err := planned(ctx, s.link.cluster, want)
	if errors.Is(err, applier.ErrStale) {
		return nil, stageOutcome{sync: v1alpha1.SyncProgressing, message: "its record changed meanwhile; planning again", retry: err}
	}
	if err != nil {
		if errors.As(err, new(*applier.TagMovedError)) || errors.As(err, new(*applier.EmptyTargetError)) ||
			errors.As(err, new(*applier.MalformedSecretError)) {
			return nil, stop(v1alpha1.SyncBlocked, err.Error())
		}
		return nil, stopAndRetry(a.conn.failed(), err)
	}
	return prepared, stageOutcome{}
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

func (a *agent) apply(ctx context.Context, s snapshot, p *applier.Prepared, t *attempt) stageOutcome {
	var err error
	t.outcome, err = applied(ctx, s.link.cluster, p, applier.ApplyOptions{Now: a.now(), Timeout: t.timeout})
	t.health = t.outcome.Health
	switch {
	case errors.Is(err, applier.ErrStale):
		return stageOutcome{sync: v1alpha1.SyncProgressing, message: "an object changed meanwhile; planning again", retry: err}
	case err != nil:
		return stopAndRetry(a.conn.failed(), err)
	}
	sync, _ := syncOf(t.plan)
	t.pruning = sync == v1alpha1.SyncProgressing && p.OnlyDeletions()
	if sync == v1alpha1.SyncSynced {
		t.applied = p.Version()
	}
	return t.synced()
}

// synced returns the end of an attempt whose plan was carried out. A component waits if it has
// everything that is released, but not the state in git.
func (t *attempt) synced() stageOutcome {
	sync, message := syncOf(t.plan)
	if sync == v1alpha1.SyncSynced && t.waits != "" {
		sync, message = v1alpha1.SyncWaiting, t.waits
	}
	return stop(sync, message)
}

func timeoutOf(d *registry.Delivery) time.Duration {
	if d.Version == nil || d.Version.Spec.Timeout == nil {
		return defaultTimeout
	}
	return d.Version.Spec.Timeout.Duration
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
