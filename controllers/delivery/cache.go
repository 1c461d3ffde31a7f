package delivery

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

const (
	// syncTimeout bounds the first list of a kind.
	syncTimeout = 30 * time.Second
	// writtenFor is how long the answer to a write may stand in for a watch
	// event that did not come: a relist can swallow a short life.
	writtenFor = 30 * time.Second
)

// liveCache is an [applier.Reader] on watches. It watches those kinds that are
// managed, and of them those objects that carry Keelson's label, and drops their
// managedFields. Reads of what is in the cache cost no API call.
type liveCache struct {
	dynamic dynamic.Interface
	now     func() time.Time
	// changed is called with the component of an object that changed; "" when
	// every component may be concerned.
	changed func(component string)
	// schemaChanged is called with the group of a managed CRD that changed.
	schemaChanged func(group string)

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the life of the watches, not of one call
	kinds   map[schema.GroupVersionResource]*watched
	written map[differ.ID]written
	full    map[differ.ID]map[string]any // with managedFields, valid at their resourceVersion
}

// watched is the watch of one kind.
type watched struct {
	cache.SharedIndexInformer
	stop context.CancelFunc
	// trouble is why the last list or watch failed; nil: it did not.
	trouble atomic.Pointer[error]
}

type written struct {
	object map[string]any
	at     time.Time
}

func newLiveCache(ctx context.Context, d dynamic.Interface, now func() time.Time) *liveCache {
	return &liveCache{
		dynamic: d, now: now, ctx: ctx,
		changed: func(string) {}, schemaChanged: func(string) {},
		kinds:   map[schema.GroupVersionResource]*watched{},
		written: map[differ.ID]written{}, full: map[differ.ID]map[string]any{},
	}
}

// informer returns the synced watch of a kind and starts it the first time.
func (l *liveCache) informer(ctx context.Context, gvr schema.GroupVersionResource, selector string) (*watched, error) {
	l.mu.Lock()
	w, ok := l.kinds[gvr]
	if !ok {
		var err error
		if w, err = l.start(gvr, selector); err != nil { //nolint:contextcheck // a watch outlives the call that wants it first
			l.mu.Unlock()
			return nil, err
		}
		l.kinds[gvr] = w
	}
	l.mu.Unlock()
	if w.HasSynced() {
		return w, nil
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), w.HasSynced) {
		if trouble := w.trouble.Load(); trouble != nil {
			return nil, fmt.Errorf("watch %s: %w", gvr.GroupResource(), *trouble)
		}
		return nil, fmt.Errorf("watch %s: not in sync after %s", gvr.GroupResource(), syncTimeout)
	}
	return w, nil
}

func (l *liveCache) start(gvr schema.GroupVersionResource, selector string) (*watched, error) {
	w := &watched{SharedIndexInformer: dynamicinformer.NewFilteredDynamicInformer(l.dynamic, gvr, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) { o.LabelSelector = selector }).Informer()}
	if err := w.SetTransform(dropManagedFields); err != nil {
		return nil, fmt.Errorf("watch %s: %w", gvr.GroupResource(), err)
	}
	if err := w.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		w.trouble.Store(&err)
	}); err != nil {
		return nil, fmt.Errorf("watch %s: %w", gvr.GroupResource(), err)
	}
	handler := l.onManaged
	if selector == "" { // autoscalers alone are watched as a whole
		handler = func(old, now any, initial bool) {
			l.onAutoscaler(old, now, initial)
			if isManaged(old) || isManaged(now) {
				l.onManaged(old, now, initial)
			}
		}
	}
	if _, err := w.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(o any, initial bool) { handler(nil, o, initial) },
		UpdateFunc: func(old, o any) { handler(old, o, false) },
		DeleteFunc: func(o any) {
			if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = unknown.Obj
			}
			handler(o, nil, false)
		},
	}); err != nil {
		return nil, fmt.Errorf("watch %s: %w", gvr.GroupResource(), err)
	}
	ctx, stop := context.WithCancel(l.ctx)
	w.stop = stop
	go w.RunWithContext(ctx)
	return w, nil
}

// isManaged reports whether an object carries Keelson's label.
func isManaged(o any) bool {
	u, ok := o.(*unstructured.Unstructured)
	return ok && u.GetLabels()[v1alpha1.LabelComponent] != ""
}

// unwatch ends the watches of the kind that a deleted CRD had defined: they
// would ask for it for ever.
func (l *liveCache) unwatch(crd *unstructured.Unstructured) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	l.mu.Lock()
	defer l.mu.Unlock()
	for gvr, w := range l.kinds {
		if gvr.Group == group && gvr.Resource == plural {
			w.stop()
			delete(l.kinds, gvr)
		}
	}
}

func dropManagedFields(o any) (any, error) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
	}
	return o, nil
}

