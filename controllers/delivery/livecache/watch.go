package livecache

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/jsonsize"
)

// watchFor is the minimum duration of a watch; the maximum is twice as long. Pings detect a dead
// connection much sooner.
const watchFor = 30 * time.Minute

// objectKey names an object of a kind. Names are interned for all clusters of a fleet.
type objectKey struct{ namespace, name unique.Handle[string] }

// summary is the part of an object that is always in memory.
type summary struct {
	component unique.Handle[string]
	version   uint64 // the resourceVersion; 0: not known
	content   digest
}

// scales is the object that an autoscaler scales, and the fields that the autoscaler owns.
type scales struct {
	id   differ.ID
	what differ.Scaling
}

// watched is the watch of one kind. The mutex of its cache guards its fields.
type watched struct {
	cache *Cache
	gvr   schema.GroupVersionResource
	whole bool             // including objects without Keelson's label
	kind  schema.GroupKind // known after the first object
	feed  *feed            // the current feed
	// begun: the first list is complete.
	begun   bool
	objects map[objectKey]summary
	scales  map[objectKey]scales // for a kind of autoscalers
}

// feed is one run of a watch. It implements [cache.ReflectorStore].
type feed struct {
	*watched
	stop   context.CancelFunc
	synced chan struct{} // closed after the first list
	failed chan struct{} // closed after the first failure
	// trouble is the error of the last failed list or watch; nil: none failed.
	trouble atomic.Pointer[error]
	// arriving is the memory in bytes of objects that were read, but not yet added.
	arriving int
}

// observed is an object from a list or watch. It implements [runtime.Object], and has the metadata
// that a Reflector needs: namespace, name and resourceVersion.
type observed struct {
	metav1.ObjectMeta
	kind      schema.GroupKind
	component string
	content   digest
	scales    *scales        // set for an autoscaler
	whole     map[string]any // without managedFields; nil: no memory left, or not reconciled
	size      int            // of whole, in bytes of memory
}

// GetObjectKind implements [runtime.Object].
func (o *observed) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements [runtime.Object].
func (o *observed) DeepCopyObject() runtime.Object {
	c := *o
	c.whole = runtime.DeepCopyJSON(o.whole)
	return &c
}

func (o *observed) id() differ.ID {
	return differ.ID{Group: o.kind.Group, Kind: o.kind.Kind, Namespace: o.Namespace, Name: o.Name}
}

// place identifies an object of a cluster.
type place struct {
	kind *watched
	key  objectKey
}

// affected collects the components to reconcile.
type affected struct {
	components []string
	all        bool
	groups     []string // API groups of changed CRDs
}

func (n *affected) add(component unique.Handle[string]) {
	n.components = append(n.components, component.Value())
}

// start begins a new watch. The known objects stay, to be compared with the list.
func (w *watched) start() {
	w.stop()
	ctx, stop := context.WithCancel(klog.NewContext(w.cache.ctx, klog.Logger{})) // callers of await report trouble
	f := &feed{watched: w, stop: stop, synced: make(chan struct{}), failed: make(chan struct{})}
	w.feed = f
	silent := klog.Logger{}
	r := cache.NewReflectorWithOptions(f.listWatch(), nil, f, cache.ReflectorOptions{
		Logger: &silent, Name: "delivery", TypeDescription: w.gvr.Resource, MinWatchTimeout: watchFor,
	})
	go r.RunWithContext(ctx)
}

// stop ends the watch.
func (w *watched) stop() {
	if w.feed != nil {
		w.feed.stop()
		w.cache.held -= w.feed.arriving
		w.feed = nil
	}
}

func (f *feed) listWatch() cache.ListerWatcher {
	var pages pages
	from := source{gvr: f.gvr}
	selected := func(o *metav1.ListOptions) {
		if !f.whole {
			o.LabelSelector = v1alpha1.LabelComponent
		}
	}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			selected(&o)
			if err := f.cache.options.Wait(ctx); err != nil {
				return nil, err
			}
			if o.Continue == "" {
				f.begin()
			}
			list, err := f.cache.streamer.list(ctx, from, o, pages.remaining(o), f.observe)
			if err == nil {
				err = pages.add(len(list.Items))
			}
			f.note(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			selected(&o)
			if err := f.cache.options.Wait(ctx); err != nil {
				return nil, err
			}
			f.begin()
			events, err := f.cache.streamer.watch(ctx, from, o, f.observe)
			f.note(err)
			return events, err
		},
	}, f.cache.dynamic)
}

