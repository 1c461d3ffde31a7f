package hubstatus

import (
	"context"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
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
func (w *Writer) keepUp(ctx context.Context, version string) {
	deliveries, err := metadata.NewForConfig(w.options.Hub)
	if err != nil {
		w.options.Log.Error("the Deliveries of the hub can't be watched", "error", err)
		return
	}
	backoff := queue.NewBackoff(queue.RetryFirst, queue.RetryLast)
	for ctx.Err() == nil {
		if version == "" {
			version, err = w.reread(ctx)
		}
		if err == nil {
			begun := w.options.Now()
			err = w.watchDeliveries(ctx, deliveries, version)
			if w.options.Now().Sub(begun) > queue.RetryLast {
				backoff.Reset()
			}
		}
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsForbidden(err):
			w.options.Log.Warn("Keelson may not watch the Deliveries of the hub: a change by another client stays until the Delivery changes; see keelson rbac --hub", "error", err)
			return
		case version == "":
			w.options.Log.Warn("the Deliveries of the hub can't be read; trying again", "error", err)
		}
		version = ""
		backoff.Wait(ctx)
	}
}

// watchDeliveries handles the events of Deliveries from a resourceVersion on. It returns, with the reason,
// when the Deliveries must be read again.
func (w *Writer) watchDeliveries(ctx context.Context, from metadata.Interface, version string) error {
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
func (w *Writer) onDelivery(ctx context.Context, m *metav1.PartialObjectMetadata, gone bool) {
	name, version := m.Name, m.ResourceVersion
	w.mu.Lock()
	d := w.written[name]
	_, wanted := w.wanted[name]
	_, going := w.retracted[name]
	w.mu.Unlock()
	switch {
	case d == nil && !wanted && !going && !gone:
		w.options.OnUnknown(&v1alpha1.Delivery{ObjectMeta: m.ObjectMeta})
		return
	case d == nil, !gone && d.version == version:
		return
	}
	time.AfterFunc(doubtFor, func() {
		if ctx.Err() != nil || !w.overtook(name, version, gone) {
			return
		}
		if err := w.rereadOne(ctx, name); err != nil && ctx.Err() == nil {
			w.options.Log.Warn("cannot read a Delivery that another client wrote", "delivery", name, "error", err)
		}
	})
}

// overtook reports whether the version in a watch event is newer than the known version.
func (w *Writer) overtook(name, version string, gone bool) bool {
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
func (w *Writer) rereadOne(ctx context.Context, name string) error {
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
func (w *Writer) mendLocked(name string) {
	if w.wanted[name] != nil && !w.currentLocked(name) {
		w.queue.Add(name)
	}
}

// reread lists the Deliveries, and queues those that differ from the wanted statuses. It returns
// the resourceVersion of the list.
func (w *Writer) reread(ctx context.Context) (string, error) {
	found := map[string]seen{}
	version, err := w.list(ctx, func(d *v1alpha1.Delivery, k *known) { found[d.Name] = seen{k, marks(d)} })
	if err != nil {
		return "", err
	}
	unknown := w.replaceSeen(found)
	for _, d := range unknown {
		w.options.OnUnknown(d)
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
func (w *Writer) replaceSeen(found map[string]seen) (unknown []*v1alpha1.Delivery) {
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

// marks returns the name, labels and annotations of a Delivery, which say whose it is.
func marks(d *v1alpha1.Delivery) *v1alpha1.Delivery {
	return &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{Name: d.Name, Labels: d.Labels, Annotations: d.Annotations}}
}
