// Package livecache caches the live objects of one cluster, and keeps the cache current by watches.
//
// It bounds what one cluster can take: the number of watched kinds and objects, and the memory for
// their bodies. A converged cluster costs its watches, and no other request.
package livecache

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/jsonsize"
)

const (
	// syncTimeout bounds the first list of a kind.
	syncTimeout = 30 * time.Second
	// writtenFor is how long the answer to a write may replace a watch event that did not come. A
	// relist can miss an object that existed only briefly.
	writtenFor = 30 * time.Second
	// warmFor: a component that is disturbed within warmFor after it came to rest keeps its objects
	// in memory until nothing has changed for warmFor.
	warmFor = time.Minute
	// keptBytes bounds the memory in bytes for object bodies of one cluster: enough for 4,000
	// objects of ordinary size. Other bodies are read when they are needed.
	keptBytes = 32 << 20
	// maxKinds bounds how many kinds of one cluster are watched. The 200 components of a large
	// cluster have objects of about 150 kinds.
	maxKinds = 1_000
)

// Cache is an [observe.Keeper] on watches. It watches the kinds that are managed, and of these
// only objects that carry Keelson's label. Autoscalers are watched without a label, too.
//
// Of an object of a component at rest it keeps a name, a resourceVersion and a digest: about 100
// bytes. It keeps the objects of other components in memory. The objects of a component that was
// disturbed are read when they are needed.
//
// A Cache is safe for concurrent use. mu guards all fields below it, and the fields of the watches
// and groups. Callbacks run without the lock, except [Options.Later].
type Cache struct {
	options  Options
	dynamic  dynamic.Interface
	streamer streamer
	digests  digesters

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the life of the watches, not of one call
	kinds   map[schema.GroupVersionResource]*watched
	groups  map[unique.Handle[string]]*group // by component
	moved   uint64                           // the last result of [Cache.move]
	sweepAt int                              // the number of groups from which on unused groups are removed
	written map[differ.ID]written
	full    map[differ.ID]body // with managedFields, valid at their resourceVersion
	held    int                // bytes of all bodies, and of objects that are arriving
	// scaled is the answer of Scaled for the kinds in scaledFor; nil: not computed yet.
	scaled    map[differ.ID]differ.Scaling
	scaledFor string
}

// Options connect a [Cache] to its cluster and its user. All are required. Except Wait, the
// functions must not block.
type Options struct {
	// Config is the connection to the cluster.
	Config *rest.Config
	Now    func() time.Time
	// Wait holds back lists and watches while the API server does not answer. The error is that of
	// the context.
	Wait func(context.Context) error
	// Changed is called with the component of a changed object; "" if every component may be
	// concerned.
	Changed func(component string)
	// Later queues a component that may come to rest after a time. Later runs with the lock held, so it must not call the Cache.
	Later func(component string, after time.Duration)
	// SchemaChanged is called with the API group of a managed CRD that changed.
	SchemaChanged func(group string)
	// NoAnswer is called when a list gets no answer.
	NoAnswer func()
}

// New makes a cache whose watches end with the context. It makes no call.
func New(ctx context.Context, o Options) (*Cache, error) {
	d, err := dynamic.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("connection: %w", err)
	}
	s, err := newStreamer(o.Config)
	if err != nil {
		return nil, fmt.Errorf("connection: %w", err)
	}
	return newCache(ctx, d, s, o), nil
}

func newCache(ctx context.Context, d dynamic.Interface, s streamer, o Options) *Cache {
	return &Cache{
		options: o, dynamic: d, streamer: s, ctx: ctx,
		kinds: map[schema.GroupVersionResource]*watched{}, groups: map[unique.Handle[string]]*group{},
		written: map[differ.ID]written{}, full: map[differ.ID]body{},
	}
}

// group is what is known of the objects of one component. A component that is not reconciled is
// neither awake nor at rest.
type group struct {
	awake  bool // its objects are kept in memory
	rest   bool
	moves  uint64 // a new number after each change, never used before
	bodies map[place]body
	health health.Rules // of a component at rest
	// restedAt is when the component last came to rest, and movedAt when its objects last changed.
	// warm: it was disturbed within warmFor after it came to rest.
	restedAt, movedAt time.Time
	warm              bool
}

