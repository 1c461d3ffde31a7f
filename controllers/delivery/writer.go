package delivery

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/components"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	// crdTimeout bounds the wait for the hub to serve Deliveries.
	crdTimeout = time.Minute
	// collect is how long a status waits for what follows it at once: a component
	// that is applied has several within a second.
	collect = 500 * time.Millisecond
	// patience is how long good news waits while the components of its cluster
	// queue for their turn: until then they need the API servers more.
	patience = 10 * time.Second
)

// writer keeps the Deliveries of the hub. It writes what changed, and of many
// changes to one Delivery the last.
type writer struct {
	hub    *rest.Config
	client client.Client
	core   typedcorev1.CoreV1Interface
	scheme *runtime.Scheme
	// redactor stands before everything that is written to the hub.
	redactor *redact.Redactor
	log      *slog.Logger
	now      func() time.Time
	events   record.EventRecorder
	queue    workqueue.TypedRateLimitingInterface[string] // of Delivery names

	mu      sync.Mutex
	wanted  map[string]v1alpha1.DeliveryStatus
	written map[string]*v1alpha1.Delivery // as the hub answered
	// retracted are Deliveries to be deleted, with their clusters.
	retracted map[string]string
	// writing is the cluster of which a Delivery is being written; idle is closed,
	// and made anew, when that is done.
	writing string
	idle    chan struct{}
}

func newWriter(o Options) (*writer, error) {
	hub, log, now := o.Hub, o.Log, o.Now
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1alpha1.AddToScheme, clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("hub: %w", err)
		}
	}
	c, err := client.New(hub, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	core, err := typedcorev1.NewForConfig(hub)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return &writer{
		redactor: o.Redactor, hub: hub, client: c, core: core, scheme: scheme, log: log, now: now,
		wanted: map[string]v1alpha1.DeliveryStatus{}, written: map[string]*v1alpha1.Delivery{},
		retracted: map[string]string{}, idle: make(chan struct{}),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryLast)),
	}, nil
}

// prepare makes the hub serve Deliveries, and reads those that it has, if they are
// all this process's to write.
func (w *writer) prepare(ctx context.Context, all bool) error {
	manifests, err := components.CRDs()
	if err != nil {
		return err
	}
	for _, manifest := range manifests {
		if err := w.serve(ctx, manifest); err != nil {
			return err
		}
	}
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}
	err = w.client.Get(ctx, client.ObjectKeyFromObject(own), own)
	if apierrors.IsNotFound(err) { // who may create namespaces may create any
		err = w.client.Create(ctx, own)
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Namespace %s: %w", v1alpha1.Namespace, err)
	}
	list, err := w.list(ctx)
	if err != nil {
		return fmt.Errorf("list Deliveries: %w", err)
	}
	if !all {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range list.Items {
		w.written[list.Items[i].Name] = small(&list.Items[i])
	}
	return nil
}

// list reads the Deliveries. Discovery may lag behind a CRD that is established,
// and a client remembers what it discovered: each try has a new one.
func (w *writer) list(ctx context.Context) (v1alpha1.DeliveryList, error) {
	var list v1alpha1.DeliveryList
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, crdTimeout, true, func(ctx context.Context) (bool, error) {
		c, err := client.New(w.hub, client.Options{Scheme: w.scheme})
		if err != nil {
			return false, err //nolint:wrapcheck // the caller says what for
		}
		w.client = c
		err = c.List(ctx, &list, client.InNamespace(v1alpha1.Namespace))
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err //nolint:wrapcheck // as above
	})
	return list, err //nolint:wrapcheck // the caller says what for
}

