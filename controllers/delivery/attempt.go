package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/health"
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
	a.mu.Lock()
	defer a.mu.Unlock()
	return snapshot{
		fleet: a.fleet, cluster: a.desired, delivery: a.desired.Delivery(component),
		link: a.link, unreachable: a.unreachable,
	}
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
		return t.stop(silent(s.unreachable), s.unreachable.Error()), nil //nolint:nilerr // a probe finds out when to go on
	case s.link == nil:
		t.connecting = true
		return t.stop(v1alpha1.SyncProgressing, "connecting"), nil
	}
	if d.Absent {
		v, err := a.decideRelease(ctx, s, v1alpha1.HashAbsent)
		if t = a.withDecision(v, err, s, t); t.sync != "" {
			return t, retryable(err)
		}
		if v.waits == "" {
			return a.absent(ctx, s, t)
		}
	}
	on, why := a.waitsFor(d)
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
		t.diagnosis = a.diagnose(ctx, s, prepared, t)
		return t, nil
	case d.Paused || s.cluster.Spec.Paused:
		return t.stop(v1alpha1.SyncPaused, "paused in git: "+t.plan.Summary()), nil
	case on != "" && t.waits == "" && (!prepared.Delivered() || !a.takesTurns(on)): // the delivered version is not held up
		return t.stop(v1alpha1.SyncWaiting, waiting), nil
	}
	return a.apply(ctx, s, prepared, t)
}

// diagnosis explains why a component is not healthy. about is the target and the problem.
type diagnosis struct{ about, text string }

// diagnose explains why a component is not healthy, if the component is degraded or its timeout has
// passed. It asks the cluster once for each target and problem; before that it checks the pods.
func (a *agent) diagnose(ctx context.Context, s snapshot, p *applier.Prepared, t attempt) string {
	component := s.delivery.Component
	health, worst := health.Worst(t.health)
	about := t.targetHash + " " + worst
	a.mu.Lock()
	late := waited(a.statuses.get(component), a.now()) > t.timeout
	known := a.diagnoses[component]
	if health == v1alpha1.HealthHealthy {
		delete(a.diagnoses, component)
		delete(a.podLooks, component)
	}
	a.mu.Unlock()
	switch {
	case health == v1alpha1.HealthHealthy:
		return ""
	case health != v1alpha1.HealthDegraded && !late:
		return a.podTrouble(ctx, s, p, t)
	case known.about == about:
		return known.text
	}
	text := s.link.cluster.Diagnose(ctx, p)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.diagnoses[component] = diagnosis{about, text}
	return text
}

// podLook is the result of the last check of the pods of a progressing component.
type podLook struct {
	about, text string    // about: the target hash
	since, at   time.Time // since when the component progresses to the target, and when its pods were checked
}

const (
	// firstPodLook is the time before the pods of a component are first checked. Most pods are
	// ready by then.
	firstPodLook = 5 * time.Second
	// busyPodLook replaces firstPodLook while other components of the cluster are queued: changes
	// go first.
	busyPodLook = 30 * time.Second
	lastPodLook = time.Minute
)

// podLookEvery returns how long a check of the pods is valid, for a component that has been
// progressing for way. A failing pod is reported early, and a slow start costs few requests.
func podLookEvery(way time.Duration, othersWait bool) time.Duration {
	first := firstPodLook
	if othersWait {
		first = busyPodLook
	}
	return min(max(way, first), lastPodLook)
}

// nextPodLook returns after what time the pods of a component are to be checked.
func (a *agent) nextPodLook(component string) time.Duration {
	a.mu.Lock()
	look, now := a.podLooks[component], a.now()
	a.mu.Unlock()
	way := now.Sub(look.since)
	if look.since.IsZero() {
		way = 0
	}
	return podLookEvery(way, a.queue.Len() > 0)
}

// podTrouble names a pod that does not start, while the component may still become healthy.
func (a *agent) podTrouble(ctx context.Context, s snapshot, p *applier.Prepared, t attempt) string {
	component, now := s.delivery.Component, a.now()
	a.mu.Lock()
	look := a.podLooks[component]
	if look.about != t.targetHash || look.since.IsZero() {
		look = podLook{about: t.targetHash, since: now}
		a.podLooks[component] = look
	}
	a.mu.Unlock()
	way := now.Sub(look.since)
	every := podLookEvery(way, a.queue.Len() > 0)
	if way < every || now.Sub(look.at) < every {
		return look.text
	}
	look.text, look.at = s.link.cluster.PodTrouble(ctx, p), a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.podLooks[component] = look
	return look.text
}

