package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// bookmarkEvery is the interval of bookmarks in a watch, as in API servers.
const bookmarkEvery = time.Minute

// stream is one watch.
type stream struct {
	a      *answer
	k      *kind
	chosen *selection
	out    io.Writer
	buffer []byte
	// version is the last version that the client has received.
	version   uint64
	bookmarks bool
}

func (a *answer) watch(k *kind) error {
	o, err := a.listOptions()
	if err != nil {
		return err
	}
	chosen, err := newSelection(k, a.about.Namespace, o)
	if err != nil {
		return err
	}
	if a.about.Name != "" {
		chosen.fields = fields.AndSelectors(chosen.fields, fields.OneTermEqualSelector("metadata.name", a.about.Name))
	}
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	if err := askedWell(o); err != nil {
		return err
	}
	from, err := versionOf(o.ResourceVersion)
	if err != nil {
		return err
	}
	limit := patience
	if o.TimeoutSeconds != nil && *o.TimeoutSeconds > 0 {
		limit = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	s := &stream{a: a, k: k, chosen: chosen, version: from, bookmarks: o.AllowWatchBookmarks, out: a.w}
	media := runtime.ContentTypeJSON
	if a.protobuf {
		media, s.out = runtime.ContentTypeProtobuf+";stream=watch", protobuf.LengthDelimitedFramer.NewFrameWriter(a.w)
	}
	a.w.Header().Set("Content-Type", media)
	a.w.WriteHeader(http.StatusOK)
	a.w.Flush()
	s.run(limit, initial || o.SendInitialEvents == nil && from == 0, initial)
	return nil
}

// askedWell rejects options that API servers reject.
func askedWell(o *metav1.ListOptions) error {
	why := ""
	switch {
	case o.SendInitialEvents != nil && o.ResourceVersionMatch != metav1.ResourceVersionMatchNotOlderThan:
		why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
	case o.SendInitialEvents == nil && o.ResourceVersionMatch != "":
		why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
	default:
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", field.ErrorList{
		field.Forbidden(field.NewPath("resourceVersionMatch"), why),
	})
}

// run sends events until the client disconnects, the limit is over, or the watch is cut. A failed
// write means that the client has disconnected.
func (s *stream) run(limit time.Duration, state, marked bool) {
	gr := s.k.groupResource()
	wake, stop := s.a.server.store.watch(gr)
	defer stop()
	cut := s.a.server.faults.cutter()
	if state {
		if err := s.state(marked); err != nil {
			return
		}
	}
	over := time.NewTimer(limit)
	defer over.Stop()
	// Spread the first bookmarks: watches that started together would all get theirs at once.
	mark := time.NewTimer(time.Duration(rand.Int64N(int64(bookmarkEvery)))) //nolint:gosec // no secret
	defer mark.Stop()
	for {
		if !s.catchUp() {
			return
		}
		select {
		case <-s.a.r.Context().Done():
			return
		case <-over.C:
			return
		case <-cut:
			return
		case <-mark.C:
			mark.Reset(bookmarkEvery)
			if s.bookmarks && s.bookmark(false) != nil {
				return
			}
			s.a.w.Flush()
		case <-wake:
		}
	}
}

// state sends the current objects.
func (s *stream) state(marked bool) error {
	objects, version := s.a.server.store.list(s.k.groupResource())
	s.version = version
	for _, o := range objects {
		if !s.chosen.matches(o) {
			continue
		}
		if err := s.event(apiwatch.Added, o); err != nil {
			return err
		}
	}
	if marked && s.bookmarks {
		if err := s.bookmark(true); err != nil {
			return err
		}
	}
	s.a.w.Flush()
	return nil
}

// catchUp sends the events since the last call. It returns false when the watch must end.
func (s *stream) catchUp() bool {
	store := s.a.server.store
	events, now, ok := store.since(s.k.groupResource(), s.version)
	if !ok {
		_ = s.failed(apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", s.version, now))) // the watch ends either way
		s.a.w.Flush()
		return false
	}
	for _, e := range events {
		before := e.before != nil && s.chosen.matches(e.before)
		is := e.is != nil && s.chosen.matches(e.is)
		var err error
		switch {
		case is && before:
			err = s.event(apiwatch.Modified, e.is)
		case is:
			err = s.event(apiwatch.Added, e.is)
		case before:
			last := *e.before
			last.version = e.version
			err = s.event(apiwatch.Deleted, &last)
		}
		if err != nil {
			return false
		}
	}
	s.version = max(s.version, now)
	if len(events) > 0 {
		s.a.w.Flush()
	}
	return true
}

func (s *stream) event(kind apiwatch.EventType, o *object) error {
	if s.a.protobuf || s.a.partial {
		t, err := s.a.convert(s.k, o)
		if err != nil {
			return err
		}
		return s.send(kind, t)
	}
	s.buffer = append(s.buffer[:0], `{"type":"`...)
	s.buffer = append(s.buffer, kind...)
	s.buffer = append(s.buffer, `","object":`...)
	s.buffer = append(o.append(s.buffer), "}\n"...)
	_, err := s.out.Write(s.buffer)
	return err //nolint:wrapcheck // the client is gone
}

// bookmark sends the current version. end marks the end of the initial objects.
func (s *stream) bookmark(end bool) error {
	metadata := metav1.ObjectMeta{ResourceVersion: strconv.FormatUint(s.version, 10)}
	if end {
		metadata.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	partial := &metav1.PartialObjectMetadata{ObjectMeta: metadata}
	if s.a.partial {
		partial.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}
		return s.send(apiwatch.Bookmark, partial)
	}
	partial.SetGroupVersionKind(s.k.GroupVersionKind)
	if !s.a.protobuf {
		return s.send(apiwatch.Bookmark, partial)
	}
	t, err := typed.New(s.k.GroupVersionKind)
	if err != nil {
		return err //nolint:wrapcheck // it ends the watch
	}
	m, err := meta.Accessor(t)
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	m.SetResourceVersion(metadata.ResourceVersion)
	m.SetAnnotations(metadata.Annotations)
	t.GetObjectKind().SetGroupVersionKind(s.k.GroupVersionKind)
	return s.send(apiwatch.Bookmark, t)
}

func (s *stream) failed(err error) error {
	status := statusOfError(err)
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return s.send(apiwatch.Error, status)
}

// send sends an event with an object of a Go type.
func (s *stream) send(kind apiwatch.EventType, o runtime.Object) error {
	raw, _, err := s.a.encoded(o)
	if err != nil {
		return err
	}
	e := &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}
	var b bytes.Buffer
	if s.a.protobuf {
		err = protobuf.NewRawSerializer(typed, typed).Encode(e, &b)
	} else {
		err = json.NewEncoder(&b).Encode(e)
	}
	if err == nil {
		_, err = s.out.Write(b.Bytes())
	}
	return err //nolint:wrapcheck // it ends the watch
}
