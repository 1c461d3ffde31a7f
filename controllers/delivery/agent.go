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
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/controllers/delivery/hubstatus"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
	"github.com/keelson-io/keelson/controllers/probe"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	// settle delays a reconcile, so that the events of one change are handled together.
	settle = 50 * time.Millisecond
	// refusedFirst and refusedLast bound the backoff after the API server refused a request. A
	// webhook or access rights may change without any event.
	refusedFirst = 5 * time.Second
	refusedLast  = 45 * time.Second
	// unheld is the wait for the renewal of this process's Lease.
	unheld = time.Second
	// publishLag is longer than an API server takes to publish the schema of a changed CRD. Until
	// then the API server returns the old schema.
	publishLag = 5 * time.Second
)

// agent reconciles one cluster. Agents share only caches, the board and limiters with a longest
// hold, so that a slow or dead cluster delays no other cluster.
type agent struct {
	name    string
	log     *slog.Logger
	now     func() time.Time
	connect func(context.Context) (*rest.Config, error)
	// follow calls changed when the result of connect may have changed; nil: no notification.
	follow func(ctx context.Context, changed func())
	// moved is called when the connection leads to another server. reportCredentials is called with a
	// problem of the connection's credentials; an empty text means that the problem is over.
	moved             func(cluster string)
	reportCredentials func(cluster, text string)
	schemas           *applier.SchemaCache
	session           records.Writer
	renderer          renderer.Renderer
	tracer            trace.TracerProvider // nil: no tracing
	past              *past
	wants             *applier.DesiredBuilder
	limiters          queue.Limiters
	bursts            *queue.BurstDetector
	metrics           *counted // set when the agent runs: before, the metrics of the previous agent may not be deleted yet
	redactor          *redact.Redactor
	// board shows which clusters are released; nil: this process works on a single cluster
	// (--cluster).
	board *rollout.Cache
	// publish takes every changed status, and returns the status to hold. retract takes components
	// that have no status any more.
	publish func(*v1alpha1.DeliveryStatus, hubstatus.Urgency) *v1alpha1.DeliveryStatus
	// flushDelayed writes the delayed statuses of the cluster.
	flushDelayed func(cluster string)
	retract      func(cluster, component string)
	// shown returns the statuses of the cluster's components that are in the hub.
	shown func(cluster string) []v1alpha1.DeliveryStatus

	probes *probe.Prober

	queue   *queue.Queue                       // of component names
	refused workqueue.TypedRateLimiter[string] // backoff for requests that the API server refused

	doubts   chan struct{} // signals a request without an answer
	dialSoon chan struct{} // signals changed credentials while there is no connection yet

	checking sync.WaitGroup // goroutines that run the Jobs of checks

	mu          sync.Mutex
	fleet       *registry.Fleet
	desired     *registry.Cluster
	link        *link
	unreachable error
	aside       string // a note on the connection, shown in every status
	statuses    statuses
	clocks      clocks
	// diagnoses holds the diagnosis of each component that is not healthy.
	diagnoses map[string]diagnosis
	// podLooks holds the last check of the pods of each component that is progressing.
	podLooks map[string]podLook
	// unseen are the components whose first reconcile is outstanding. leave releases the slot that
	// was taken for the first reconcile of the cluster.
	unseen map[string]bool
	leave  func()
	// failedBefore: the cluster answered a probe, but reading its state failed.
	failedBefore bool
	checks       checks
	// pruning are the components that have all desired objects, and only deletions left to do. A
	// dependent does not wait for these deletions: they may wait for the dependent.
	pruning map[string]bool
}

func newAgent(name string, c *Controller) *agent {
	a := &agent{
		name: name, log: c.log.With("cluster", name), now: c.now,
		schemas: c.schemas, redactor: c.redactor, board: c.rollouts.board, renderer: c.renderer, tracer: c.tracer, past: c.past, wants: c.wants, limiters: c.limiters, bursts: c.bursts,
		publish: c.writer.Publish, flushDelayed: c.writer.FlushDelayed, retract: c.writer.Retract, shown: c.writer.Shown,
		moved: c.movedTo, reportCredentials: c.writer.Events().Credentials,
		statuses: statuses{}, diagnoses: map[string]diagnosis{}, podLooks: map[string]podLook{}, pruning: map[string]bool{}, checks: checks{}, doubts: make(chan struct{}, 1), dialSoon: make(chan struct{}, 1),
		queue:   queue.New(c.now, c.metrics.observeWait),
		refused: workqueue.NewTypedItemExponentialFailureRateLimiter[string](refusedFirst, refusedLast),
	}
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

// update stores a new revision, and queues the components that the revision may concern.
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

// all queues every component that is desired, has a status, or has a record.
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

// changed queues the component of a changed object; "" queues every component.
func (a *agent) changed(component string) {
	if component == "" {
		a.all()
		return
	}
	a.queue.AddAfter(component, settle)
}

// run works until the context ends, then finishes the work in progress.
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
	defer queue.Drain(ctx, stop)()
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

// allStatuses returns the statuses of all components.
func (a *agent) allStatuses() []*v1alpha1.DeliveryStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.statuses))
}
