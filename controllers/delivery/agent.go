package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/controllers/lease"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	// workers is how many components of one cluster are worked on at once.
	workers = 4
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
	name     string
	log      *slog.Logger
	now      func() time.Time
	connect  func(context.Context) (*rest.Config, error)
	schemas  *applier.SchemaCache
	session  applier.Writer
	renderer renderer.Renderer
	past     *past
	wants    *applier.Wants
	turns    turns
	metrics  *metrics
	redactor *redact.Redactor
	// publish hears of every status that changed, and retract of what has none any
	// more.
	publish func(v1alpha1.DeliveryStatus, time.Duration)
	// published has the statuses of the cluster written that wait for others.
	published func(cluster string, after time.Duration)
	retract   func(cluster, component string)
	// shown is what the hub shows of the cluster's components.
	shown func(cluster string) []v1alpha1.DeliveryStatus

	queue   workqueue.TypedRateLimitingInterface[string] // of component names
	refused workqueue.TypedRateLimiter[string]           // of those that the API server refused

	doubts chan struct{} // a request was not answered

	crowded atomic.Bool // statuses wait until the queue is empty

	mu          sync.Mutex
	fleet       *registry.Fleet
	desired     *registry.Cluster
	link        *link
	unreachable error
	statuses    map[string]v1alpha1.DeliveryStatus
	// diagnoses of components that are not healthy.
	diagnoses map[string]diagnosis
	// unseen are the components that the first look is still to come to, and leave
	// ends the turn that was taken for it.
	unseen map[string]bool
	leave  func()
	// failedBefore: the cluster answered, and could not be learnt.
	failedBefore bool
	// pruning are the components that have all that is wanted, and only deletions
	// left to do. Nobody waits for those: they may wait for others.
	pruning map[string]bool
}

// link is a connection to the cluster.
type link struct {
	cluster *applier.Cluster
	cache   *liveCache
	// probe asks something small; any answer, a refusal too, shows that the API
	// server is there.
	probe func(context.Context) error
}

func newAgent(name string, c *Controller) *agent {
	a := &agent{
		name: name, log: c.log.With("cluster", name), now: c.now,
		schemas: c.schemas, redactor: c.redactor, renderer: c.renderer, past: c.past, wants: c.wants, turns: c.turns, metrics: c.metrics,
		publish: c.writer.publish, published: c.writer.flush, retract: c.writer.retract, shown: c.writer.shown,
		statuses: map[string]v1alpha1.DeliveryStatus{}, diagnoses: map[string]diagnosis{}, pruning: map[string]bool{}, doubts: make(chan struct{}, 1),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryLast)),
		refused: workqueue.NewTypedItemExponentialFailureRateLimiter[string](refusedFirst, refusedLast),
	}
	a.connect = func(ctx context.Context) (*rest.Config, error) {
		a.mu.Lock()
		spec := a.desired.Spec.Connection
		a.mu.Unlock()
		return c.connect(ctx, spec)
	}
	return a
}

// update takes in a new revision, and looks again at the components that it may
// concern.
func (a *agent) update(f *registry.Fleet, desired *registry.Cluster) {
	a.mu.Lock()
	was, same := a.desired, a.fleet != nil && reflect.DeepEqual(a.fleet.Spec, f.Spec)
	a.fleet, a.desired = f, desired
	var components []string
	all := !same
	if same && was != desired {
		components, all = concerned(was, desired, a.statuses)
	}
	a.mu.Unlock()
	if all {
		a.all()
	}
	for _, component := range components {
		a.queue.Add(component)
	}
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

// recall begins with what the hub shows, by whoever wrote it: when things changed,
// and not what they are. Of some components git and the cluster may know nothing any
// more.
func (a *agent) recall() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.shown(a.name) {
		s.Sync, s.Health = "", ""
		a.statuses[s.Component] = s
	}
}

// run works until the context ends, then finishes what it has begun.
func (a *agent) run(ctx context.Context) {
	a.recall()
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { a.work(work) })
	}
	a.connectUntil(ctx)
	a.watchOver(ctx)
	defer drain(ctx, stop)()
	a.queue.ShutDownWithDrain()
	wg.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.link != nil {
		a.link.cluster.Close()
	}
}

// connectUntil links to the cluster, trying until it works or the context ends.
func (a *agent) connectUntil(ctx context.Context) {
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryLast)
	for {
		err := a.dial(ctx)
		if err == nil {
			a.reached(nil)
			a.all()
			return
		}
		if ctx.Err() != nil {
			return
		}
		a.log.Warn("cannot connect", "error", err)
		a.reached(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff.When("")):
		}
	}
}

