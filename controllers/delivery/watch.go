package delivery

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
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// watchFor is the least time after which a watch is begun anew; at most it takes
// twice as long. A connection that has died is found by its pings, much sooner.
const watchFor = 30 * time.Minute

// objectKey names an object of a kind. The clusters of a fleet share their names.
type objectKey struct{ namespace, name unique.Handle[string] }

// kept is what is always known of an object.
type kept struct {
	component unique.Handle[string]
	version   uint64 // its resourceVersion; 0: not known
	content   digest
}

// scales is what an autoscaler owns of which object.
type scales struct {
	id   differ.ID
	what differ.Scaling
}

// watched is the watch of one kind. Its fields are guarded by the mutex of its
// cache.
type watched struct {
	cache *liveCache
	gvr   schema.GroupVersionResource
	whole bool             // also what has no label of Keelson's
	kind  schema.GroupKind // known from the first object on
	feed  *feed            // the one that counts
	// begun: it was listed once.
	begun   bool
	objects map[objectKey]kept
	scales  map[objectKey]scales // of a kind of autoscalers
}

// feed is one run of a watch. It implements [cache.ReflectorStore].
type feed struct {
	*watched
	stop   context.CancelFunc
	synced chan struct{} // closed after the first list
	failed chan struct{} // closed after the first failure
	// trouble is why the last list or watch failed; nil: it did not.
	trouble atomic.Pointer[error]
}

// place is an object of a cluster.
type place struct {
	kind *watched
	key  objectKey
}

// news is who has to look again.
type news struct {
	components []string
	all        bool
	groups     []string // of CRDs that changed
}

func (n *news) of(component unique.Handle[string]) {
	n.components = append(n.components, component.Value())
}

// start begins to watch anew; what is known stays, to be compared with the list.
func (w *watched) start() {
	if w.feed != nil {
		w.feed.stop()
	}
	ctx, stop := context.WithCancel(klog.NewContext(w.cache.ctx, klog.Logger{})) // trouble is told by who waits
	f := &feed{watched: w, stop: stop, synced: make(chan struct{}), failed: make(chan struct{})}
	w.feed = f
	silent := klog.Logger{}
	r := cache.NewReflectorWithOptions(f.listWatch(), nil, f, cache.ReflectorOptions{
		Logger: &silent, Name: "delivery", TypeDescription: w.gvr.Resource, MinWatchTimeout: watchFor,
	})
	go r.RunWithContext(ctx)
}

func (f *feed) listWatch() cache.ListerWatcher {
	objects := f.cache.dynamic.Resource(f.gvr)
	selected := func(o *metav1.ListOptions) {
		if !f.whole {
			o.LabelSelector = v1alpha1.LabelComponent
		}
	}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			selected(&o)
			if err := f.cache.gate.wait(ctx); err != nil {
				return nil, err
			}
			list, err := objects.List(ctx, o)
			f.note(err)
			return list, err //nolint:wrapcheck // the reflector looks at it
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			selected(&o)
			if err := f.cache.gate.wait(ctx); err != nil {
				return nil, err
			}
			events, err := f.cache.streamer.watch(ctx, source{gvr: f.gvr}, o)
			f.note(err)
			return events, err
		},
	}, f.cache.dynamic)
}

// note keeps why a list or watch failed, for who waits for it.
func (f *feed) note(err error) {
	if err == nil {
		return
	}
	if f.trouble.Swap(&err) == nil {
		close(f.failed)
	}
}

// await waits until the kind was listed.
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
	f.cache.doubt()
	return fmt.Errorf("watch %s: not in sync after %s", f.gvr.GroupResource(), syncTimeout)
}

// Add implements [cache.ReflectorStore].
func (f *feed) Add(o any) error { return f.Update(o) }

// Update implements [cache.ReflectorStore].
func (f *feed) Update(o any) error {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("watch %s: a %T", f.gvr.GroupResource(), o)
	}
	content := f.cache.digests.of(u.Object)
	f.locked(func(n *news) { f.set(n, u, content, false) })
	return nil
}

// Delete implements [cache.ReflectorStore].
func (f *feed) Delete(o any) error {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("watch %s: a %T", f.gvr.GroupResource(), o)
	}
	f.locked(func(n *news) { f.drop(n, keyOf(u), u) })
	return nil
}

