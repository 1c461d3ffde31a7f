package delivery

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
)

// doubtFor is how long a write may remain unanswered after its watch event. Only then does the
// event count as a write of another client.
const doubtFor = 2 * time.Second

// keepUp repairs Deliveries that another client wrote or deleted, or that are old because the hub's
// store was restored from a backup. It begins at the resourceVersion that was already read, and
// works until the context ends. It gives up if the hub may not be watched.
//
// At rest it costs a watch of metadata. After the hub was unreachable all Deliveries are read
// again, because a known resourceVersion may then name another state.
func (w *writer) keepUp(ctx context.Context, version string) {
	deliveries, err := metadata.NewForConfig(w.hub)
	if err != nil {
		w.log.Error("the Deliveries of the hub can't be watched", "error", err)
		return
	}
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[string](queue.RetryFirst, queue.RetryLast)
	for ctx.Err() == nil {
		if version == "" {
			version, err = w.reread(ctx)
		}
		if err == nil {
			begun := w.now()
			err = w.watchDeliveries(ctx, deliveries, version)
			if w.now().Sub(begun) > queue.RetryLast {
				backoff.Forget("")
			}
		}
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsForbidden(err):
			w.log.Warn("Keelson may not watch the Deliveries of the hub: a change by another client stays until the Delivery changes; see keelson rbac --hub", "error", err)
			return
		case version == "":
			w.log.Warn("the Deliveries of the hub can't be read; trying again", "error", err)
		}
		version = ""
		select {
		case <-ctx.Done():
		case <-time.After(backoff.When("")):
		}
	}
}

// watchDeliveries handles the events of Deliveries from a resourceVersion on. It returns, with the reason,
// when the Deliveries must be read again.
func (w *writer) watchDeliveries(ctx context.Context, from metadata.Interface, version string) error {
	ctx, stop := context.WithCancelCause(klog.NewContext(ctx, klog.Logger{}))
	defer stop(nil)
	deliveries := from.Resource(v1alpha1.GroupVersion.WithResource("deliveries")).Namespace(v1alpha1.Namespace)
	events, err := toolswatch.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			is, err := deliveries.Watch(ctx, o)
			if err != nil {
				stop(err) // the next answer may come from another hub, or one with a restored store
			}
			return is, err //nolint:wrapcheck // the watcher looks at it
		},
	})
	if err != nil {
		return fmt.Errorf("watch Deliveries: %w", err)
	}
	for event := range events.ResultChan() {
		m, ok := event.Object.(*metav1.PartialObjectMetadata)
		if !ok || event.Type == watch.Error {
			return fmt.Errorf("watch Deliveries: %w", apierrors.FromObject(event.Object))
		}
		w.onDelivery(ctx, m, event.Type == watch.Deleted)
	}
	return fmt.Errorf("watch Deliveries: %w", context.Cause(ctx))
}

// onDelivery handles a new version or the deletion of a Delivery. Mostly the write was our own.
func (w *writer) onDelivery(ctx context.Context, m *metav1.PartialObjectMetadata, gone bool) {
	name, version := m.Name, m.ResourceVersion
	w.mu.Lock()
	d := w.written[name]
	_, wanted := w.wanted[name]
	_, going := w.retracted[name]
	w.mu.Unlock()
	switch {
	case d == nil && !wanted && !going && !gone:
		w.onUnknownDelivery(&v1alpha1.Delivery{ObjectMeta: m.ObjectMeta})
		return
	case d == nil, !gone && d.version == version:
		return
	}
	time.AfterFunc(doubtFor, func() {
		if ctx.Err() != nil || !w.overtook(name, version, gone) {
			return
		}
		if err := w.rereadOne(ctx, name); err != nil && ctx.Err() == nil {
			w.log.Warn("cannot read a Delivery that another client wrote", "delivery", name, "error", err)
		}
	})
}

// overtook reports whether the version in a watch event is newer than the known version.
func (w *writer) overtook(name, version string, gone bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.written[name]
	if _, going := w.retracted[name]; d == nil || going {
		return false // it is being created or deleted
	}
	told, known := versionNumber(version), versionNumber(d.version)
	return told > known || gone && told == known
}

// versionNumber returns a resourceVersion as the number that API servers increase; 0: it is none.
func versionNumber(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// rereadOne reads a Delivery, and queues it if it differs from the wanted status.
func (w *writer) rereadOne(ctx context.Context, name string) error {
	var d v1alpha1.Delivery
	err := w.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, &d)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Delivery %s: %w", name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		delete(w.written, name)
	} else {
		w.written[name] = &knownOf([]v1alpha1.Delivery{d})[0]
	}
	w.mendLocked(name)
	return nil
}

