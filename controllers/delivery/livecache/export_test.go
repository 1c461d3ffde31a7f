package livecache

import (
	"context"
	"io"
	"strings"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/json"

	"github.com/keelson-io/keelson/differ"
)

// Digest is what is kept of an object's content.
func Digest(object map[string]any) [16]byte {
	return new(digesters).digest(object)
}

// Events reads the events of a watch, goes on with the next one where there is one,
// and says how many buffers it has used.
func Events(body io.ReadCloser, after func(version string) (io.ReadCloser, error)) (next func() (watch.EventType, runtime.Object, error), end func(), buffers func() int) {
	e := newEvents(body, nil)
	e.after = after
	used := map[any]bool{e.decoder: true}
	return func() (watch.EventType, runtime.Object, error) {
		kind, object, err := e.Decode()
		used[e.decoder] = true
		return kind, object, err
	}, e.Close, func() int { return len(used) }
}

// Watch watches ConfigMaps as a controller does, their metadata alone where that is
// told.
func Watch(ctx context.Context, config *rest.Config, namespace string, metadata bool, o metav1.ListOptions) (watch.Interface, error) {
	s, err := newStreamer(config)
	if err != nil {
		return nil, err
	}
	return s.watch(ctx, source{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, namespace, metadata}, o, nil)
}

// ReadList reads a list item by item.
func ReadList(text string, most int) (*metainternalversion.List, error) {
	return readList(json.NewDecoderCaseSensitivePreserveInts(strings.NewReader(text)), most, func(u *unstructured.Unstructured) runtime.Object { return u })
}

// Bodies is a cache of ConfigMaps, for which no API server is asked.
type Bodies struct {
	cache *Cache
	feed  *feed
}

// NewBodies makes one that looks at components.
func NewBodies(components ...string) Bodies {
	l := newCache(context.Background(), nil, streamer{}, Options{
		Now: time.Now, Changed: func(string) {}, Later: func(string, time.Duration) {}, SchemaChanged: func(string) {},
	})
	l.Expect(components)
	w := &watched{cache: l, gvr: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, objects: map[objectKey]summary{}}
	w.feed = &feed{watched: w, stop: func() {}, synced: make(chan struct{}), failed: make(chan struct{})}
	l.kinds[w.gvr] = w
	return Bodies{l, w.feed}
}

// List brings objects as a list does.
func (b Bodies) List(objects ...*unstructured.Unstructured) error {
	b.feed.begin()
	var list []any
	for _, u := range objects {
		list = append(list, b.feed.observe(u))
	}
	return b.feed.Replace(list, "")
}

// Break begins a list that ends in the middle.
func (b Bodies) Break(objects ...*unstructured.Unstructured) {
	b.feed.begin()
	for _, u := range objects {
		b.feed.observe(u)
	}
}

// Update brings an event.
func (b Bodies) Update(u *unstructured.Unstructured) error { return b.feed.Update(b.feed.observe(u)) }

// Delete brings an event.
func (b Bodies) Delete(u *unstructured.Unstructured) error { return b.feed.Delete(b.feed.observe(u)) }

// Forget is [Cache.Forget].
func (b Bodies) Forget(component string) { b.cache.Forget(component) }

// Wrote is [Cache.Wrote].
func (b Bodies) Wrote(u *unstructured.Unstructured) {
	id, _ := differ.Identify(u.Object)
	b.cache.Wrote(id, u.Object)
}

// Known says whether an object is known, and whether its body is.
func (b Bodies) Known(u *unstructured.Unstructured) (body, known bool) {
	id, _ := differ.Identify(u.Object)
	o, known := b.cache.lookup(place{b.feed.watched, keyOf(u)}, id)
	return o != nil, known
}

// Held is what bodies are said to take, and Summed what they do; Groups are how many
// components are known.
func (b Bodies) Held() (held, summed, groups int) {
	for _, g := range b.cache.groups {
		for _, o := range g.bodies {
			summed += o.size
		}
	}
	for _, o := range b.cache.full {
		summed += o.size
	}
	for _, o := range b.cache.written {
		summed += o.size
	}
	return b.cache.held, summed, len(b.cache.groups)
}