// Replace implements [cache.ReflectorStore].
func (f *feed) Replace(list []any, _ string) error {
	contents := make([]digest, len(list))
	there := make(map[objectKey]bool, len(list))
	for i, o := range list {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("list %s: a %T", f.gvr.GroupResource(), o)
		}
		contents[i] = f.cache.digests.of(u.Object)
		there[keyOf(u)] = true
	}
	f.locked(func(n *news) {
		for i, o := range list {
			u, _ := o.(*unstructured.Unstructured)
			f.set(n, u, contents[i], true)
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

// Transformer implements [cache.TransformingStore].
func (f *feed) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if u, ok := o.(*unstructured.Unstructured); ok {
			u.SetManagedFields(nil)
		}
		return o, nil
	}
}

// locked does something if the feed is the one that counts, and tells the news.
func (f *feed) locked(do func(*news)) {
	var n news
	l := f.cache
	l.mu.Lock()
	if f.feed == f {
		do(&n)
	}
	l.mu.Unlock()
	l.tell(n)
}

// set takes in an object as it is. Listed objects are what there is, however old:
// a store may have been set back.
func (w *watched) set(n *news, u *unstructured.Unstructured, content digest, listed bool) {
	l, key := w.cache, keyOf(u)
	id, _ := differ.Identify(u.Object)
	w.kind = schema.GroupKind{Group: id.Group, Kind: id.Kind}
	n.all = w.scale(key, u) && w.begun || n.all
	was, had := w.objects[key]
	component := u.GetLabels()[v1alpha1.LabelComponent]
	if component == "" { // of a kind that is watched as a whole
		if had {
			w.remove(n, key, was)
		}
		return
	}
	now := kept{component: unique.Make(component), version: versionOf(u.Object), content: content}
	if had && !listed && now.version < was.version {
		return // it was read since
	}
	l.caughtUp(id, now.version)
	u.SetManagedFields(nil)
	w.objects[key] = now
	g := l.group(now.component)
	moved := had && was.component != now.component
	changed := !had || moved || was.content != content
	switch {
	case !w.begun:
		g.keep(place{w, key}, u.Object)
		return
	case !changed && g.rest && g.health.Of(id, u.Object) == (applier.ObjectHealth{ID: id, Health: v1alpha1.HealthHealthy}):
		return
	case !changed && !g.rest && now.version == was.version:
		g.keep(place{w, key}, u.Object)
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
	g.keep(place{w, key}, u.Object)
	n.of(now.component)
}

// drop takes in that an object has gone; u is as it was last, nil where that is
// not known.
func (w *watched) drop(n *news, key objectKey, u *unstructured.Unstructured) {
	l := w.cache
	if _, scaled := w.scales[key]; scaled {
		delete(w.scales, key)
		l.scaled, n.all = nil, true
	}
	was, had := w.objects[key]
	if !had || u != nil && versionOf(u.Object) < was.version {
		return // the one that was read since is another one
	}
	id := differ.ID{Group: w.kind.Group, Kind: w.kind.Kind, Namespace: key.namespace.Value(), Name: key.name.Value()}
	l.caughtUp(id, was.version)
	delete(l.full, id)
	w.remove(n, key, was)
	if id.Kind == "CustomResourceDefinition" {
		n.groups = append(n.groups, groupOf(key))
		l.unwatch(n, key)
	}
}

// remove forgets an object that its component has no more.
func (w *watched) remove(n *news, key objectKey, was kept) {
	delete(w.objects, key)
	g := w.cache.group(was.component)
	delete(g.bodies, place{w, key})
	w.cache.touch(g)
	n.of(was.component)
}

// scale takes in what an autoscaler scales, and reports whether that is something
// else than before.
func (w *watched) scale(key objectKey, u *unstructured.Unstructured) bool {
	if !w.whole {
		return false
	}
	var now scales
	now.id, now.what = applier.ScaleTarget(u)
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

// groupOf is the API group of a CRD: its name is PLURAL.GROUP.
func groupOf(crd objectKey) string {
	_, group, _ := strings.Cut(crd.name.Value(), ".")
	return group
}

func keyOf(u *unstructured.Unstructured) objectKey {
	return objectKey{namespace: unique.Make(u.GetNamespace()), name: unique.Make(u.GetName())}
}

// versionOf is the resourceVersion of an object, which API servers count up; 0 of
// one that is no number.
func versionOf(o map[string]any) uint64 {
	n, err := strconv.ParseUint((&unstructured.Unstructured{Object: o}).GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
