package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	// writers is how many Deliveries are written at once.
	writers = 8
	// collect delays a status so that changes in quick succession are one write. A component that
	// is applied has several changes within a second.
	collect = 500 * time.Millisecond
	// Statuses without trouble wait while components of their cluster are queued, which need the
	// API servers more. They are written when the queue is empty, or after a random time from
	// patience to lastPatience. So a long queue shows progress, and the writes do not come all at
	// once.
	patience, longestDelay = 10 * time.Second, time.Minute
)

// urgency says how long a status may wait before it is written.
type urgency uint8

// The values of [urgency].
const (
	// prompt: the status is written after collect.
	prompt urgency = iota
	// patient: the status waits until its cluster's queue is empty, see patience.
	delayed
)

// writer writes the Deliveries of the hub. It writes only changes, and of many changes to one
// Delivery the last.
type writer struct {
	hub    *rest.Config
	client client.Client
	core   typedcorev1.CoreV1Interface
	scheme *runtime.Scheme
	// redactor filters everything that is written to the hub.
	redactor *redact.Redactor
	log      *slog.Logger
	now      func() time.Time
	events   record.EventRecorder
	queue    *queue.Queue // of Delivery names
	metrics  *metrics
	tracer   trace.TracerProvider // nil: no tracing

	mu      sync.Mutex
	wanted  map[string]*v1alpha1.DeliveryStatus
	written map[string]*known // as last read from, or written to, the hub
	// retracted maps the Deliveries to be deleted to their clusters.
	retracted map[string]string
	// waiting holds, by cluster, the Deliveries whose write is delayed.
	waiting map[string]map[string]bool
	// writing counts, by cluster, the Deliveries that are being written. idle is closed and
	// replaced when a write is done.
	writing map[string]int
	idle    chan struct{}
	fleet   string // the name of the fleet
	page    int64  // how many Deliveries are read per request
	// first holds the Deliveries of the first list, and version the list's resourceVersion.
	first   []*v1alpha1.Delivery
	version string
	// onUnknownDelivery is called with Deliveries of the hub that this process neither wants nor wrote.
	onUnknownDelivery func(*v1alpha1.Delivery)
}

func newWriter(o Options, m *metrics) (*writer, error) {
	hub, log, now := o.Hub, o.Log, o.Now
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1alpha1.AddToScheme, clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("hub: %w", err)
		}
	}
	c, err := client.New(hub, client.Options{Scheme: scheme, Mapper: hubKinds()})
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	core, err := typedcorev1.NewForConfig(hub)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return &writer{
		metrics: m, tracer: o.Tracer, queue: queue.New(now, func(time.Duration) {}),
		redactor: o.Redactor, hub: hub, client: c, core: core, scheme: scheme, log: log, now: now,
		wanted: map[string]*v1alpha1.DeliveryStatus{}, written: map[string]*known{},
		retracted: map[string]string{}, page: hubPage, waiting: map[string]map[string]bool{}, writing: map[string]int{}, idle: make(chan struct{}),
	}, nil
}

// publish takes a status, which is written if it differs from the hub's. It returns the status to
// hold: the hub's, if both are equal.
func (w *writer) publish(s *v1alpha1.DeliveryStatus, u urgency) *v1alpha1.DeliveryStatus {
	s = redacted(w.redactor, s)
	name := s.Cluster + "." + s.Component
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted[name] = s
	delete(w.retracted, name)
	if w.currentLocked(name) {
		w.wanted[name] = w.written[name].status
		return w.written[name].status
	}
	if u == prompt {
		w.queue.AddAfter(name, collect)
		return s
	}
	if w.waiting[s.Cluster] == nil {
		w.waiting[s.Cluster] = map[string]bool{}
	}
	if !w.waiting[s.Cluster][name] {
		w.waiting[s.Cluster][name] = true
		w.queue.AddAfter(name, patience+rand.N(longestDelay-patience)) //nolint:gosec // no secret
	}
	return s
}

// release writes the delayed statuses of a cluster.
func (w *writer) release(cluster string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.waiting[cluster] {
		w.queue.AddAfter(name, collect)
	}
	delete(w.waiting, cluster)
}

// flush queues all statuses that are not in the hub, of one cluster, or ("") of all.
func (w *writer) flush(cluster string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.wanted {
		if cluster != "" && s.Cluster != cluster {
			continue
		}
		if !w.currentLocked(name) {
			w.queue.Add(name)
		}
	}
}

// currentLocked reports whether the hub has the wanted status of a Delivery.
func (w *writer) currentLocked(name string) bool {
	d, s := w.written[name], w.wanted[name]
	return d != nil && s != nil && (d.status == s || equality.Semantic.DeepEqual(d.status, s))
}

