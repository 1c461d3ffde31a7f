package delivery

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/json"
)

// largeEvent is the size in bytes of an event from which on the buffer is dropped
// that it leaves behind: it would stay as large for as long as the watch lasts, and
// a CRD may have half a megabyte.
const largeEvent = 16 << 10

// streamer begins watches, as [dynamic.Interface] does, but scans what comes twice
// and not twelve times. The first events of each watch are most of a restart.
type streamer struct{ client rest.Interface }

func newStreamer(config *rest.Config) (streamer, error) {
	client, err := rest.UnversionedRESTClientFor(dynamic.ConfigFor(config))
	if err != nil {
		return streamer{}, fmt.Errorf("client of watches: %w", err)
	}
	return streamer{client}, nil
}

// watch begins a watch. An API server sends a bookmark a minute for each watch that
// asks for them, which would be most of what a fleet at rest costs. So only those
// watches ask for them that bring what there is first: one tells that they have. From
// there on another watch takes their place.
//
// Without bookmarks a Reflector begins anew from the last event it saw. Where much has
// happened to objects of the kind that it doesn't see, that may be too old: it lists.
func (s streamer) watch(ctx context.Context, from source, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	o.AllowWatchBookmarks = o.SendInitialEvents != nil && *o.SendInitialEvents
	body, err := s.begin(ctx, from, o)
	if err != nil {
		return nil, err
	}
	e := newEvents(body, nil)
	if o.AllowWatchBookmarks {
		o.SendInitialEvents, o.ResourceVersionMatch, o.AllowWatchBookmarks = nil, "", false
		e.after = func(version string) (io.ReadCloser, error) {
			o.ResourceVersion = version
			return s.begin(ctx, from, o)
		}
	}
	unread := apierrors.NewClientErrorReporter(http.StatusInternalServerError, "watch", "ClientWatchDecoding")
	return watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), e, unread), nil
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

// source is what a watch is of.
type source struct {
	gvr       schema.GroupVersionResource
	namespace string // "": all
	metadata  bool   // and nothing else of the objects
}

// events reads those of a watch. It implements [watch.Decoder].
type events struct {
	rest    io.Reader // what the decoder reads from
	decoder json.Decoder
	// after begins the watch that takes the place of this one; nil: none does.
	after func(version string) (io.ReadCloser, error)
	known string // the version from which on it does; "": not yet

	mu     sync.Mutex
	body   io.ReadCloser
	closed bool
}

func newEvents(body io.ReadCloser, after func(version string) (io.ReadCloser, error)) *events {
	return &events{body: body, rest: body, decoder: json.NewDecoderCaseSensitivePreserveInts(body), after: after}
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
	if e.after != nil && is == watch.Bookmark && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
		e.known = object.GetResourceVersion()
	}
	return is, object, nil
}

// goOn takes the next watch in place of this one. Where that can't be had, this one
// stays, with its bookmarks.
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