// body is an object in memory.
type body struct {
	object map[string]any
	size   int // in bytes
}

// keep stores the body of an object of an awake component, if the memory suffices. A size of 0
// means that the object is incomplete.
func (l *Cache) keep(g *group, at place, object map[string]any, size int) {
	l.drop(g, at)
	if !g.awake || size == 0 || l.held+size > keptBytes {
		return
	}
	if g.bodies == nil {
		g.bodies = map[place]body{}
	}
	g.bodies[at] = body{object, size}
	l.held += size
}

// drop forgets the body of an object.
func (l *Cache) drop(g *group, at place) {
	l.held -= g.bodies[at].size
	delete(g.bodies, at)
}

// dropAll forgets the bodies of a component.
func (l *Cache) dropAll(g *group) {
	for at := range g.bodies {
		l.drop(g, at)
	}
}

// dropFull forgets an object with its managedFields.
func (l *Cache) dropFull(id differ.ID) {
	l.held -= l.full[id].size
	delete(l.full, id)
}

// written is the answer to a write. Its object is nil if the memory did not suffice.
type written struct {
	body
	version uint64
	at      time.Time
}

// kind returns the watch of a kind after its first list, and starts the watch if there is none.
func (l *Cache) kind(ctx context.Context, gvr schema.GroupVersionResource, whole bool) (*watched, error) {
	l.mu.Lock()
	w, ok := l.kinds[gvr]
	if !ok && len(l.kinds) >= maxKinds {
		l.mu.Unlock()
		return nil, fmt.Errorf("watch %s: the components of the cluster have objects of %d other kinds, and Keelson watches no more: take components with many kinds from it", gvr.GroupResource(), maxKinds)
	}
	if !ok {
		w = &watched{cache: l, gvr: gvr, whole: whole, objects: map[objectKey]summary{}}
		if whole {
			w.scales = map[objectKey]scales{}
		}
		w.start() //nolint:contextcheck // a watch outlives the call that wants it first
		l.kinds[gvr] = w
	}
	f := w.feed
	l.mu.Unlock()
	return w, f.await(ctx)
}

// group returns the group of a component, and creates it if there is none.
func (l *Cache) group(component unique.Handle[string]) *group {
	g := l.groups[component]
	if g == nil {
		if len(l.groups) >= l.sweepAt {
			l.sweep()
		}
		g = &group{moves: l.move()}
		l.groups[component] = g
	}
	return g
}

// move returns a number that was never returned before.
func (l *Cache) move() uint64 {
	l.moved++
	return l.moved
}

// sweep removes the groups that are neither awake nor at rest and have no object. Objects may name
// an unlimited number of components.
func (l *Cache) sweep() {
	used := map[unique.Handle[string]]bool{}
	for _, w := range l.kinds {
		for _, o := range w.objects {
			used[o.component] = true
		}
	}
	maps.DeleteFunc(l.groups, func(component unique.Handle[string], g *group) bool {
		return !g.awake && !g.rest && !used[component]
	})
	l.sweepAt = 2*len(l.groups) + maxObjects
}

// touch notes a change of a component, which ends its rest.
func (l *Cache) touch(g *group) {
	now := l.options.Now()
	if g.rest {
		g.awake, g.rest, g.warm = true, false, now.Sub(g.restedAt) < warmFor
	}
	g.moves = l.move()
	g.movedAt = now
}

// notify calls the callbacks for what was affected.
func (l *Cache) notify(n affected) {
	for _, group := range n.groups {
		l.options.SchemaChanged(group)
	}
	if n.all {
		l.options.Changed("")
		return
	}
	for _, component := range n.components {
		l.options.Changed(component)
	}
}

// unwatch ends the watches of the kind that a deleted CRD defined. They would retry for ever.
func (l *Cache) unwatch(n *affected, crd objectKey) {
	plural, group, _ := strings.Cut(crd.name.Value(), ".")
	for gvr, w := range l.kinds {
		if gvr.Group == group && gvr.Resource == plural {
			w.stop()
			delete(l.kinds, gvr)
			l.disturb(n, w)
		}
	}
}