// shown returns the statuses of a cluster as the hub has them.
func (w *writer) shown(cluster string) []v1alpha1.DeliveryStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []v1alpha1.DeliveryStatus
	for _, d := range w.written {
		if d.cluster == cluster && d.component != "" {
			s := *d.status
			s.Cluster, s.Component = cluster, d.component
			out = append(out, s)
		}
	}
	return out
}

// retract deletes the Delivery of a component that has no status any more.
func (w *writer) retract(cluster, component string) {
	name := cluster + "." + component
	w.mu.Lock()
	delete(w.wanted, name)
	w.retracted[name] = cluster // it may exist, or be in flight
	w.mu.Unlock()
	w.queue.Add(name)
}

// redacted returns a status without secrets, whose texts about rules are bounded. It redacts before
// it cuts: a part of a secret would not be recognised.
func redacted(redactor *redact.Redactor, s *v1alpha1.DeliveryStatus) *v1alpha1.DeliveryStatus {
	clean := func(text *string) bool { return redactor.Text(*text) == *text }
	fits := func(text *string) bool { return short(*text) == *text }
	if !slices.ContainsFunc(textsOf(s), func(text *string) bool { return !clean(text) }) &&
		!slices.ContainsFunc(ruleTextsOf(s), func(text *string) bool { return !fits(text) }) {
		return s // the usual case; no copy is held
	}
	s = s.DeepCopy()
	for _, text := range textsOf(s) {
		*text = redactor.Text(*text)
	}
	for _, text := range ruleTextsOf(s) {
		*text = short(*text)
	}
	return s
}

// ruleTextsOf returns the texts of a status that rules in git, or their messages, have written.
func ruleTextsOf(s *v1alpha1.DeliveryStatus) []*string {
	var texts []*string
	for i := range s.Held {
		texts = append(texts, &s.Held[i].Path, &s.Held[i].Rule, &s.Held[i].Because)
	}
	for i := range s.Warnings {
		texts = append(texts, &s.Warnings[i].Path, &s.Warnings[i].Rule, &s.Warnings[i].Because, &s.Warnings[i].Fix)
	}
	return texts
}

// textsOf returns the texts of a status that another party may have written.
func textsOf(s *v1alpha1.DeliveryStatus) []*string {
	texts := []*string{&s.Message}
	if s.Pinned != nil {
		texts = append(texts, &s.Pinned.Because, &s.Pinned.By)
	}
	texts = append(texts, ruleTextsOf(s)...)
	for i := range s.Checks {
		texts = append(texts, &s.Checks[i].Message)
	}
	for i := range s.Conditions {
		texts = append(texts, &s.Conditions[i].Message)
	}
	return texts
}

// run writes until the context ends, then writes what is queued.
func (w *writer) run(ctx context.Context) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: w.core.Events("")})
	w.mu.Lock()
	w.events = broadcaster.NewRecorder(w.scheme, corev1.EventSource{Component: v1alpha1.FieldManager})
	w.mu.Unlock()
	go w.keepUp(ctx, w.version)
	done := make(chan struct{})
	bounded, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() { w.work(bounded) })
		}
		wg.Wait()
	}()
	<-ctx.Done()
	defer drain(ctx, stop)()
	w.flush("")
	w.queue.ShutDownWithDrain()
	<-done
}

func (w *writer) work(ctx context.Context) {
	for {
		name, shutdown := w.queue.Get()
		if shutdown {
			return
		}
		done := w.begin(name)
		err := w.write(ctx, name)
		done()
		if err != nil {
			cluster, component := w.identify(name)
			w.log.Warn("cannot write status to the hub", "cluster", cluster, "component", component, "error", err)
			w.queue.AddRateLimited(name)
		} else {
			w.queue.Forget(name)
		}
		w.queue.Done(name)
	}
}

func (w *writer) write(ctx context.Context, name string) error {
	w.mu.Lock()
	s, was := w.wanted[name], w.written[name]
	current := w.currentLocked(name)
	_, retracted := w.retracted[name]
	fleet := w.fleet
	w.mu.Unlock()
	switch {
	case retracted:
		return w.remove(ctx, name)
	case s == nil:
		return nil // another process has the cluster now
	case current:
		return nil // the change was reverted before it was written
	}
	var d *v1alpha1.Delivery
	if was != nil {
		d = was.delivery(name)
	} else {
		d = &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: v1alpha1.Namespace,
			Labels:      map[string]string{v1alpha1.LabelCluster: s.Cluster, v1alpha1.LabelComponent: s.Component},
			Annotations: map[string]string{v1alpha1.AnnotationFleet: fleet},
		}}
		err := w.client.Create(ctx, d)
		if apierrors.IsNotFound(err) {
			err = w.createIn(ctx, d, err)
		}
		if apierrors.IsAlreadyExists(err) {
			err = w.client.Get(ctx, client.ObjectKeyFromObject(d), d)
		}
		if err != nil {
			return fmt.Errorf("create Delivery %s: %w", name, err)
		}
	}
	before := d.Status
	next := d.DeepCopy()
	next.Status = *s
	// With its resourceVersion: the previous process of the cluster may have a write in flight.
	err := w.send(ctx, next, d)
	if err != nil {
		// Another client wrote or deleted the Delivery, or the answer was lost. The retry creates
		// or reads it.
		w.forget(name)
		return fmt.Errorf("patch status of Delivery %s: %w", name, err)
	}
	kept := &knownOf([]v1alpha1.Delivery{*next})[0]
	kept.status = s // equal to the answer; one copy is held
	w.mu.Lock()
	w.written[name] = kept
	w.mu.Unlock()
	w.announce(kept.delivery(name), before)
	return nil
}