// prepare renders and plans. The plan is nil when the attempt ends here.
func (a *agent) prepare(ctx context.Context, s snapshot, t attempt) (*applier.Prepared, attempt, error) {
	d := s.delivery
	// Read the version first: the pin and the kept delivery come from the record, which may be
	// rewritten before the plan is made.
	from, err := s.link.cluster.RecordVersion(ctx, d.Component)
	if err != nil {
		return nil, t.stop(a.failed(), err.Error()), err
	}
	want, t, err := a.aim(ctx, s, t)
	want.From = from
	if t.sync != "" {
		if t.sync == v1alpha1.SyncBlocked {
			return nil, t, nil
		}
		return nil, t, err
	}
	want.Others = a.others(s, d)
	prepared, err := planned(ctx, s.link.cluster, want)
	if errors.Is(err, applier.ErrStale) {
		return nil, t.stop(v1alpha1.SyncProgressing, "its record changed meanwhile; planning again"), err
	}
	if err != nil {
		if errors.As(err, new(*applier.TagMovedError)) || errors.As(err, new(*applier.EmptyTargetError)) ||
			errors.As(err, new(*applier.MalformedSecretError)) {
			return nil, t.stop(v1alpha1.SyncBlocked, err.Error()), nil
		}
		return nil, t.stop(a.failed(), err.Error()), err
	}
	return prepared, t, nil
}

// aim returns the state that a component should have now: usually the state in git. A non-empty
// t.sync ends the attempt here.
func (a *agent) aim(ctx context.Context, s snapshot, t attempt) (want applier.Desired, _ attempt, err error) {
	var target *renderer.Target // nil: to be removed; the component keeps its objects until the removal is released
	if !s.delivery.Absent {
		if target, t, err = a.render(ctx, s, t); target == nil {
			return want, t, err
		}
		t.targetHash = target.Hash
	}
	if t.wanted, err = a.wanted(s, target); err != nil {
		return want, t.stop(v1alpha1.SyncBlocked, err.Error()), err
	}
	if target == nil {
		return a.due(ctx, s, nil, t)
	}
	if want, t, err = a.want(ctx, s, target, t); t.sync == "" && t.pin == nil && t.waits == "" {
		a.warn(s.delivery, target)
	}
	return want, t, err
}

// render renders a delivery. The target is nil when the attempt ends here.
func (a *agent) render(ctx context.Context, s snapshot, t attempt) (*renderer.Target, attempt, error) {
	d := s.delivery
	capabilities, err := s.link.cluster.Capabilities(ctx)
	if err != nil {
		return nil, t.stop(a.failed(), err.Error()), err
	}
	target, err := rendered(ctx, a.renderer, renderer.Request{
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

// warn logs the warnings of a new render.
func (a *agent) warn(d *registry.Delivery, target *renderer.Target) {
	a.mu.Lock()
	known := a.statuses.get(d.Component).TargetHash == target.Hash
	a.mu.Unlock()
	if known {
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
		return t.stop(a.failed(), err.Error()), err
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

// failed distinguishes a refusal (SyncFailed) from a server that does not answer (SyncUnreachable).
func (a *agent) failed() v1alpha1.Sync {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.unreachable != nil {
		return v1alpha1.SyncUnreachable
	}
	return v1alpha1.SyncFailed
}

// silent distinguishes an answer that is a refusal (SyncFailed) from no answer (SyncUnreachable).
func silent(err error) v1alpha1.Sync {
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return v1alpha1.SyncFailed
	}
	return v1alpha1.SyncUnreachable
}

// waitsFor returns the first dependency that is not healthy at the version in git, and its state.
func (a *agent) waitsFor(d *registry.Delivery) (string, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range d.Version.Spec.DependsOn {
		s := a.statuses.get(name)
		on := a.desired.Delivery(name)
		switch {
		case on == nil:
			return name, "not on this cluster"
		case s.Sync != v1alpha1.SyncSynced && !a.pruning[name], s.Version != on.VersionName:
			return name, string(cmp.Or(s.Sync, v1alpha1.SyncProgressing))
		case s.Health != v1alpha1.HealthHealthy:
			return name, string(s.Health)
		}
	}
	return "", ""
}

// takesTurns reports whether a healthy component only waits for its release in a rollout. That may
// take days, and dependents that fitted the delivered version still fit.
func (a *agent) takesTurns(component string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.statuses.get(component)
	return s.Sync == v1alpha1.SyncWaiting && s.Health == v1alpha1.HealthHealthy && s.Wanted != nil && s.Wanted.TargetHash != s.TargetHash
}

func problemsMessage(ps yamlfile.Problems) string {
	message := ps[0].Error()
	if more := len(ps) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more: keelson validate lists them)", more)
	}
	return message
}
