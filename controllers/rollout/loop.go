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

// Options are the settings of a [Loop]; all are required but Events.
type Options struct {
	Board    *Board
	Probes   *probe.Store // results of probes
	Log      *slog.Logger
	Now      func() time.Time
	Redactor *redact.Redactor
	Metrics  *Metrics
	// Egress sends what checks ask servers.
	Egress http.RoundTripper
	// Events takes what people should see; nil: nobody does.
	Events func() record.EventRecorder
}

// Loop carries the changes of a fleet from cluster to cluster. One process of a fleet
// runs it; two that did would get in each other's way, and let nobody go twice: what
// they write names the version that they decided from.
type Loop struct {
	board    *Board
	client   client.Client
	sights   *sights
	log      *slog.Logger
	now      func() time.Time
	redactor *redact.Redactor
	metrics  *Metrics
	events   func() record.EventRecorder
	asker    *asker

	mu    sync.Mutex
	fleet *registry.Fleet // nil: nothing was read yet
	// inputs are hashes of what git says of deliveries, and those of the revision
	// before; the same pointer says the same.
	inputs, inputsBefore map[*registry.Delivery]string
	dirty                map[string]bool // components to be looked at
	all                  bool            // all are
	soon                 chan struct{}
	wakes                map[string]time.Time // by component
	passed               *registry.Fleet      // the last that was looked at
}

// NewLoop prepares a loop; it makes no call.
func NewLoop(o Options) *Loop {
	l := &Loop{
		board: o.Board, client: o.Board.client, log: o.Log, now: o.Now, redactor: o.Redactor, metrics: o.Metrics, events: o.Events,
		inputs: map[*registry.Delivery]string{}, dirty: map[string]bool{}, soon: make(chan struct{}, 1), wakes: map[string]time.Time{},
	}
	l.asker = newAsker(o.Now, o.Egress)
	l.asker.probes = o.Probes
	l.sights = &sights{client: o.Board.client, changed: l.Look}
	return l
}

// Look has a component looked at; "": all of them. It returns at once.
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

// Fleet says what git wants now.
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
	defer l.sights.follow(ctx, nil)
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

// pass looks at the components that something new may be decided of, and returns when
// time alone has the next one looked at.
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
	l.sights.follow(ctx, components)
	rollouts := l.board.all()
	if rollouts == nil {
		return time.Time{} // who knows them calls
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
	l.metrics.count(l.board.all(), fleet)
	for _, at := range l.wakes {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// due are the components to be looked at now, in order: those with a pipeline, and
// those that have a Rollout of before.
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

// step takes one component as far as may be, and returns when to look again.
func (l *Loop) step(ctx context.Context, fleet *registry.Fleet, component string) (wake time.Time, err error) {
	was, err := l.board.named(component)
	if err != nil {
		return time.Time{}, err
	}
	pipeline := fleet.PipelineOf(component)
	switch {
	case was != nil && !isOf(was, fleet):
		l.log.Warn("the hub has a Rollout of that name of another fleet: no cluster is let go", "component", component, "fleet", was.Annotations[v1alpha1.AnnotationFleet])
		return time.Time{}, nil
	case was != nil && (pipeline == nil || nowhere(fleet, component)):
		return time.Time{}, l.remove(ctx, was)
	case pipeline == nil, len(pipeline.Problems) > 0:
		return time.Time{}, nil // nobody is let go by what is broken
	}
	seen, known := l.sights.at(component)
	if !known {
		return time.Time{}, nil // who knows calls
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
		in.checks = l.asker.ask(ctx, s.questions, asking{fleet, pipeline, component, seen, func() { l.Look(component) }})
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
	if len(s.events) > 0 { // what was written may be what the next step waits for
		l.Look(component)
	}
	return thaw, nil
}

// gather is what is known of a component, and when a freeze begins or ends.
func (l *Loop) gather(f *registry.Fleet, component string, seen map[string]*sight) (in input, thaw time.Time, err error) {
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
			if d == nil || d.Version == nil { // broken, so it can't be told
				in.clusters[name] = known{why: "what git says of it is broken: keelson validate"}
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

// inputsOf is [InputsOf], once for each delivery that says something else.
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

// hide takes secrets out of what is to be written.
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

// write writes what was decided, if the Rollout is still as it was.
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
	l.board.wrote(next)
	l.tell(next, s.events)
	return nil
}

// tell logs what happened, and announces what concerns more than one cluster.
func (l *Loop) tell(r *v1alpha1.Rollout, events []Event) {
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

// nowhere reports whether git has a component on no cluster. What a cluster has whose files
// are broken isn't known.
func nowhere(f *registry.Fleet, component string) bool {
	return !slices.ContainsFunc(f.Clusters, func(c *registry.Cluster) bool {
		return len(c.Problems) > 0 || c.Delivery(component) != nil
	})
}

// remove deletes the Rollout of a component that goes through no pipeline any more, or that
// git has on no cluster: it would let clusters go, were there one again, and until then it
// would tell of what is not there.
func (l *Loop) remove(ctx context.Context, r *v1alpha1.Rollout) error {
	l.log.Info("a component goes through no pipeline any more, or git has it on no cluster: its Rollout is deleted", "component", r.Name)
	err := l.client.Delete(ctx, r, client.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Rollout %s: %w", r.Name, err)
	}
	l.board.set(r.Name, nil)
	return nil
}