// known is the part of a Delivery of the hub that is kept, once per component and cluster. Its
// status is never changed in place.
type known struct {
	uid                types.UID
	version            string // its resourceVersion
	cluster, component string
	status             *v1alpha1.DeliveryStatus
}

// knownOf returns the kept parts of Deliveries that were read together, in common allocations. Go
// does not move objects: single ones among the garbage of a start would each keep a page of memory.
func knownOf(read []v1alpha1.Delivery) []known {
	type body struct {
		status v1alpha1.DeliveryStatus
		last   v1alpha1.DiffSummary
		ready  [1]metav1.Condition // nearly always the only condition
	}
	out, bodies := make([]known, len(read)), make([]body, len(read))
	var ids strings.Builder
	for i := range read {
		ids.WriteString(string(read[i].UID) + read[i].ResourceVersion)
	}
	rest := ids.String()
	for i := range read {
		d, b := &read[i], &bodies[i]
		b.status = shared(d.Status)
		b.status.Conditions = append(b.ready[:0], b.status.Conditions...)
		if last := b.status.LastDiff; last != nil {
			b.last = *last
			b.status.LastDiff = &b.last
		}
		out[i] = known{
			status: &b.status, cluster: once(d.Labels[v1alpha1.LabelCluster]), component: once(d.Labels[v1alpha1.LabelComponent]),
		}
		out[i].uid, rest = types.UID(rest[:len(d.UID)]), rest[len(d.UID):]
		out[i].version, rest = rest[:len(d.ResourceVersion)], rest[len(d.ResourceVersion):]
	}
	return out
}

// shared returns a status with interned texts: of thousands of statuses in a hub, most are equal.
func shared(s v1alpha1.DeliveryStatus) v1alpha1.DeliveryStatus {
	for _, text := range []*string{&s.Cluster, &s.Component, &s.Version, &s.AppliedVersion, &s.Revision, &s.TargetHash, &s.Message} {
		*text = once(*text)
	}
	s.Sync, s.Health = once(s.Sync), once(s.Health)
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions {
		c := &s.Conditions[i]
		c.Type, c.Status, c.Reason, c.Message = once(c.Type), once(c.Status), once(c.Reason), once(c.Message)
	}
	return s
}

// once returns the interned copy of a text.
func once[T ~string](text T) T { return unique.Make(text).Value() }

// delivery returns the known part as an object.
func (k *known) delivery(name string) *v1alpha1.Delivery {
	return &v1alpha1.Delivery{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: v1alpha1.Namespace, UID: k.uid, ResourceVersion: k.version,
			Labels: map[string]string{v1alpha1.LabelCluster: k.cluster, v1alpha1.LabelComponent: k.component},
		},
		Status: *k.status,
	}
}

func (w *writer) remove(ctx context.Context, name string) error {
	d := &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1alpha1.Namespace}}
	if err := w.client.Delete(ctx, d); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Delivery %s: %w", name, err)
	}
	w.forget(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.retracted, name)
	return nil
}

func (w *writer) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.written, name)
}

// identify returns cluster and component of a queued Delivery.
func (w *writer) identify(name string) (cluster, component string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	cluster = w.ofLocked(name)
	return cluster, strings.TrimPrefix(name, cluster+".")
}

// ofLocked returns the cluster of a queued Delivery.
func (w *writer) ofLocked(name string) string {
	if s := w.wanted[name]; s != nil {
		return s.Cluster
	}
	return w.retracted[name]
}

// begin notes that a Delivery is being written until done is called.
func (w *writer) begin(name string) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	cluster := w.ofLocked(name)
	delete(w.waiting[cluster], name)
	w.writing[cluster]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.writing[cluster]--; w.writing[cluster] == 0 {
			delete(w.writing, cluster)
		}
		close(w.idle)
		w.idle = make(chan struct{})
	}
}