// onManaged tells the component of a changed object. What Keelson itself wrote
// comes back here, too, and finds nothing to do.
func (l *liveCache) onManaged(old, now any, initial bool) {
	u, _ := now.(*unstructured.Unstructured)
	if u == nil {
		u, _ = old.(*unstructured.Unstructured)
	}
	if u == nil {
		return
	}
	l.caughtUp(u, now == nil)
	if initial {
		return
	}
	if before, ok := old.(*unstructured.Unstructured); ok && u.GetKind() == "CustomResourceDefinition" &&
		(now == nil || before.GetGeneration() != u.GetGeneration()) {
		if now == nil {
			l.unwatch(u)
		}
		group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
		l.schemaChanged(group)
	}
	l.changed(u.GetLabels()[v1alpha1.LabelComponent])
	if before, ok := old.(*unstructured.Unstructured); ok && now != nil {
		if was := before.GetLabels()[v1alpha1.LabelComponent]; was != u.GetLabels()[v1alpha1.LabelComponent] {
			l.changed(was)
		}
	}
}

// onAutoscaler looks at every component when an autoscaler comes, goes, or
// takes another object.
func (l *liveCache) onAutoscaler(old, now any, initial bool) {
	type scaled struct {
		id   differ.ID
		what differ.Scaling
	}
	target := func(o any) (s scaled) {
		if u, ok := o.(*unstructured.Unstructured); ok {
			s.id, s.what = applier.ScaleTarget(u)
		}
		return s
	}
	if !initial && target(old) != target(now) {
		l.changed("")
	}
}

// caughtUp drops an answer that the watch has overtaken.
func (l *liveCache) caughtUp(u *unstructured.Unstructured, deleted bool) {
	id := idOf(u)
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.written[id]; ok && !newer(w.object, u.Object) {
		delete(l.written, id)
	}
	if deleted {
		delete(l.full, id)
	}
}

func idOf(u *unstructured.Unstructured) differ.ID {
	return differ.ID{
		Group: u.GroupVersionKind().Group, Kind: u.GetKind(),
		Namespace: u.GetNamespace(), Name: u.GetName(),
	}
}

// newer reports whether a has a later resourceVersion than b.
func newer(a, b map[string]any) bool {
	c, err := resourceversion.CompareResourceVersion(versionOf(a), versionOf(b))
	return err == nil && c > 0
}

func versionOf(o map[string]any) string {
	return (&unstructured.Unstructured{Object: o}).GetResourceVersion()
}

// Get implements [applier.Reader]. An object without Keelson's label is in no
// watch.
func (l *liveCache) Get(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	informer, err := l.informer(ctx, m.Resource, v1alpha1.LabelComponent)
	if err != nil {
		return nil, err
	}
	key := id.Name
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		key = id.Namespace + "/" + id.Name
	}
	item, _, err := informer.GetStore().GetByKey(key)
	if err != nil {
		return nil, fmt.Errorf("cache of %s: %w", m.Resource.GroupResource(), err)
	}
	best := l.lastWritten(id)
	if u, ok := item.(*unstructured.Unstructured); ok && (best == nil || !newer(best, u.Object)) {
		best = u.Object
	}
	if best == nil {
		return nil, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if full := l.full[id]; full != nil {
		if versionOf(full) == versionOf(best) {
			return full, nil
		}
		delete(l.full, id)
	}
	return best, nil
}

func (l *liveCache) lastWritten(id differ.ID) map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, ok := l.written[id]
	if ok && l.now().Sub(w.at) > writtenFor {
		delete(l.written, id)
		return nil
	}
	return w.object
}

// Fresh implements [applier.Reader]. The answer is kept with its managedFields
// until the object changes, so that a field which a controller owns is looked
// up once.
func (l *liveCache) Fresh(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	live, err := applier.Get(ctx, l.dynamic, m, id)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if live == nil {
		delete(l.full, id)
		return nil, nil
	}
	l.full[id] = live
	return live, nil
}

// Scaled implements [applier.Reader].
func (l *liveCache) Scaled(ctx context.Context, served []schema.GroupVersionResource) (map[differ.ID]differ.Scaling, error) {
	out := map[differ.ID]differ.Scaling{}
	for _, gvr := range served {
		informer, err := l.informer(ctx, gvr, "")
		if err != nil {
			return nil, err
		}
		for _, item := range informer.GetStore().List() {
			if u, ok := item.(*unstructured.Unstructured); ok {
				if id, scaling := applier.ScaleTarget(u); scaling != 0 {
					out[id] |= scaling
				}
			}
		}
	}
	return out, nil
}

// restart drops what was learned but from the watches, which begin anew by
// themselves after an outage.
func (l *liveCache) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.written)
	clear(l.full)
}

// Wrote implements [applier.Reader].
func (l *liveCache) Wrote(id differ.ID, object map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written[id] = written{object: object, at: l.now()}
}
