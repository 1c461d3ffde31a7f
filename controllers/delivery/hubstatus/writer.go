// Package hubstatus shows in the hub what runs on the clusters: it writes Deliveries and events.
//
// A [Writer] writes only changes, and repairs what another client changed. At rest it costs one watch
// of metadata.
package hubstatus

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/span"
	"github.com/keelson-io/keelson/components"
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

// Urgency says how long a status may wait before it is written.
type Urgency uint8

// The values of [Urgency].
const (
	// Prompt: the status is written after collect.
	Prompt Urgency = iota
	// Delayed: the status waits until its cluster's queue is empty, see patience.
	Delayed
)

// Options are the settings of a [Writer]. All are required except Tracer and PageSize.
type Options struct {
	// Hub is the cluster that holds the Deliveries.
	Hub *rest.Config
	// Redactor filters everything that is written to the hub.
	Redactor *redact.Redactor
	Log      *slog.Logger
	Now      func() time.Time
	// Tracer takes spans; nil: no tracing.
	Tracer trace.TracerProvider
	// OnWrite is called with the result of each write of a Delivery.
	OnWrite func(err error)
	// OnUnknown is called with Deliveries of the hub that this process neither wants nor wrote. They
	// have names, labels and annotations only.
	OnUnknown func(*v1alpha1.Delivery)
	// PageSize is how many Deliveries are read per request; 0: 500.
	PageSize int64
}

// Writer writes the Deliveries of the hub. It writes only changes, and of many changes to one
// Delivery the last.
//
// A Writer is safe for concurrent use. mu guards all fields below it. Several goroutines write, each
// another Delivery: the queue hands out a name once at a time.
type Writer struct {
	options Options
	client  client.Client
	events  *Events
	queue   *queue.Queue // of Delivery names

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
	// first holds the Deliveries of the first list, and version the list's resourceVersion.
	first   []*v1alpha1.Delivery
	version string
}

// New makes a writer without making a call.
func New(o Options) (*Writer, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1alpha1.AddToScheme, clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("hub: %w", err)
		}
	}
	c, err := client.New(o.Hub, client.Options{Scheme: scheme, Mapper: hubKinds()})
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	core, err := typedcorev1.NewForConfig(o.Hub)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	o.PageSize = cmp.Or(o.PageSize, hubPage)
	return &Writer{
		options: o, client: c, events: &Events{core: core, scheme: scheme, redactor: o.Redactor}, queue: queue.New(o.Now, func(time.Duration) {}),
		wanted: map[string]*v1alpha1.DeliveryStatus{}, written: map[string]*known{}, retracted: map[string]string{},
		waiting: map[string]map[string]bool{}, writing: map[string]int{}, idle: make(chan struct{}),
	}, nil
}

// Events returns the events that are written to the hub while the writer runs.
func (w *Writer) Events() *Events { return w.events }

// Age returns how many Deliveries wait to be written, and how long the first of them has waited
// whose turn has come.
func (w *Writer) Age() (n int, oldest time.Duration) {
	n, oldest = w.queue.Age()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, names := range w.waiting {
		n += len(names)
	}
	return n, oldest
}

