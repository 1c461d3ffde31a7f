package livecache

import (
	"context"
	gojson "encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/json"

	"github.com/keelson-io/keelson/controllers/connect"
)

// largeEvent is the event size in bytes from which on the decoder's buffer is dropped. Otherwise
// the buffer would stay that large as long as the watch, and a CRD may have half a megabyte.
const largeEvent = 16 << 10

// streamer begins watches like [dynamic.Interface], but scans the input twice instead of twelve
// times. The initial events of watches are most of the work of a restart.
type streamer struct{ client rest.Interface }

func newStreamer(config *rest.Config) (streamer, error) {
	client, err := rest.UnversionedRESTClientFor(dynamic.ConfigFor(config))
	if err != nil {
		return streamer{}, fmt.Errorf("client of watches: %w", err)
	}
	return streamer{client}, nil
}

// watch begins a watch. An API server sends a bookmark per minute to each watch that asks for
// bookmarks. They would be most of the cost of a fleet at rest. So only a watch with initial events
// asks for them: a bookmark marks the end of these events. Then a watch without bookmarks takes
// over. After maxObjects initial objects the watch ends with an error: a cluster may send them for
// ever.
//
// Without bookmarks a Reflector resumes at the last event that it received. That version may be too
// old after many changes to other objects of the kind; then the Reflector lists.
func (s streamer) watch(ctx context.Context, from source, o metav1.ListOptions, take taker) (watch.Interface, error) {
	o.Watch = true
	o.AllowWatchBookmarks = o.SendInitialEvents != nil && *o.SendInitialEvents
	body, err := s.begin(ctx, from, o)
	if err != nil {
		return nil, err
	}
	e := newEvents(body, take)
	if o.AllowWatchBookmarks {
		o.SendInitialEvents, o.ResourceVersionMatch, o.AllowWatchBookmarks = nil, "", false
		e.initial = true
		e.after = func(version string) (io.ReadCloser, error) {
			o.ResourceVersion = version
			return s.begin(ctx, from, o)
		}
	}
	unread := apierrors.NewClientErrorReporter(http.StatusInternalServerError, "watch", "ClientWatchDecoding")
	return watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), e, unread), nil
}

// list decodes a list item by item, so that only the taken part of each item stays in memory.
func (s streamer) list(ctx context.Context, from source, o metav1.ListOptions, most int, take taker) (*metainternalversion.List, error) {
	body, err := s.begin(connect.Streamed(ctx), from, o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	list, err := readList(json.NewDecoderCaseSensitivePreserveInts(body), most, take)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", from.gvr.GroupResource(), err)
	}
	return list, nil
}

// taker converts an object of a list or watch to the part that is kept.
type taker func(*unstructured.Unstructured) runtime.Object

func readList(d json.Decoder, most int, take taker) (*metainternalversion.List, error) {
	var out metainternalversion.List
	var is metav1.TypeMeta
	if err := delimiter(d, '{'); err != nil {
		return nil, err
	}
	listed := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("decode: %w", err)
		}
		var into any = new(any) // all other fields are skipped
		switch key {
		case "kind":
			into = &is.Kind
		case "apiVersion":
			into = &is.APIVersion
		case "metadata":
			into = &out.ListMeta
		case "items":
			if out.Items, err = readItems(d, is, most, take); err != nil {
				return nil, err
			}
			listed = true
			continue
		}
		if err := d.Decode(into); err != nil {
			return nil, fmt.Errorf("decode: %w", err)
		}
	}
	if !listed { // an empty list would mean that all objects are gone
		return nil, errors.New("the answer is not a list: it has no items")
	}
	return &out, delimiter(d, '}')
}

func readItems(d json.Decoder, of metav1.TypeMeta, most int, take taker) ([]runtime.Object, error) {
	var out []runtime.Object
	switch token, err := d.Token(); {
	case err != nil:
		return nil, fmt.Errorf("decode: %w", err)
	case token == nil: // null
		return nil, nil
	case token != gojson.Delim('['):
		return nil, fmt.Errorf("the answer is not a list: its items are %.20v", token)
	}
	for d.More() {
		if len(out) == most {
			return nil, tooMany()
		}
		var object map[string]any
		if err := d.Decode(&object); err != nil {
			return nil, fmt.Errorf("decode an item: %w", err)
		}
		u := &unstructured.Unstructured{Object: object}
		if u.GetKind() == "" && object != nil { // API servers leave out the kind that the list implies
			u.SetKind(strings.TrimSuffix(of.Kind, "List"))
			u.SetAPIVersion(of.APIVersion)
		}
		if u.GetKind() == "" || u.GetAPIVersion() == "" {
			return nil, errors.New("an item has no kind or apiVersion")
		}
		out = append(out, take(u))
	}
	return out, delimiter(d, ']')
}