// serve applies a CRD and waits until it is established.
func (w *writer) serve(ctx context.Context, manifest []byte) error {
	var u unstructured.Unstructured
	if err := yaml.Unmarshal(manifest, &u.Object); err != nil {
		return fmt.Errorf("decode a shipped CRD: %w", err)
	}
	err := w.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(&u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply CRD %s: %w", u.GetName(), err)
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, crdTimeout, true, func(ctx context.Context) (bool, error) {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := w.client.Get(ctx, client.ObjectKey{Name: u.GetName()}, &crd); err != nil {
			return false, err //nolint:wrapcheck // wrapped below
		}
		for _, c := range crd.Status.Conditions {
			if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("CRD %s was not established: %w", u.GetName(), err)
	}
	return nil
}

// publish takes a status; it is written if it differs from the hub's, after a
// while in which what follows it is collected.
func (w *writer) publish(s v1alpha1.DeliveryStatus, after time.Duration) {
	s = redacted(w.redactor, s)
	name := s.Cluster + "." + s.Component
	w.mu.Lock()
	w.wanted[name] = s
	delete(w.retracted, name)
	d := w.written[name]
	same := d != nil && equality.Semantic.DeepEqual(d.Status, s)
	if same {
		kept := *d
		kept.Status = s // held once
		w.written[name] = &kept
	}
	w.mu.Unlock()
	if !same {
		w.queue.AddAfter(name, after)
	}
}

// flush queues what still waits, of a cluster or ("") of all.
func (w *writer) flush(cluster string, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.wanted {
		if cluster != "" && s.Cluster != cluster {
			continue
		}
		if d := w.written[name]; d == nil || !equality.Semantic.DeepEqual(d.Status, s) {
			w.queue.AddAfter(name, after)
		}
	}
}

// shown are the statuses of a cluster as the hub has them.
func (w *writer) shown(cluster string) []v1alpha1.DeliveryStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []v1alpha1.DeliveryStatus
	for _, d := range w.written {
		if d.Labels[v1alpha1.LabelCluster] == cluster && d.Labels[v1alpha1.LabelComponent] != "" {
			s := *d.Status.DeepCopy()
			s.Cluster, s.Component = cluster, d.Labels[v1alpha1.LabelComponent]
			out = append(out, s)
		}
	}
	return out
}

// retract deletes a Delivery: there is nothing to tell of the component any more.
func (w *writer) retract(cluster, component string) {
	name := cluster + "." + component
	w.mu.Lock()
	delete(w.wanted, name)
	known := w.written[name] != nil
	if known {
		w.retracted[name] = cluster
	}
	w.mu.Unlock()
	if known {
		w.queue.Add(name)
	}
}

// redacted is a status as the hub may show it.
func redacted(redactor *redact.Redactor, s v1alpha1.DeliveryStatus) v1alpha1.DeliveryStatus {
	s = *s.DeepCopy()
	texts := []*string{&s.Message}
	if s.Pinned != nil {
		texts = append(texts, &s.Pinned.Because, &s.Pinned.By)
	}
	for i := range s.Held {
		texts = append(texts, &s.Held[i].Path, &s.Held[i].Because)
	}
	for i := range s.Conditions {
		texts = append(texts, &s.Conditions[i].Message)
	}
	for _, text := range texts {
		*text = redactor.Text(*text)
	}
	return s
}

// run writes until the context ends, and what is queued by then.
func (w *writer) run(ctx context.Context) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: w.core.Events("")})
	w.mu.Lock()
	w.events = broadcaster.NewRecorder(w.scheme, corev1.EventSource{Component: v1alpha1.FieldManager})
	w.mu.Unlock()
	done := make(chan struct{})
	bounded, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		defer close(done)
		w.work(bounded)
	}()
	<-ctx.Done()
	defer drain(ctx, stop)()
	w.flush("", 0)
	w.queue.ShutDownWithDrain()
	<-done
}

func (w *writer) work(ctx context.Context) {
	for {
		name, shutdown := w.queue.Get()
		if shutdown {
			return
		}
		w.busy(name)
		err := w.write(ctx, name)
		w.done()
		if err != nil {
			w.log.Warn("cannot write status to the hub", "delivery", name, "error", err)
			w.queue.AddRateLimited(name)
		} else {
			w.queue.Forget(name)
		}
		w.queue.Done(name)
	}
}