// mendLocked queues a Delivery that differs from the wanted status.
func (w *writer) mendLocked(name string) {
	if w.wanted[name] != nil && !w.currentLocked(name) {
		w.queue.Add(name)
	}
}

// reread lists the Deliveries, and queues those that differ from the wanted statuses. It returns
// the resourceVersion of the list.
func (w *writer) reread(ctx context.Context) (string, error) {
	found := map[string]seen{}
	version, err := w.list(ctx, func(d *v1alpha1.Delivery, k *known) { found[d.Name] = seen{k, marks(d)} })
	if err != nil {
		return "", err
	}
	unknown := w.replaceSeen(found)
	for _, d := range unknown {
		w.onUnknownDelivery(d)
	}
	return version, nil
}

// seen is a Delivery as the hub has it.
type seen struct {
	*known
	marks *v1alpha1.Delivery
}

// replaceSeen replaces what is known of the hub. It returns the Deliveries that this process neither
// wants, nor wrote, nor deletes.
func (w *writer) replaceSeen(found map[string]seen) (unknown []*v1alpha1.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.written {
		if _, there := found[name]; !there {
			delete(w.written, name)
		}
	}
	for name, d := range found {
		_, wanted := w.wanted[name]
		if wanted || w.written[name] != nil {
			w.written[name] = d.known
		} else if w.retracted[name] == "" {
			unknown = append(unknown, d.marks)
		}
	}
	for name := range w.wanted {
		w.mendLocked(name)
	}
	return unknown
}

// isFor sets the name of the fleet whose Deliveries are written.
func (w *writer) isFor(fleet string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fleet = fleet
}

// marks returns the name, labels and annotations of a Delivery, which say whose it is.
func marks(d *v1alpha1.Delivery) *v1alpha1.Delivery {
	return &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{Name: d.Name, Labels: d.Labels, Annotations: d.Annotations}}
}

// discard deletes a Delivery of a cluster that no process works on any more.
func (w *writer) discard(d *v1alpha1.Delivery) {
	w.mu.Lock()
	delete(w.wanted, d.Name)
	w.retracted[d.Name] = d.Labels[v1alpha1.LabelCluster]
	w.mu.Unlock()
	w.queue.Add(d.Name)
}

// createIn creates a Delivery after its namespace was deleted from the hub. cause is the error of
// the first attempt.
func (w *writer) createIn(ctx context.Context, d *v1alpha1.Delivery, cause error) error {
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}
	if err := w.client.Create(ctx, own); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return cause
		}
		return fmt.Errorf("%w; create Namespace %s: %w", cause, v1alpha1.Namespace, err)
	}
	w.log.Warn("the namespace of the hub was gone; it was made anew", "namespace", v1alpha1.Namespace)
	return w.client.Create(ctx, d) //nolint:wrapcheck // the caller says what for
}

// adopt handles an unknown Delivery of the hub, such as after its store was restored. If this
// process has the cluster, the component is queued. If git does not have the cluster, the Delivery
// is deleted.
func (c *Controller) adopt(d *v1alpha1.Delivery) {
	cluster, component := d.Labels[v1alpha1.LabelCluster], d.Labels[v1alpha1.LabelComponent]
	c.mu.Lock()
	r, fleet := c.agents[cluster], c.fleet
	c.mu.Unlock()
	if fleet == nil || cluster == "" || component == "" || d.Annotations[v1alpha1.AnnotationFleet] != fleet.Spec.Name {
		return // it belongs to another fleet
	}
	if r == nil {
		if c.only == "" && fleet.Cluster(cluster) == nil {
			c.log.Info("a Delivery of a cluster that is not in git is deleted", "delivery", d.Name)
			c.writer.discard(d)
		}
		return
	}
	r.agent.mu.Lock()
	if _, known := r.agent.statuses[component]; !known {
		r.agent.statuses[component] = &v1alpha1.DeliveryStatus{Cluster: cluster, Component: component}
	}
	r.agent.mu.Unlock()
	r.agent.queue.Add(component)
}

// sweep deletes the Deliveries of clusters that left git while no process was running.
func (c *Controller) sweep() {
	fleet := c.current()
	if fleet == nil {
		return
	}
	for _, d := range c.writer.takeFirst() {
		if fleet.Cluster(d.Labels[v1alpha1.LabelCluster]) == nil {
			c.adopt(d)
		}
	}
}

// takeFirst returns the Deliveries of the first list, once.
func (w *writer) takeFirst() []*v1alpha1.Delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.first
	w.first = nil
	return first
}