func delimiter(d json.Decoder, want gojson.Delim) error {
	switch token, err := d.Token(); {
	case err != nil:
		return fmt.Errorf("decode: %w", err)
	case token != want:
		return fmt.Errorf("decode: it has %.20v where %v was to come", token, want)
	}
	return nil
}

// maxObjects bounds how many objects of one kind are watched in one cluster. A cluster of 10,000
// nodes and 200 components has some 2,000 of the most frequent kind.
const maxObjects = 20_000

func tooMany() error {
	return fmt.Errorf("the cluster has more than %d objects of one kind to watch, and Keelson watches no more: delete those that are not needed", maxObjects)
}

// pages counts the objects of the pages of a list. An empty page counts as one object: an API
// server may name a next page for ever.
type pages struct{ seen int }

// remaining returns how many objects the next page may have.
func (p *pages) remaining(o metav1.ListOptions) int {
	if o.Continue == "" {
		p.seen = 0
	}
	return maxObjects - p.seen
}

func (p *pages) add(objects int) error {
	if p.seen += max(1, objects); p.seen > maxObjects {
		return tooMany()
	}
	return nil
}

func (s streamer) begin(ctx context.Context, from source, o metav1.ListOptions) (io.ReadCloser, error) {
	path := []string{"/apis", from.gvr.Group, from.gvr.Version}
	if from.gvr.Group == "" {
		path = []string{"/api", from.gvr.Version}
	}
	r := s.client.Get().AbsPath(path...).NamespaceIfScoped(from.namespace, from.namespace != "").Resource(from.gvr.Resource)
	if from.metadata {
		r.SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	}
	return r.VersionedParams(&o, metav1.ParameterCodec).Stream(ctx) //nolint:wrapcheck // the reflector looks at it
}

// source is the resource that a watch is for.
type source struct {
	gvr       schema.GroupVersionResource
	namespace string // "": all namespaces
	metadata  bool   // only the metadata of the objects
}

// events decodes the events of a watch. It implements [watch.Decoder].
type events struct {
	rest    io.Reader // what the decoder reads from
	decoder json.Decoder
	// after begins the watch that replaces this one; nil: there is none.
	after func(version string) (io.ReadCloser, error)
	known string // the version at which that watch begins; "": not known yet
	take  taker  // nil: objects stay unchanged
	// initial: the events are initial ones, and seen counts them.
	initial bool
	seen    int

	mu     sync.Mutex
	body   io.ReadCloser
	closed bool
}

func newEvents(body io.ReadCloser, take taker) *events {
	return &events{body: body, rest: body, decoder: json.NewDecoderCaseSensitivePreserveInts(body), take: take}
}

// Decode implements [watch.Decoder].
func (e *events) Decode() (watch.EventType, runtime.Object, error) {
	if e.known != "" {
		e.goOn()
	}
	is, object, err := e.next()
	if err != nil {
		return "", nil, err
	}
	switch {
	case is == watch.Bookmark && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
		e.initial = false
		if e.after != nil {
			e.known = object.GetResourceVersion()
		}
	case e.initial:
		if e.seen++; e.seen > maxObjects {
			return "", nil, tooMany()
		}
	}
	if is == watch.Bookmark || is == watch.Error || e.take == nil {
		return is, object, nil
	}
	return is, e.take(object), nil
}

// goOn replaces this watch by the next one. If that fails, this watch stays, with its bookmarks.
func (e *events) goOn() {
	body, err := e.after(e.known)
	e.after, e.known = nil, ""
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		_ = body.Close()
		return
	}
	_ = e.body.Close()
	e.body, e.rest, e.decoder = body, body, json.NewDecoderCaseSensitivePreserveInts(body)
}

func (e *events) next() (watch.EventType, *unstructured.Unstructured, error) {
	var event struct {
		Type   watch.EventType `json:"type"`
		Object map[string]any  `json:"object"`
	}
	began := e.decoder.InputOffset()
	if err := e.decoder.Decode(&event); err != nil {
		return "", nil, err //nolint:wrapcheck // the watcher looks at it
	}
	if e.decoder.InputOffset()-began > largeEvent {
		e.rest = io.MultiReader(e.decoder.Buffered(), e.rest)
		e.decoder = json.NewDecoderCaseSensitivePreserveInts(e.rest)
	}
	object := &unstructured.Unstructured{Object: event.Object}
	switch event.Type {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark, watch.Error:
	default:
		return "", nil, fmt.Errorf("an event of an unknown type: %q", event.Type)
	}
	if object.GetKind() == "" || object.GetAPIVersion() == "" {
		return "", nil, fmt.Errorf("the object of an event (%s) has no kind or apiVersion", event.Type)
	}
	return event.Type, object, nil
}

// Close implements [watch.Decoder].
func (e *events) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	_ = e.body.Close()
}