// disturb ends the rest of the components that have objects of a kind.
func (l *Cache) disturb(n *affected, w *watched) {
	for key, o := range w.objects {
		g := l.group(o.component)
		l.drop(g, place{w, key})
		l.touch(g)
		n.add(o.component)
	}
}

// caughtUp drops the answer to a write when the watch has reached its version.
func (l *Cache) caughtUp(id differ.ID, version uint64) {
	if w, ok := l.written[id]; ok && w.version <= version {
		l.dropWritten(id)
	}
}

// Get implements [observe.Reader]. An object without Keelson's label is in no watch, and its result
// is nil.
func (l *Cache) Get(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	_, whole := observe.Autoscalers()[m.GroupVersionKind]
	w, err := l.kind(ctx, m.Resource, whole)
	if err != nil {
		return nil, err
	}
	at := place{w, objectKey{name: unique.Make(id.Name)}}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		at.key.namespace = unique.Make(id.Namespace)
	} else {
		at.key.namespace = unique.Make("")
	}
	if o, there := l.lookup(at, id); o != nil || !there {
		return o, nil
	}
	live, err := observe.Get(ctx, l.dynamic, m, id)
	if err != nil || live == nil {
		return nil, err
	}
	content := l.digests.digest(live)
	l.mu.Lock()
	defer l.mu.Unlock()
	was, had := w.objects[at.key]
	now := summary{component: was.component, version: versionOf(live), content: content}
	if had && now.version >= was.version && componentOf(live) == was.component.Value() {
		if g := l.group(was.component); !g.rest {
			w.objects[at.key] = now
			l.keep(g, at, live, jsonsize.Memory(live))
		}
	}
	return live, nil
}

// lookup returns an object from memory, and whether the object is known to exist. If it exists, but
// the returned object is nil, it has to be read.
func (l *Cache) lookup(at place, id differ.ID) (object map[string]any, there bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, had := at.kind.objects[at.key]
	version := was.version
	last := l.lastWritten(id)
	newer := last != nil && (!had || last.version > version)
	if newer {
		object, had, version = last.object, true, last.version
	}
	if !had {
		return nil, false
	}
	if full := l.full[id].object; full != nil {
		if version != 0 && versionOf(full) == version {
			return full, true
		}
		l.dropFull(id)
	}
	if !newer {
		object = l.group(was.component).bodies[at].object
	}
	return object, true
}

func componentOf(o map[string]any) string {
	return (&unstructured.Unstructured{Object: o}).GetLabels()[v1alpha1.LabelComponent]
}

// lastWritten returns the answer to the last write of an object, if no watch has reached it; else
// nil.
func (l *Cache) lastWritten(id differ.ID) *written {
	w, ok := l.written[id]
	if !ok {
		return nil
	}
	if l.options.Now().Sub(w.at) > writtenFor {
		l.dropWritten(id)
		return nil
	}
	return &w
}

func (l *Cache) dropWritten(id differ.ID) {
	l.held -= l.written[id].size
	delete(l.written, id)
}

// Fresh implements [observe.Reader]. The answer is kept with its managedFields until the object
// changes. So a field that a controller owns is looked up once.
func (l *Cache) Fresh(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	live, err := observe.Get(ctx, l.dynamic, m, id)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropFull(id)
	if size := jsonsize.Memory(live); live != nil && l.held+size <= keptBytes {
		l.full[id] = body{live, size}
		l.held += size
	}
	return live, nil
}

// Scaled implements [observe.Reader].
func (l *Cache) Scaled(ctx context.Context, served []schema.GroupVersionResource) (map[differ.ID]differ.Scaling, error) {
	kinds := make([]*watched, 0, len(served))
	for _, gvr := range served {
		w, err := l.kind(ctx, gvr, true)
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, w)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := fmt.Sprint(served); l.scaled == nil || l.scaledFor != of {
		l.scaled, l.scaledFor = map[differ.ID]differ.Scaling{}, of
		for _, w := range kinds {
			for _, s := range w.scales {
				l.scaled[s.id] |= s.what
			}
		}
	}
	return l.scaled, nil
}