func (a *agent) dial(ctx context.Context) error {
	config, err := a.connect(ctx)
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	config = rest.CopyConfig(config)
	config.Wrap(a.observe)
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	live := newLiveCache(ctx, dyn, a.now)
	probe, err := newProbe(config)
	if err != nil {
		return err
	}
	if err := probe(ctx); err != nil { // or it would hold up others
		return fmt.Errorf("connection: %w", err)
	}
	cluster, err := applier.New(applier.Options{Name: a.name, Config: config, Schemas: a.schemas, Reader: live, Writer: a.session, Redactor: a.redactor})
	if err != nil {
		return err
	}
	live.changed, live.later, live.doubt = a.changed, a.queue.AddAfter, a.doubt
	live.schemaChanged = func(group string) {
		relearn := func() { cluster.Rediscover(group); a.all() }
		relearn()
		time.AfterFunc(publishLag, relearn)
	}
	turn := a.turns.first
	if a.failedBefore {
		turn = a.turns.second
	}
	leave, err := turn.take(ctx)
	if err != nil {
		return err
	}
	recorded, err := a.learn(ctx, config, live, cluster)
	if a.failedBefore = err != nil; err != nil {
		leave()
		return err
	}
	a.mu.Lock()
	a.link = &link{cluster: cluster, cache: live, probe: probe}
	for _, name := range recorded {
		if _, ok := a.statuses[name]; !ok {
			a.statuses[name] = v1alpha1.DeliveryStatus{Cluster: a.name, Component: name}
		}
	}
	a.mu.Unlock()
	a.look(leave)
	return nil
}

// learn makes a cluster ready, and returns the components that have a record there.
func (a *agent) learn(ctx context.Context, config *rest.Config, live *liveCache, cluster *applier.Cluster) ([]string, error) {
	if err := cluster.Prepare(ctx); err != nil {
		return nil, err
	}
	recorded, err := cluster.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	return recorded, a.watchRecords(ctx, config, cluster, live.gate)
}

func (a *agent) work(ctx context.Context) {
	for {
		component, shutdown := a.queue.Get()
		if shutdown {
			return
		}
		if leave, err := a.turns.look.take(ctx); err == nil {
			a.reconcile(ctx, component)
			leave()
		}
		a.queue.Done(component)
	}
}

// reconcile looks at one component: what an attempt finds becomes its status.
func (a *agent) reconcile(ctx context.Context, component string) {
	started := a.now()
	result, err := a.attempt(ctx, component)
	defer a.seen(component)
	a.mu.Lock()
	before := a.statuses[component]
	if result.connecting && len(before.Conditions) > 0 {
		a.mu.Unlock()
		return // nothing is known that the hub does not show
	}
	before.Cluster, before.Component = a.name, component
	status := redacted(a.redactor, next(before, result, a.now()))
	a.statuses[component] = status
	pruning := result.pruning && !a.pruning[component]
	a.pruning[component] = result.pruning
	if result.gone {
		delete(a.statuses, component)
	}
	a.mu.Unlock()
	if result.gone {
		a.log.Info("nothing is left of it", "component", component)
		a.retract(a.name, component)
		return
	}

	if first := before.Sync == "" && status.Sync == v1alpha1.SyncProgressing; !first &&
		(before.Sync != status.Sync || before.Health != status.Health) {
		a.log.Info("delivery", "component", component, "version", status.Version,
			"sync", status.Sync, "health", status.Health, "message", status.Message)
		a.dependents(component)
	} else if pruning {
		a.dependents(component)
	}
	if o := result.outcome; o.Created+o.Updated+o.Deleted > 0 {
		a.log.Info("applied", "component", component, "created", o.Created, "updated", o.Updated,
			"restored", o.Restored, "deleted", o.Deleted, "took", a.now().Sub(started).Round(time.Millisecond))
		a.metrics.applied(a.name, o, a.now().Sub(started))
	}
	a.tell(status)
	if result.planned && status.Health == v1alpha1.HealthProgressing {
		a.queue.AddAfter(component, result.timeout+time.Second) // nothing else would tell that it takes too long
	}
	if err != nil && !errors.Is(err, applier.ErrStale) {
		a.log.Warn("delivery failed", "component", component, "error", err)
	}
	for _, from := range result.outcome.TakenFrom {
		a.queue.Add(from) // it has fewer objects by now, or none
	}
	a.again(component, result.outcome.Again, err)
}

