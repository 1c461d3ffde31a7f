package delivery

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/probe"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	// settle collects the events of one change before it is looked at.
	settle = 50 * time.Millisecond
	// retryFirst and retryLast bound the wait after a failure that may pass.
	retryFirst = 200 * time.Millisecond
	retryLast  = 30 * time.Second
	// refusedFirst and refusedLast bound the wait after a refusal: a webhook or
	// rights may change, and nothing tells.
	refusedFirst = 5 * time.Second
	refusedLast  = 45 * time.Second
	// unheld is the wait for this process's Lease to be renewed.
	unheld = time.Second
	// publishLag is longer than an API server takes to publish the schema of a
	// CRD that changed; until then it hands out the old one.
	publishLag = 5 * time.Second
	// drainTimeout is how long a stopping process finishes what it has begun.
	drainTimeout = 15 * time.Second
)

// agent works on one cluster. Nothing in it is shared with another cluster but
// renders and parsed schemas, so that a slow or dead cluster delays no other.
type agent struct {
	name    string
	log     *slog.Logger
	now     func() time.Time
	connect func(context.Context) (*rest.Config, error)
	// follow tells when what connect returns may have changed; nil: nobody tells.
	follow func(ctx context.Context, changed func())
	// moved hears that the connection leads to another server, and announce what is
	// wrong with its credentials.
	moved    func(cluster string)
	announce func(cluster, text string)
	schemas  *applier.SchemaCache
	session  applier.Writer
	renderer renderer.Renderer
	tracer   trace.TracerProvider // nil: nobody wants to know
	past     *past
	wants    *applier.Wants
	turns    turns
	rush     *rush
	metrics  *counted // since it runs: the one before may still have to be forgotten
	redactor *redact.Redactor
	// board shows who is let go; nil: this process knows of one cluster alone.
	board *rollout.Board
	// publish hears of every status that changed, and returns the one to hold; retract
	// hears of what has none any more.
	publish func(*v1alpha1.DeliveryStatus, urgency) *v1alpha1.DeliveryStatus
	// release has the statuses of the cluster written that wait for others.
	release func(cluster string)
	retract func(cluster, component string)
	// shown is what the hub shows of the cluster's components.
	shown func(cluster string) []v1alpha1.DeliveryStatus

	probes *probe.Prober

	queue   workqueue.TypedRateLimitingInterface[string] // of component names
	line    *waiting                                     // in it
	refused workqueue.TypedRateLimiter[string]           // of those that the API server refused

	doubts   chan struct{} // a request was not answered
	dialSoon chan struct{} // what the connection is made of changed before there was one

	checking sync.WaitGroup // those who bring the Jobs of checks to their end

	mu          sync.Mutex
	fleet       *registry.Fleet
	desired     *registry.Cluster
	link        *link
	unreachable error
	aside       string // what every status tells besides
	statuses    statuses
	clocks      clocks
	// diagnoses of components that are not healthy.
	diagnoses map[string]diagnosis
	// podLooks are those at components that are on their way.
	podLooks map[string]podLook
	// unseen are the components that the first look is still to come to, and leave
	// ends the turn that was taken for it.
	unseen map[string]bool
	leave  func()
	// failedBefore: the cluster answered, and could not be learnt.
	failedBefore bool
	checks       checks
	// pruning are the components that have all that is wanted, and only deletions
	// left to do. Nobody waits for those: they may wait for others.
	pruning map[string]bool
}

func newAgent(name string, c *Controller) *agent {
	a := &agent{
		name: name, log: c.log.With("cluster", name), now: c.now,
		schemas: c.schemas, redactor: c.redactor, board: c.rollouts.board, renderer: c.renderer, tracer: c.tracer, past: c.past, wants: c.wants, turns: c.turns, rush: c.rush,
		publish: c.writer.publish, release: c.writer.release, retract: c.writer.retract, shown: c.writer.shown,
		moved: c.movedTo, announce: c.writer.credentials,
		statuses: statuses{}, diagnoses: map[string]diagnosis{}, podLooks: map[string]podLook{}, pruning: map[string]bool{}, checks: checks{}, doubts: make(chan struct{}, 1), dialSoon: make(chan struct{}, 1),
		line:    &waiting{now: c.now, took: c.metrics.left},
		refused: workqueue.NewTypedItemExponentialFailureRateLimiter[string](refusedFirst, refusedLast),
	}
	a.queue = newQueue(a.line, retryFirst, retryLast)
	a.probes = c.prober(a)
	a.connect = func(ctx context.Context) (*rest.Config, error) {
		a.mu.Lock()
		spec := a.desired.Spec.Connection
		a.mu.Unlock()
		return c.connect(ctx, spec)
	}
	if c.follows != nil {
		a.follow = func(ctx context.Context, changed func()) {
			a.mu.Lock()
			spec := a.desired.Spec.Connection
			a.mu.Unlock()
			c.follows(ctx, spec, changed)
		}
	}
	return a
}

// update takes in a new revision, and looks again at the components that it may
// concern.
func (a *agent) update(f *registry.Fleet, desired *registry.Cluster) {
	a.mu.Lock()
	was, same := a.desired, a.fleet != nil && reflect.DeepEqual(a.fleet.Spec, f.Spec)
	a.clocks = a.clocks.start(was, desired, a.statuses, a.now())
	before := a.fleet
	a.fleet, a.desired = f, desired
	var components []string
	all := !same
	if same && was != desired {
		components, all = concerned(was, desired, a.statuses)
	}
	if same && !all {
		components = append(components, regoverned(before, f, desired, a.statuses)...)
	}
	a.mu.Unlock()
	if all {
		a.all()
	}
	for _, component := range components {
		a.queue.Add(component)
	}
	a.probes.Update(f, desired)
}

// all queues every component that is wanted, was wanted, or has a record.
func (a *agent) all() {
	for _, name := range a.components() {
		a.queue.Add(name)
	}
}

func (a *agent) components() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := make([]string, 0, len(a.statuses))
	for name := range a.statuses {
		names = append(names, name)
	}
	for _, d := range a.desired.Deliveries {
		names = append(names, d.Component)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// changed queues the component of an object that changed.
func (a *agent) changed(component string) {
	if component == "" {
		a.all()
		return
	}
	a.queue.AddAfter(component, settle)
}

// run works until the context ends, then finishes what it has begun.
func (a *agent) run(ctx context.Context) {
	a.recall()
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { a.work(work) })
	wg.Go(func() { a.follows(ctx) })
	a.connectUntil(ctx)
	wg.Go(func() { a.probe(ctx) })
	a.watchOver(ctx)
	defer drain(ctx, stop)()
	a.queue.ShutDownWithDrain()
	wg.Wait()
	stop()
	a.checking.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.link != nil {
		a.link.cluster.Close()
		a.link.line.Close()
	}
}

// known returns the statuses of all components.
func (a *agent) known() []*v1alpha1.DeliveryStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.statuses))
}
