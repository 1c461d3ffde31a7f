package delivery

import (
	"context"
	"fmt"
	"io"
	"net/http"

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

// tellEvery is which of the bookmarks in row is told of: the fifth. An API server
// sends one a minute for each watch; they are most of what a fleet at rest costs.
// Whoever begins a watch of all objects of a kind anew has seen all that happened
// since the last one, so it may be as old.
const tellEvery = 5

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

// watch begins a watch of all namespaces.
func (s streamer) watch(ctx context.Context, gvr schema.GroupVersionResource, o metav1.ListOptions) (watch.Interface, error) {
	path := []string{"/apis", gvr.Group, gvr.Version, gvr.Resource}
	if gvr.Group == "" {
		path = []string{"/api", gvr.Version, gvr.Resource}
	}
	o.Watch = true
	body, err := s.client.Get().AbsPath(path...).VersionedParams(&o, metav1.ParameterCodec).Stream(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // the reflector looks at it
	}
	unread := apierrors.NewClientErrorReporter(http.StatusInternalServerError, "watch", "ClientWatchDecoding")
	return watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), newEvents(body), unread), nil
}

// events reads those of a watch. It implements [watch.Decoder].
type events struct {
	body    io.ReadCloser
	rest    io.Reader // what the decoder reads from
	decoder json.Decoder
	untold  int // bookmarks
}

func newEvents(body io.ReadCloser) *events {
	return &events{body, body, json.NewDecoderCaseSensitivePreserveInts(body), 0}
}

// Decode implements [watch.Decoder]. It passes over most bookmarks.
func (e *events) Decode() (watch.EventType, runtime.Object, error) {
	for {
		is, object, err := e.next()
		if err != nil {
			return "", nil, err
		}
		if is != watch.Bookmark || e.tells(object) {
			return is, object, nil
		}
	}
}

// tells reports whether a bookmark is one to tell of: that which ends the first
// events of a watch always is.
func (e *events) tells(bookmark *unstructured.Unstructured) bool {
	e.untold++
	if bookmark.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "" && e.untold < tellEvery {
		return false
	}
	e.untold = 0
	return true
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
func (e *events) Close() { _ = e.body.Close() }