// tell publishes a status: trouble soon, and what goes well, or is on its way, when
// no component waits for its turn any more.
func (a *agent) tell(s v1alpha1.DeliveryStatus) {
	passing := s.Sync == v1alpha1.SyncSynced || s.Sync == v1alpha1.SyncProgressing || s.Sync == v1alpha1.SyncWaiting
	if busy := a.queue.Len() > 0; busy && passing {
		a.publish(s, patience)
		a.crowded.Store(true)
		return
	}
	a.publish(s, collect)
	if a.queue.Len() == 0 && a.crowded.Swap(false) {
		a.published(a.name, collect)
	}
}

// again queues a component once more, where that may help and nothing else would.
func (a *agent) again(component string, after time.Duration, err error) {
	if err == nil || !applier.Refused(err) {
		a.refused.Forget(component)
	}
	switch wait := applier.RetryAfter(err); {
	case err == nil:
		a.queue.Forget(component)
		if after > 0 {
			a.queue.AddAfter(component, after)
		}
	case applier.Refused(err):
		a.queue.AddAfter(component, a.refused.When(component))
	case errors.Is(err, lease.ErrLost): // until it is renewed, or this process ends
		a.queue.AddAfter(component, unheld)
	case wait > 0:
		a.queue.AddAfter(component, min(wait, retryLast))
	case after > 0 && errors.As(err, new(*applier.HookError)): // it says what passes until then
		a.queue.AddAfter(component, after)
	default:
		a.queue.AddRateLimited(component)
	}
}

// dependents looks again at the components that wait for this one: that depend on
// it, or that go after it.
func (a *agent) dependents(component string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := a.desired.Delivery(component); d != nil && d.Absent && d.Version != nil {
		for _, on := range d.Version.Spec.DependsOn {
			a.queue.Add(on)
		}
	}
	for _, d := range a.desired.Deliveries {
		if d.Version != nil && slices.Contains(d.Version.Spec.DependsOn, component) {
			a.queue.Add(d.Component)
		}
	}
}

// snapshot is what an attempt works with.
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

// attempt takes one component through its stages and stops at the first that
// can't go on. The error asks for another try; the attempt holds either way.
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
	switch {
	case len(d.Problems) > 0:
		return t.stop(v1alpha1.SyncBlocked, problemsMessage(d.Problems)), nil
	case s.unreachable != nil:
		return t.stop(silent(s.unreachable), s.unreachable.Error()), nil //nolint:nilerr // a probe finds out when to go on
	case s.link == nil:
		t.connecting = true
		return t.stop(v1alpha1.SyncProgressing, "connecting"), nil
	case d.Absent:
		return a.absent(ctx, s, t)
	}
	on, why := a.waitsFor(d)
	waiting := fmt.Sprintf("waits for %s, which is %s", on, why)
	prepared, t, err := a.prepare(ctx, s, t)
	switch {
	case prepared == nil && on != "" && err != nil:
		// It may fail for want of what it waits for, a CRD; it is looked at
		// again when that is there.
		return t.stop(v1alpha1.SyncWaiting, waiting), nil //nolint:nilerr // no retry: see above
	case prepared == nil:
		return t, err
	}
	t.planned, t.plan, t.health, t.applied = true, prepared.Plan, prepared.Health, prepared.Applied
	switch {
	case prepared.Settled():
		t.sync, t.message = syncOf(t.plan)
		t.diagnosis = a.diagnose(ctx, s, prepared, t)
		return t, nil
	case d.Paused || s.cluster.Spec.Paused:
		return t.stop(v1alpha1.SyncPaused, "paused in git: "+t.plan.Summary()), nil
	case on != "":
		return t.stop(v1alpha1.SyncWaiting, waiting), nil
	}
	return a.apply(ctx, s, prepared, t)
}

// diagnosis is why a component is not healthy, and of what that was said.
type diagnosis struct{ about, text string }

