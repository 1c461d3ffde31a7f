package rollout

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/probe"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer/redact"
)

// retry is the wait after a failure that may pass.
const retry = time.Second

// Options are the settings of a [Loop]. All but Events are required.
type Options struct {
	Board    *Cache
	Probes   *probe.Store // results of probes
	Log      *slog.Logger
	Now      func() time.Time
	Redactor *redact.Redactor
	Metrics  *Metrics
	// Egress sends the requests of checks to servers.
	Egress http.RoundTripper
	// Events returns the recorder of Kubernetes Events; nil: none are recorded.
	Events func() record.EventRecorder
}

// Loop rolls the changes of a fleet out from cluster to cluster. One process of a fleet runs it.
// Two loops would have write conflicts, but would release no cluster twice: each write names the
// resourceVersion from which it was decided.
type Loop struct {
	rollouts     *Cache
	client       client.Client
	observations *observations
	log          *slog.Logger
	now          func() time.Time
	redactor     *redact.Redactor
	metrics      *Metrics
	events       func() record.EventRecorder
	checks       *checkRunner

	mu    sync.Mutex
	fleet *registry.Fleet // nil: git was not read yet
	// inputs are the hashes of [InputsOf] by delivery; inputsBefore are the hashes of the previous
	// revision. The same pointer has the same content.
	inputs, inputsBefore map[*registry.Delivery]string
	dirty                map[string]bool // components to reconcile
	all                  bool            // reconcile all components
	soon                 chan struct{}
	wakes                map[string]time.Time // by component
	passed               *registry.Fleet      // fleet of the last pass
}

// NewLoop prepares a loop; it makes no call.
func NewLoop(o Options) *Loop {
	l := &Loop{
		rollouts: o.Board, client: o.Board.client, log: o.Log, now: o.Now, redactor: o.Redactor, metrics: o.Metrics, events: o.Events,
		inputs: map[*registry.Delivery]string{}, dirty: map[string]bool{}, soon: make(chan struct{}, 1), wakes: map[string]time.Time{},
	}
	l.checks = newCheckRunner(o.Now, o.Egress)
	l.checks.probes = o.Probes
	l.observations = &observations{client: o.Board.client, changed: l.Look}
	return l
}

// Look schedules the reconcile of a component; "": of all components. It returns at once.
func (l *Loop) Look(component string) {
	l.mu.Lock()
	if component == "" {
		l.all = true
	} else {
		l.dirty[component] = true
	}
	l.mu.Unlock()
	select {
	case l.soon <- struct{}{}:
	default:
	}
}

// Fleet sets the state of git, and schedules all components.
func (l *Loop) Fleet(f *registry.Fleet) {
	l.mu.Lock()
	l.fleet = f
	l.mu.Unlock()
	l.Look("")
}

// Run works until the context ends.
func (l *Loop) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer l.observations.follow(ctx, nil)
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.soon:
		case <-timer.C:
		}
		next := l.pass(ctx)
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(next.Sub(l.now()), 0))
		}
	}
}