// Wrote implements [observe.Reader]. The watch may already have a newer version than the answer.
func (l *Cache) Wrote(id differ.ID, object map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropWritten(id)
	if object == nil {
		return // the watch reports the deletion
	}
	w := written{version: versionOf(object), at: l.options.Now()}
	if size := jsonsize.Memory(object); l.held+size <= keptBytes {
		w.body = body{object, size}
		l.held += size
	}
	l.written[id] = w
	key := objectKey{namespace: unique.Make(id.Namespace), name: unique.Make(id.Name)}
	for _, w := range l.kinds {
		if o, had := w.objects[key]; had && w.kind.Group == id.Group && w.kind.Kind == id.Kind {
			l.caughtUp(id, o.version)
		}
	}
}

// Wake implements [observe.Keeper].
func (l *Cache) Wake(component string) (mark uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.group(unique.Make(component))
	g.awake, g.rest = true, false
	return g.moves
}

// Expect keeps the objects of components in memory, because the components will be reconciled.
func (l *Cache) Expect(components []string) {
	for _, component := range components {
		l.Wake(component)
	}
}

// Forget drops the objects of a component that will not be reconciled.
func (l *Cache) Forget(component string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.groups[unique.Make(component)]; g != nil {
		l.dropAll(g)
		*g = group{moves: l.move()}
	}
}

// Rest implements [observe.Keeper].
func (l *Cache) Rest(component string, mark uint64, ids []differ.ID, health health.Rules) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.group(unique.Make(component))
	if g.moves != mark {
		return false
	}
	for _, id := range ids {
		if l.lastWritten(id) != nil {
			l.options.Later(component, writtenFor) // the latest time
			return false
		}
	}
	now := l.options.Now()
	if rest := warmFor - now.Sub(g.movedAt); g.warm && rest > 0 {
		l.options.Later(component, rest)
		return false
	}
	l.dropAll(g)
	*g = group{rest: true, moves: mark, health: health, restedAt: now, movedAt: g.movedAt}
	for _, id := range ids {
		l.dropFull(id)
	}
	return true
}

// AtRest implements [observe.Keeper].
func (l *Cache) AtRest(component string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[unique.Make(component)]
	return g != nil && g.rest
}

// Restart lists everything again, after the API server was unreachable for a while. A component
// without changes stays at rest. Restart returns when every kind was listed, or failed to be listed.
func (l *Cache) Restart(ctx context.Context) {
	l.mu.Lock()
	for id := range l.written {
		l.dropWritten(id)
	}
	for id := range l.full {
		l.dropFull(id)
	}
	kinds := make(map[*watched]*feed, len(l.kinds))
	for _, w := range l.kinds {
		w.start() //nolint:contextcheck // a watch outlives the call
		kinds[w] = w.feed
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	for w, f := range kinds {
		select {
		case <-f.synced:
			continue
		case <-f.failed:
		case <-ctx.Done():
		}
		f.locked(func(n *affected) { l.disturb(n, w) }) // a reader gets the reason why the kind can't be listed
	}
}

// Stats says what a [Cache] has in memory.
type Stats struct {
	Objects int // known objects, with a body or without
	Bodies  int // objects in memory as a whole
	Resting int // components at rest
}

// Stats counts what is in memory.
func (l *Cache) Stats() (s Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Bodies = len(l.full) + len(l.written)
	for _, w := range l.kinds {
		s.Objects += len(w.objects)
	}
	for _, g := range l.groups {
		s.Bodies += len(g.bodies)
		if g.rest {
			s.Resting++
		}
	}
	return s
}

// Version returns the resourceVersion that the watches have shown of an object; 0: none.
func (l *Cache) Version(gvr schema.GroupVersionResource, namespace, name string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.kinds[gvr]
	if w == nil {
		return 0
	}
	return w.objects[objectKey{namespace: unique.Make(namespace), name: unique.Make(name)}].version
}