// diagnose says why a component is not healthy, once that has lasted too long or
// waiting does not help. It asks the cluster once for each way of being unhealthy.
func (a *agent) diagnose(ctx context.Context, s snapshot, p *applier.Prepared, t attempt) string {
	component := s.delivery.Component
	health, worst := applier.Worst(t.health)
	about := t.targetHash + " " + worst
	a.mu.Lock()
	late := waited(a.statuses[component], a.now()) > t.timeout
	known := a.diagnoses[component]
	if health == v1alpha1.HealthHealthy {
		delete(a.diagnoses, component)
	}
	a.mu.Unlock()
	switch {
	case health == v1alpha1.HealthHealthy, health != v1alpha1.HealthDegraded && !late:
		return ""
	case known.about == about:
		return known.text
	}
	text := s.link.cluster.Diagnose(ctx, p)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.diagnoses[component] = diagnosis{about, text}
	return text
}

// prepare renders and plans; the plan is nil when the attempt ends here.
func (a *agent) prepare(ctx context.Context, s snapshot, t attempt) (*applier.Prepared, attempt, error) {
	d := s.delivery
	target, t, err := a.render(ctx, s, t)
	if target == nil {
		return nil, t, err
	}
	t.targetHash = target.Hash
	want, t, err := a.want(ctx, s, target, t)
	if err != nil {
		if t.sync == v1alpha1.SyncBlocked {
			return nil, t, nil
		}
		return nil, t, err
	}
	if t.pin == nil {
		a.warn(d, target)
	}
	want.Others = a.others(s, d)
	prepared, err := s.link.cluster.Plan(ctx, want)
	if err != nil {
		if errors.As(err, new(*applier.TagMovedError)) || errors.As(err, new(*applier.EmptyTargetError)) ||
			errors.As(err, new(*applier.MalformedSecretError)) {
			return nil, t.stop(v1alpha1.SyncBlocked, err.Error()), nil
		}
		return nil, t.stop(a.failed(), err.Error()), err
	}
	return prepared, t, nil
}

// render renders a delivery; the target is nil when the attempt ends here.
func (a *agent) render(ctx context.Context, s snapshot, t attempt) (*renderer.Target, attempt, error) {
	d := s.delivery
	capabilities, err := s.link.cluster.Capabilities(ctx)
	if err != nil {
		return nil, t.stop(a.failed(), err.Error()), err
	}
	target, err := a.renderer.Render(ctx, renderer.Request{
		Version: d.Version, Values: d.Values, ImageMirrors: s.cluster.Spec.ImageMirrors, Capabilities: capabilities,
	})
	if err == nil {
		return target, t, nil
	}
	// The chart or its values are wrong: only git can mend that.
	var wrong *renderer.Error
	if errors.As(err, &wrong) && !wrong.Transient {
		return nil, t.stop(v1alpha1.SyncBlocked, err.Error()), nil
	}
	return nil, t.stop(v1alpha1.SyncFailed, err.Error()), err
}

// warn logs what a new render has to say.
func (a *agent) warn(d *registry.Delivery, target *renderer.Target) {
	a.mu.Lock()
	known := a.statuses[d.Component].TargetHash == target.Hash
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
	t.outcome, err = s.link.cluster.Apply(ctx, p, applier.ApplyOptions{Now: a.now(), Timeout: t.timeout})
	t.health = t.outcome.Health
	switch {
	case errors.Is(err, applier.ErrStale):
		return t.stop(v1alpha1.SyncProgressing, "an object changed meanwhile; planning again"), err
	case err != nil:
		return t.stop(a.failed(), err.Error()), err
	}
	t.sync, t.message = syncOf(t.plan)
	t.pruning = t.sync == v1alpha1.SyncProgressing && p.OnlyDeletions()
	if t.sync == v1alpha1.SyncSynced {
		t.applied = t.version
		if t.pin != nil {
			t.applied = t.pin.Version
		}
	}
	return t, nil
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

// failed tells a refusal from a server that does not answer.
func (a *agent) failed() v1alpha1.Sync {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.unreachable != nil {
		return v1alpha1.SyncUnreachable
	}
	return v1alpha1.SyncFailed
}

// silent tells a server that answered with a refusal from one that did not.
func silent(err error) v1alpha1.Sync {
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return v1alpha1.SyncFailed
	}
	return v1alpha1.SyncUnreachable
}

// waitsFor returns the first dependency that is not healthy at what git wants
// of it now.
func (a *agent) waitsFor(d *registry.Delivery) (string, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range d.Version.Spec.DependsOn {
		s := a.statuses[name]
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

func problemsMessage(ps registry.Problems) string {
	message := ps[0].Error()
	if more := len(ps) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more: keelson validate lists them)", more)
	}
	return message
}

// known returns the statuses of all components.
func (a *agent) known() []v1alpha1.DeliveryStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.statuses))
}