// pass reconciles the components that are due. It returns when the next component becomes due by
// time alone; zero: none does.
func (l *Loop) pass(ctx context.Context) (next time.Time) {
	l.mu.Lock()
	fleet := l.fleet
	l.mu.Unlock()
	if fleet == nil {
		return time.Time{}
	}
	if l.passed != fleet {
		l.passed, l.inputs, l.inputsBefore = fleet, map[*registry.Delivery]string{}, l.inputs
	}
	components := governed(fleet)
	l.observations.follow(ctx, components)
	rollouts := l.rollouts.all()
	if rollouts == nil {
		return time.Time{} // the board calls Look once it knows them
	}
	for _, component := range l.due(components, rollouts) {
		wake, err := l.step(ctx, fleet, component)
		if ctx.Err() != nil {
			return time.Time{}
		}
		if err != nil {
			wake = l.now().Add(retry)
			if !apierrors.IsConflict(err) {
				l.log.Warn("a rollout can't be written; trying again", "component", component, "error", err)
			}
		}
		if wake.IsZero() {
			delete(l.wakes, component)
		} else {
			l.wakes[component] = wake
		}
	}
	l.metrics.count(l.rollouts.all(), fleet)
	for _, at := range l.wakes {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// due returns the components to reconcile now, in order. It considers components with a pipeline,
// and components with an earlier Rollout.
func (l *Loop) due(components []string, rollouts map[string]*v1alpha1.Rollout) []string {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	every := map[string]bool{}
	for _, component := range components {
		every[component] = true
	}
	for component, r := range rollouts {
		if isOf(r, l.passed) {
			every[component] = true
		}
	}
	maps.DeleteFunc(every, func(component string, _ bool) bool {
		at, waits := l.wakes[component]
		return !l.all && !l.dirty[component] && (!waits || at.After(now))
	})
	l.all, l.dirty = false, map[string]bool{}
	return slices.Sorted(maps.Keys(every))
}

// step takes one component as far as possible. It returns when to reconcile it again; zero: only
// after a change.
func (l *Loop) step(ctx context.Context, fleet *registry.Fleet, component string) (wake time.Time, err error) {
	was, err := l.rollouts.named(component)
	if err != nil {
		return time.Time{}, err
	}
	pipeline := fleet.PipelineOf(component)
	switch {
	case was != nil && !isOf(was, fleet):
		l.log.Warn("the hub has a Rollout of that name of another fleet: no cluster is released", "component", component, "fleet", was.Annotations[v1alpha1.AnnotationFleet])
		return time.Time{}, nil
	case was != nil && (pipeline == nil || nowhere(fleet, component)):
		return time.Time{}, l.remove(ctx, was)
	case pipeline == nil, len(pipeline.Problems) > 0:
		return time.Time{}, nil // a broken pipeline releases no cluster
	}
	seen, known := l.observations.at(component)
	if !known {
		return time.Time{}, nil // sights calls Look once it knows them
	}
	var before v1alpha1.RolloutStatus
	if was != nil {
		before = was.Status
	}
	in, thaw, err := l.gather(fleet, component, seen)
	if err != nil {
		return time.Time{}, err
	}
	s := advance(before, in, l.now())
	if len(s.questions) > 0 {
		in.checks = l.checks.answersTo(ctx, s.questions, asking{fleet, pipeline, component, seen, func() { l.Look(component) }})
		s = advance(before, in, l.now())
	}
	if !s.wake.IsZero() && (thaw.IsZero() || s.wake.Before(thaw)) {
		thaw = s.wake
	}
	if s.status.Change == "" || s.status.Phase == v1alpha1.RolloutComplete && same(before, s.status) {
		return time.Time{}, nil
	}
	l.hide(&s.status)
	if same(before, s.status) {
		return thaw, nil
	}
	if err := l.write(ctx, was, component, s); err != nil {
		return time.Time{}, err
	}
	if len(s.events) > 0 { // the next step may depend on this write
		l.Look(component)
	}
	return thaw, nil
}

// gather returns the facts about a component, and when the next freeze begins or ends.
func (l *Loop) gather(f *registry.Fleet, component string, seen map[string]*observation) (in input, thaw time.Time, err error) {
	in = input{
		component: component, pipeline: f.PipelineOf(component).Name, revision: f.Revision,
		clusters: map[string]known{}, frozen: map[string]string{}, asks: map[string]*v1alpha1.Stage{}, jobs: f.PipelineOf(component).Jobs,
	}
	if in.stages, err = Stages(f, component); err != nil {
		return in, thaw, err
	}
	for _, stage := range f.PipelineOf(component).Stages {
		in.asks[stage.Spec.Name] = &stage.Spec
	}
	now := l.now()
	for _, stage := range in.stages {
		for _, name := range stage.Clusters {
			cluster := f.Cluster(name)
			d := cluster.Delivery(component)
			if d == nil || d.Version == nil { // broken: its target is unknown
				in.clusters[name] = known{why: "its files in git have problems: run keelson validate"}
				continue
			}
			inputs, err := l.inputsOf(cluster, d)
			if err != nil {
				return in, thaw, err
			}
			in.clusters[name] = knownOf(cluster, d, inputs, seen[name])
			reason, until := f.Frozen(cluster, component, now)
			if reason != "" {
				in.frozen[name] = reason
			}
			if !until.IsZero() && (thaw.IsZero() || until.Before(thaw)) {
				thaw = until
			}
		}
	}
	return in, thaw, nil
}

// inputsOf is [InputsOf], computed once for each distinct delivery.
func (l *Loop) inputsOf(c *registry.Cluster, d *registry.Delivery) (string, error) {
	if inputs, known := l.inputs[d]; known {
		return inputs, nil
	}
	inputs, known := l.inputsBefore[d]
	if !known {
		var err error
		if inputs, err = InputsOf(c, d); err != nil {
			return "", err
		}
	}
	l.inputs[d] = inputs
	return inputs, nil
}

// hide redacts secrets in a status.
func (l *Loop) hide(s *v1alpha1.RolloutStatus) {
	s.Because = l.redactor.Text(s.Because)
	for i := range s.Clusters {
		s.Clusters[i].Because = l.redactor.Text(s.Clusters[i].Because)
	}
	for i := range s.Stages {
		for j := range s.Stages[i].Checks {
			c := &s.Stages[i].Checks[j]
			c.Message = l.redactor.Text(c.Message)
		}
	}
	for i := range s.Timeline {
		s.Timeline[i].Message = l.redactor.Text(s.Timeline[i].Message)
	}
	for i := range s.Conditions {
		s.Conditions[i].Message = l.redactor.Text(s.Conditions[i].Message)
	}
}

// write stores a decision, if the Rollout is still unchanged.
func (l *Loop) write(ctx context.Context, was *v1alpha1.Rollout, component string, s step) error {
	next := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{
		Name: component, Namespace: v1alpha1.Namespace, Labels: map[string]string{v1alpha1.LabelComponent: component},
		Annotations: map[string]string{v1alpha1.AnnotationFleet: l.passed.Spec.Name},
	}}
	if was != nil {
		next = was.DeepCopy()
	} else if err := l.client.Create(ctx, next); err != nil {
		return fmt.Errorf("create Rollout %s: %w", component, err)
	}
	next.Status = s.status
	if err := l.client.Status().Update(ctx, next); err != nil {
		return fmt.Errorf("write Rollout %s: %w", component, err)
	}
	l.rollouts.wrote(next)
	l.record(next, s.events)
	return nil
}

// record logs and counts events. It records a Kubernetes Event for each event that is not about a
// single cluster.
func (l *Loop) record(r *v1alpha1.Rollout, events []Event) {
	for _, e := range events {
		text := l.redactor.Text(e.Message)
		l.log.Info("rollout", "component", r.Name, "stage", e.Stage, "cluster", e.Cluster, "event", text)
		l.metrics.happened(e)
		if e.Cluster != "" || l.events == nil {
			continue
		}
		recorder := l.events()
		if recorder == nil {
			continue
		}
		kind := corev1.EventTypeNormal
		if r.Status.Phase != v1alpha1.RolloutProgressing && r.Status.Phase != v1alpha1.RolloutComplete {
			kind = corev1.EventTypeWarning
		}
		if e.Stage != "" {
			text = "stage " + e.Stage + ": " + text
		}
		recorder.Event(r, kind, string(r.Status.Phase), text)
	}
}

// nowhere reports whether git has a component on no cluster. A cluster with broken files may have
// any component.
func nowhere(f *registry.Fleet, component string) bool {
	return !slices.ContainsFunc(f.Clusters, func(c *registry.Cluster) bool {
		return len(c.Problems) > 0 || c.Delivery(component) != nil
	})
}

// remove deletes the Rollout of a component without a pipeline, or without a cluster in git. If the
// component returned, an old Rollout would release clusters. Until then it would report a state
// that does not exist.
func (l *Loop) remove(ctx context.Context, r *v1alpha1.Rollout) error {
	l.log.Info("a component goes through no pipeline any more, or git has it on no cluster: its Rollout is deleted", "component", r.Name)
	err := l.client.Delete(ctx, r, client.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Rollout %s: %w", r.Name, err)
	}
	l.rollouts.set(r.Name, nil)
	return nil
}