// begin discards the count of objects that an earlier list or watch read, but did not add.
func (f *feed) begin() {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	if f.feed == f {
		f.cache.held -= f.arriving
	}
	f.arriving = 0
}

// observe converts an object to the part that is kept. A cluster may have many large objects:
// bodies beyond the limit are read when they are needed.
func (f *feed) observe(u *unstructured.Unstructured) runtime.Object {
	u.SetManagedFields(nil)
	gvk := u.GroupVersionKind()
	o := &observed{
		ObjectMeta: metav1.ObjectMeta{Namespace: interned(u.GetNamespace()), Name: u.GetName(), ResourceVersion: u.GetResourceVersion()},
		kind:       schema.GroupKind{Group: interned(gvk.Group), Kind: interned(gvk.Kind)},
		component:  interned(u.GetLabels()[v1alpha1.LabelComponent]), content: f.cache.digests.digest(u.Object),
	}
	if f.whole {
		if id, what := observe.ScaleTarget(u); what != 0 {
			o.scales = &scales{id, what}
		}
	}
	size := jsonsize.Memory(u.Object)
	l := f.cache
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[unique.Make(o.component)]
	if f.feed == f && g != nil && (g.awake || g.rest) && l.held+size <= keptBytes {
		o.whole, o.size = u.Object, size
		l.held += size
		f.arriving += size
	}
	return o
}

// arrived ends the count of an object that is added now. The cache's lock is held.
func (f *feed) arrived(o *observed) {
	size := min(o.size, f.arriving)
	f.arriving -= size
	f.cache.held -= size
}

// note stores the error of a list or watch for await.
func (f *feed) note(err error) {
	if err == nil {
		return
	}
	if f.trouble.Swap(&err) == nil {
		close(f.failed)
	}
}