// Prepare makes the hub serve Deliveries, and lists the existing ones. Their statuses are kept only
// if all is set: this process writes all of them.
func (w *Writer) Prepare(ctx context.Context, all bool) error {
	manifest, err := components.CRD("deliveries")
	if err != nil {
		return err
	}
	created, err := w.ServeCRD(ctx, manifest)
	if err != nil {
		return err
	}
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}
	err = w.client.Get(ctx, client.ObjectKeyFromObject(own), own)
	if apierrors.IsNotFound(err) { // read first: the right to create a namespace can't be limited by name
		err = w.client.Create(ctx, own)
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Namespace %s: %w", v1alpha1.Namespace, err)
	}
	if created {
		return nil // a new CRD has no Deliveries
	}
	var first []*v1alpha1.Delivery
	has := map[string]*known{}
	version, err := w.list(ctx, func(d *v1alpha1.Delivery, k *known) {
		first = append(first, marks(d))
		if all {
			has[d.Name] = k
		}
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first, w.version = first, version
	maps.Copy(w.written, has)
	return nil
}

// list calls each with every Delivery of the hub, page by page. All at once would take some 100 MB,
// of which little is kept. It returns the resourceVersion of the list.
func (w *Writer) list(ctx context.Context, each func(*v1alpha1.Delivery, *known), more ...client.ListOption) (version string, err error) {
	options := client.ListOptions{Namespace: v1alpha1.Namespace, Limit: w.options.PageSize}
	options.ApplyOptions(more)
	for {
		var page v1alpha1.DeliveryList
		if err := w.client.List(ctx, &page, &options); err != nil {
			return "", fmt.Errorf("list Deliveries: %w", err)
		}
		known := knownOf(page.Items)
		for i := range page.Items {
			each(&page.Items[i], &known[i])
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return page.ResourceVersion, nil
		}
	}
}

// Publish takes a status, which is written if it differs from the hub's. It returns the status to
// hold: the hub's, if both are equal.
func (w *Writer) Publish(s *v1alpha1.DeliveryStatus, u Urgency) *v1alpha1.DeliveryStatus {
	s = Redacted(w.options.Redactor, s)
	name := s.Cluster + "." + s.Component
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted[name] = s
	delete(w.retracted, name)
	if w.currentLocked(name) {
		w.wanted[name] = w.written[name].status
		return w.written[name].status
	}
	if u == Prompt {
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

// FlushDelayed writes the delayed statuses of a cluster.
func (w *Writer) FlushDelayed(cluster string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.waiting[cluster] {
		w.queue.AddAfter(name, collect)
	}
	delete(w.waiting, cluster)
}

// flush queues all statuses that are not in the hub, of one cluster, or ("") of all.
func (w *Writer) flush(cluster string) {
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
func (w *Writer) currentLocked(name string) bool {
	d, s := w.written[name], w.wanted[name]
	return d != nil && s != nil && (d.status == s || equality.Semantic.DeepEqual(d.status, s))
}

// Shown returns the statuses of a cluster as the hub has them.
func (w *Writer) Shown(cluster string) []v1alpha1.DeliveryStatus {
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

// Retract deletes the Delivery of a component that has no status any more.
func (w *Writer) Retract(cluster, component string) {
	name := cluster + "." + component
	w.mu.Lock()
	delete(w.wanted, name)
	w.retracted[name] = cluster // it may exist, or be in flight
	w.mu.Unlock()
	w.queue.Add(name)
}

// Run writes until the context ends, then writes what is queued.
func (w *Writer) Run(ctx context.Context) {
	defer w.events.start(ctx)()
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
	defer queue.Drain(ctx, stop)()
	w.flush("")
	w.queue.ShutDownWithDrain()
	<-done
}

func (w *Writer) work(ctx context.Context) {
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
			w.options.Log.Warn("cannot write status to the hub", "cluster", cluster, "component", component, "error", err)
			w.queue.AddRateLimited(name)
		} else {
			w.queue.Forget(name)
		}
		w.queue.Done(name)
	}
}

func (w *Writer) write(ctx context.Context, name string) error {
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
	w.events.stateChanged(kept.delivery(name), before)
	return nil
}

// send writes the status of a Delivery, if its resourceVersion is still that of was.
func (w *Writer) send(ctx context.Context, next, was *v1alpha1.Delivery) (err error) {
	ctx, s := span.Root(ctx, w.options.Tracer, "status")
	s.Set(span.Cluster, next.Status.Cluster)
	s.Set(span.Component, next.Status.Component)
	s.Set(span.Revision, next.Status.Revision)
	s.Set(span.Sync, string(next.Status.Sync))
	defer func() {
		s.End(err)
		w.options.OnWrite(err)
	}()
	return w.client.Status().Patch(ctx, next, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})) //nolint:wrapcheck // the caller says what for
}

func (w *Writer) remove(ctx context.Context, name string) error {
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

func (w *Writer) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.written, name)
}

// identify returns cluster and component of a queued Delivery.
func (w *Writer) identify(name string) (cluster, component string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	cluster = w.ofLocked(name)
	return cluster, strings.TrimPrefix(name, cluster+".")
}

// ofLocked returns the cluster of a queued Delivery.
func (w *Writer) ofLocked(name string) string {
	if s := w.wanted[name]; s != nil {
		return s.Cluster
	}
	return w.retracted[name]
}

// begin notes that a Delivery is being written until done is called.
func (w *Writer) begin(name string) (done func()) {
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

// SetFleet sets the name of the fleet whose Deliveries are written.
func (w *Writer) SetFleet(fleet string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fleet = fleet
}

// Discard deletes a Delivery of a cluster that no process works on any more.
func (w *Writer) Discard(d *v1alpha1.Delivery) {
	w.mu.Lock()
	delete(w.wanted, d.Name)
	w.retracted[d.Name] = d.Labels[v1alpha1.LabelCluster]
	w.mu.Unlock()
	w.queue.Add(d.Name)
}

// createIn creates a Delivery after its namespace was deleted from the hub. cause is the error of
// the first attempt.
func (w *Writer) createIn(ctx context.Context, d *v1alpha1.Delivery, cause error) error {
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}
	if err := w.client.Create(ctx, own); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return cause
		}
		return fmt.Errorf("%w; create Namespace %s: %w", cause, v1alpha1.Namespace, err)
	}
	w.options.Log.Warn("the namespace of the hub was gone; it was made anew", "namespace", v1alpha1.Namespace)
	return w.client.Create(ctx, d) //nolint:wrapcheck // the caller says what for
}

// TakeFirst returns the Deliveries of the first list, once.
func (w *Writer) TakeFirst() []*v1alpha1.Delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.first
	w.first = nil
	return first
}
