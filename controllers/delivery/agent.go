package delivery

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/controllers/delivery/hubstatus"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
	"github.com/keelson-io/keelson/controllers/probe"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	// debounce delays a reconcile, so that the events of one change are handled together.
	debounce = 50 * time.Millisecond
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
//
// Its fields are set before run, and each part guards its own state. The goroutine of run dials and
// pings, one goroutine takes components from the queue, and one goroutine reconciles one component.
type agent struct {
	name     string
	log      *slog.Logger
	now      func() time.Time
	redactor *redact.Redactor
	tracer   trace.TracerProvider // nil: no tracing
	limiters queue.Limiters
	bursts   *queue.BurstDetector
	metrics  *counted // set when the agent runs: before, the metrics of the previous agent may not be deleted yet
	// board shows which clusters are released; nil: this process works on a single cluster
	// (--cluster).
	board *rollout.Cache
	hub   statusWriter

	queue   *queue.Queue                       // of component names
	refused workqueue.TypedRateLimiter[string] // backoff for requests that the API server refused

	state     *clusterState
	conn      *connection
	first     *firstReconcile
	resolver  *resolver
	diagnoses *diagnoses
	checks    *checkJobs
	probes    *probe.Prober
}

// statusWriter is the part of a [hubstatus.Writer] that an agent uses.
type statusWriter interface {
	Publish(s *v1alpha1.DeliveryStatus, u hubstatus.Urgency) *v1alpha1.DeliveryStatus
	FlushDelayed(cluster string)
	Retract(cluster, component string)
	Shown(cluster string) []v1alpha1.DeliveryStatus
}

// newAgent makes an agent that writes records as session. moved is called when the connection leads
// to another server.
func newAgent(name string, session records.Writer, s shared, moved func(cluster string)) *agent {
	log := s.log.With("cluster", name)
	a := &agent{
		name: name, log: log, now: s.now, redactor: s.redactor, tracer: s.tracer, limiters: s.limiters, bursts: s.bursts,
		board: s.board, hub: s.writer, queue: queue.New(s.now, s.queued),
		refused: workqueue.NewTypedItemExponentialFailureRateLimiter[string](refusedFirst, refusedLast),
		state:   newClusterState(name, s.now, s.redactor), first: &firstReconcile{},
	}
	a.conn = &connection{
		name: name, log: log, now: s.now, moved: moved, reportCredentials: s.writer.Events().Credentials,
		schemas: s.schemas, session: session, redactor: s.redactor, limiters: s.limiters, user: a,
		doubts: make(chan struct{}, 1), dialSoon: make(chan struct{}, 1),
		connect: func(ctx context.Context) (*rest.Config, error) { return s.connect(ctx, a.state.connection()) },
	}
	if s.follow != nil {
		a.conn.follow = func(ctx context.Context, changed func()) { s.follow(ctx, a.state.connection(), changed) }
	}
	a.resolver = &resolver{
		cluster: name, log: log, now: s.now, renderer: s.renderer, earlier: s.earlier, wants: s.wants, board: a.board,
		later: a.queue.AddAfter, failed: a.conn.failed,
	}
	a.diagnoses = newDiagnoses(s.now, a.state.status, func() bool { return a.queue.Len() > 0 })
	a.checks = &checkJobs{
		cluster: name, log: log, redactor: s.redactor, wants: s.wants, board: a.board, snapshot: a.snapshot, queue: a.queue.Add, runs: checks{},
	}
	return a
}

// update stores a new revision, and queues the components that the revision may concern.
func (a *agent) update(f *registry.Fleet, cluster *registry.Cluster) {
	components, all := a.state.set(f, cluster)
	if all {
		a.queueAll()
	}
	for _, component := range components {
		a.queue.Add(component)
	}
	a.probes.Update(f, cluster)
}

// queueAll queues every component that is desired, has a status, or has a record.
func (a *agent) queueAll() {
	for _, name := range a.state.components() {
		a.queue.Add(name)
	}
}

// queueGoverned queues the components that go through a pipeline.
func (a *agent) queueGoverned() {
	for _, name := range a.state.governed() {
		a.queue.Add(name)
	}
}

// queueAfter implements [connectionUser].
func (a *agent) queueAfter(component string, after time.Duration) {
	if component == "" {
		a.queueAll()
		return
	}
	a.queue.AddAfter(component, after)
}

// connected implements [connectionUser]. The first reconcile ends when each component was reconciled.
func (a *agent) connected(ctx context.Context, l *link, recorded []string, leave func()) {
	a.state.add(recorded...)
	names := a.state.components()
	l.cache.Expect(names)
	a.first.begin(names, leave)
	a.checks.running.Go(func() { a.checks.find(ctx, l) })
}

// reachable implements [connectionUser].
func (a *agent) reachable(is bool) {
	if !is {
		a.first.end()
	}
	for _, name := range a.state.components() {
		a.queue.Forget(name)
	}
	a.queueAll()
}

// credentialsRenewed implements [connectionUser].
func (a *agent) credentialsRenewed() {
	for _, name := range a.state.components() {
		a.queue.Forget(name)
		a.refused.Forget(name)
	}
	a.queueAll()
}

// run works until the context ends, then finishes the work in progress.
func (a *agent) run(ctx context.Context, metrics *counted) {
	a.metrics, a.conn.metrics = metrics, metrics
	shown := a.hub.Shown(a.name)
	a.state.recall(shown)
	a.checks.recall(shown)
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { a.work(work) })
	wg.Go(func() { a.conn.followCredentials(ctx) })
	a.conn.dialUntilConnected(ctx)
	wg.Go(func() { a.probe(ctx) })
	a.conn.watchOver(ctx)
	defer queue.Drain(ctx, stop)()
	a.queue.ShutDownWithDrain()
	wg.Wait()
	stop()
	a.checks.running.Wait()
	a.conn.close()
}