// await waits for the first list of the kind, for syncTimeout at most.
func (f *feed) await(ctx context.Context) error {
	select {
	case <-f.synced:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	select {
	case <-f.synced:
		return nil
	case <-ctx.Done():
	}
	if trouble := f.trouble.Load(); trouble != nil {
		return fmt.Errorf("watch %s: %w", f.gvr.GroupResource(), *trouble)
	}
	f.cache.options.NoAnswer()
	return fmt.Errorf("watch %s: not in sync after %s", f.gvr.GroupResource(), syncTimeout)
}

// Add implements [cache.ReflectorStore].
func (f *feed) Add(o any) error { return f.Update(o) }

// Update implements [cache.ReflectorStore].
func (f *feed) Update(o any) error {
	u, ok := o.(*observed)
	if !ok {
		return fmt.Errorf("watch %s: a %T", f.gvr.GroupResource(), o)
	}
	f.locked(func(n *affected) {
		f.arrived(u)
		if f.set(n, u, false); len(f.objects) > maxObjects {
			n.all = true
			f.start() // a list shows the error, and when it is over
		}
	})
	return nil
}

// Delete implements [cache.ReflectorStore].
func (f *feed) Delete(o any) error {
	u, ok := o.(*observed)
	if !ok {
		return fmt.Errorf("watch %s: a %T", f.gvr.GroupResource(), o)
	}
	f.locked(func(n *affected) {
		f.arrived(u)
		f.drop(n, keyOf(u), u)
	})
	return nil
}

// Replace implements [cache.ReflectorStore].
func (f *feed) Replace(list []any, _ string) error {
	there := make(map[objectKey]bool, len(list))
	for _, o := range list {
		u, ok := o.(*observed)
		if !ok {
			return fmt.Errorf("list %s: a %T", f.gvr.GroupResource(), o)
		}
		there[keyOf(u)] = true
	}
	f.locked(func(n *affected) {
		for _, o := range list {
			u, _ := o.(*observed)
			f.arrived(u)
			f.set(n, u, true)
		}
		for key := range f.objects {
			if !there[key] {
				f.drop(n, key, nil)
			}
		}
		for key := range f.scales {
			if !there[key] {
				f.drop(n, key, nil)
			}
		}
		f.begun = true
		select {
		case <-f.synced:
		default:
			close(f.synced)
		}
	})
	return nil
}

// Resync implements [cache.ReflectorStore].
func (f *feed) Resync() error { return nil }

// locked calls do with the lock held if this feed is the current one, then calls the callbacks.
func (f *feed) locked(do func(*affected)) {
	var n affected
	l := f.cache
	l.mu.Lock()
	if f.feed == f {
		do(&n)
	}
	l.mu.Unlock()
	l.notify(n)
}

// set stores the current state of an object. Listed objects are valid at any resourceVersion,
// because the store may have been restored.
func (w *watched) set(n *affected, o *observed, listed bool) {
	l, key, id := w.cache, keyOf(o), o.id()
	w.kind = o.kind
	n.all = w.scale(key, o.scales) && w.begun || n.all
	was, had := w.objects[key]
	if o.component == "" { // without Keelson's label, of a kind that is watched as a whole
		if had {
			w.remove(n, key, was)
		}
		return
	}
	now := summary{component: unique.Make(o.component), version: parseVersion(o.ResourceVersion), content: o.content}
	if had && !listed && now.version < was.version {
		return // a newer version was read since
	}
	l.caughtUp(id, now.version)
	w.objects[key] = now
	g := l.group(now.component)
	moved := had && was.component != now.component
	changed := !had || moved || was.content != o.content
	switch {
	case !w.begun:
		l.keep(g, place{w, key}, o.whole, o.size)
		return
	case !changed && g.rest && o.whole != nil && g.health.Of(id, o.whole) == (health.Result{ID: id, Health: v1alpha1.HealthHealthy}):
		return
	case !changed && !g.rest && now.version == was.version:
		l.keep(g, place{w, key}, o.whole, o.size)
		return
	}
	if moved {
		w.remove(n, key, was)
		w.objects[key] = now
	}
	if changed && had && id.Kind == "CustomResourceDefinition" {
		n.groups = append(n.groups, groupOf(key))
	}
	l.touch(g)
	l.keep(g, place{w, key}, o.whole, o.size)
	n.add(now.component)
}

// drop handles the deletion of an object; o is its last state, nil if that is not known.
func (w *watched) drop(n *affected, key objectKey, o *observed) {
	l := w.cache
	if _, scaled := w.scales[key]; scaled {
		delete(w.scales, key)
		l.scaled, n.all = nil, true
	}
	was, had := w.objects[key]
	if !had || o != nil && parseVersion(o.ResourceVersion) < was.version {
		return // a newer object of this name was read since
	}
	id := differ.ID{Group: w.kind.Group, Kind: w.kind.Kind, Namespace: key.namespace.Value(), Name: key.name.Value()}
	l.caughtUp(id, was.version)
	l.dropFull(id)
	w.remove(n, key, was)
	if id.Kind == "CustomResourceDefinition" {
		n.groups = append(n.groups, groupOf(key))
		l.unwatch(n, key)
	}
}

// remove forgets an object that does not belong to its component any more.
func (w *watched) remove(n *affected, key objectKey, was summary) {
	delete(w.objects, key)
	g := w.cache.group(was.component)
	w.cache.drop(g, place{w, key})
	w.cache.touch(g)
	n.add(was.component)
}

// scale stores what an autoscaler scales, and reports whether that changed.
func (w *watched) scale(key objectKey, is *scales) bool {
	if !w.whole {
		return false
	}
	var now scales
	if is != nil {
		now = *is
	}
	if w.scales[key] == now {
		return false
	}
	w.cache.scaled = nil
	if now.what == 0 {
		delete(w.scales, key)
	} else {
		w.scales[key] = now
	}
	return true
}

// groupOf returns the API group of a CRD, whose name is PLURAL.GROUP.
func groupOf(crd objectKey) string {
	_, group, _ := strings.Cut(crd.name.Value(), ".")
	return group
}

// interned returns the shared copy of a text.
func interned(text string) string { return unique.Make(text).Value() }

func keyOf(o metav1.Object) objectKey {
	return objectKey{namespace: unique.Make(o.GetNamespace()), name: unique.Make(o.GetName())}
}

// versionOf returns the resourceVersion of an object, a number that API servers increase; 0 if it
// is not a number.
func versionOf(o map[string]any) uint64 {
	return parseVersion((&unstructured.Unstructured{Object: o}).GetResourceVersion())
}

func parseVersion(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