func (w *writer) write(ctx context.Context, name string) error {
	w.mu.Lock()
	s, wanted := w.wanted[name]
	d := w.written[name]
	_, retracted := w.retracted[name]
	w.mu.Unlock()
	switch {
	case retracted:
		return w.remove(ctx, name)
	case !wanted:
		return nil // another process has the cluster by now
	case d != nil && equality.Semantic.DeepEqual(d.Status, s):
		return nil // it came and went
	}
	if d == nil {
		d = &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: v1alpha1.Namespace,
			Labels: map[string]string{v1alpha1.LabelCluster: s.Cluster, v1alpha1.LabelComponent: s.Component},
		}}
		err := w.client.Create(ctx, d)
		if apierrors.IsAlreadyExists(err) {
			err = w.client.Get(ctx, client.ObjectKeyFromObject(d), d)
		}
		if err != nil {
			return fmt.Errorf("create Delivery %s: %w", name, err)
		}
	}
	before := d.Status
	next := d.DeepCopy()
	next.Status = s
	// With its resourceVersion: a process that had the cluster before may have a
	// write on its way.
	err := w.client.Status().Patch(ctx, next, client.MergeFromWithOptions(d, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		// Somebody wrote or deleted it, or it was written and the answer was lost: the
		// retry creates or reads it.
		w.forget(name)
		return fmt.Errorf("patch status of Delivery %s: %w", name, err)
	}
	w.mu.Lock()
	kept := small(next)
	kept.Status = s // as answered, and held once
	w.written[name] = kept
	w.mu.Unlock()
	w.announce(kept, before)
	return nil
}

// small is what has to be known of a Delivery: there is one for each component of
// each cluster.
func small(d *v1alpha1.Delivery) *v1alpha1.Delivery {
	return &v1alpha1.Delivery{
		TypeMeta:   d.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: d.Namespace, UID: d.UID, ResourceVersion: d.ResourceVersion, Labels: d.Labels},
		Status:     d.Status,
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

// busy notes that a Delivery is being written.
func (w *writer) busy(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing = cmp.Or(w.wanted[name].Cluster, w.retracted[name])
}

func (w *writer) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing = ""
	close(w.idle)
	w.idle = make(chan struct{})
}

// announce writes an event where a delivery's state changed, or drift was undone.
func (w *writer) announce(d *v1alpha1.Delivery, before v1alpha1.DeliveryStatus) {
	s := d.Status
	if diff := s.LastDiff; diff != nil && diff.Restored > 0 && (before.LastDiff == nil || !before.LastDiff.Time.Equal(&diff.Time)) {
		w.events.Eventf(d, corev1.EventTypeNormal, "DriftRestored", "objects that had drifted and are as git says again: %d", diff.Restored)
	}
	if before.Sync == s.Sync || before.Sync == "" && s.Sync == v1alpha1.SyncSynced {
		return // a Delivery that begins as Synced says it all
	}
	kind := corev1.EventTypeNormal
	switch s.Sync {
	case v1alpha1.SyncHeld, v1alpha1.SyncDenied, v1alpha1.SyncFailed, v1alpha1.SyncBlocked, v1alpha1.SyncUnreachable:
		kind = corev1.EventTypeWarning
	case v1alpha1.SyncSynced, v1alpha1.SyncProgressing, v1alpha1.SyncWaiting, v1alpha1.SyncPaused, v1alpha1.SyncOrphaned,
		v1alpha1.SyncAbsent:
	}
	text := s.Component + " " + s.Version
	if s.Message != "" {
		text += ": " + s.Message
	}
	w.events.Event(d, kind, string(s.Sync), text)
}

// repository writes an event when the repository stops or begins to answer.
func (w *writer) repository(err error) {
	w.mu.Lock()
	events := w.events
	w.mu.Unlock()
	if events == nil {
		return
	}
	about := &corev1.ObjectReference{Kind: "Namespace", APIVersion: "v1", Name: v1alpha1.Namespace}
	if err != nil {
		events.Eventf(about, corev1.EventTypeWarning, "RepositoryUnreadable", "every cluster stays as it is: %s", w.redactor.Text(err.Error()))
		return
	}
	events.Eventf(about, corev1.EventTypeNormal, "RepositoryReadable", "the fleet repository can be read again")
}
