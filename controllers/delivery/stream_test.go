package delivery_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/delivery"
)

// What a watch brings is read as the dynamic client reads objects, whatever is in it.
func TestEvents(t *testing.T) {
	t.Parallel()
	value := rapid.OneOf(
		rapid.Just[any](nil), rapid.Int64().AsAny(), rapid.Float64Range(-1e30, 1e30).AsAny(), rapid.Bool().AsAny(), rapid.String().AsAny(),
		rapid.SliceOfN(rapid.String().AsAny(), 0, 3).AsAny(), rapid.MapOfN(rapid.String(), rapid.Int64().AsAny(), 0, 3).AsAny(),
	)
	types := []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark}
	rapid.Check(t, func(rt *rapid.T) {
		var stream strings.Builder
		sent := rapid.IntRange(0, 12).Draw(rt, "events")
		var wants []runtime.Object
		var kinds []watch.EventType
		untold := 0 // bookmarks
		for range sent {
			object := map[string]any{"apiVersion": "v1", "kind": "Some", "data": rapid.MapOfN(rapid.String(), value, 0, 5).Draw(rt, "data")}
			if rapid.Bool().Draw(rt, "large") {
				object["text"] = strings.Repeat("x", rapid.IntRange(15<<10, 40<<10).Draw(rt, "size"))
			}
			ends := rapid.Bool().Draw(rt, "ends the first events")
			if ends {
				object["metadata"] = map[string]any{"annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"}}
			}
			text, err := json.Marshal(object)
			if err != nil {
				rt.Fatal(err)
			}
			kind := rapid.SampledFrom(types).Draw(rt, "type")
			fmt.Fprintf(&stream, `{"type":%q,"object":%s}`+"\n", kind, text)
			if kind == watch.Bookmark {
				if untold++; !ends && untold < 5 {
					continue
				}
				untold = 0
			}
			want, _, err := unstructured.UnstructuredJSONScheme.Decode(text, nil, nil)
			if err != nil {
				rt.Fatal(err)
			}
			wants, kinds = append(wants, want), append(kinds, kind)
		}
		next, _ := delivery.Events(io.NopCloser(strings.NewReader(stream.String())))
		for i, want := range wants {
			kind, object, err := next()
			if err != nil || kind != kinds[i] || !reflect.DeepEqual(object, want) {
				rt.Fatalf("event %d is %s %v, %v; want %s %v", i, kind, object, err, kinds[i], want)
			}
		}
		if _, _, err := next(); !errors.Is(err, io.EOF) {
			rt.Errorf("after the last one: %v", err)
		}
	})
}

// A watch of a kind to which nothing happens is told now and then how far it is, and
// at once that it knows all.
func TestEventsBookmarks(t *testing.T) {
	t.Parallel()
	const bookmark = `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"%d"%s}}}`
	var stream strings.Builder
	for version := range 20 {
		annotations := ""
		if version == 2 {
			annotations = `,"annotations":{"` + metav1.InitialEventsAnnotationKey + `":"true"}`
		}
		fmt.Fprintf(&stream, bookmark, version, annotations)
	}
	next, _ := delivery.Events(io.NopCloser(strings.NewReader(stream.String())))
	var told []string
	for {
		_, object, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		o, _ := object.(*unstructured.Unstructured)
		told = append(told, o.GetResourceVersion())
	}
	if want := []string{"2", "7", "12", "17"}; !slices.Equal(told, want) {
		t.Errorf("told of %q, want %q", told, want)
	}
}

// What is no event ends a watch with what a Reflector can tell from silence.
func TestEventsBroken(t *testing.T) {
	t.Parallel()
	const object = `{"apiVersion":"v1","kind":"ConfigMap"}`
	for name, c := range map[string]struct{ why, stream, wants string }{
		"Cut":     {"The connection broke in the middle of it.", `{"type":"ADDED","object":{"apiVer`, io.ErrUnexpectedEOF.Error()},
		"Kind":    {"Nobody knows what it is of.", `{"type":"ADDED","object":{"apiVersion":"v1"}}`, "no kind"},
		"Version": {"Nobody knows what it is of.", `{"type":"ADDED","object":{"kind":"ConfigMap"}}`, "apiVersion"},
		"None":    {"It has no object.", `{"type":"ADDED"}`, "no kind"},
		"Type":    {"It may mean anything.", `{"type":"MOVED","object":` + object + `}`, `"MOVED"`},
		"NoType":  {"It is something else.", object, `""`},
		"HTML":    {"It is something else.", `<html>`, "invalid character"},
		"List":    {"It is something else.", `[]`, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next, _ := delivery.Events(io.NopCloser(strings.NewReader(c.stream)))
			if kind, o, err := next(); err == nil || !strings.Contains(err.Error(), c.wants) {
				t.Errorf("%s Read: %s %v, %v", c.why, kind, o, err)
			}
		})
	}
}

// A watch that the API server ends says why, as an object.
func TestEventsGone(t *testing.T) {
	t.Parallel()
	next, _ := delivery.Events(io.NopCloser(strings.NewReader(
		`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old","reason":"Expired","code":410}}`)))
	kind, o, err := next()
	if err != nil || kind != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(o)) {
		t.Errorf("%s %v, %v", kind, o, err)
	}
}

// The buffer of a large event is not kept for the life of a watch.
func TestEventsBuffer(t *testing.T) {
	t.Parallel()
	var stream strings.Builder
	for _, size := range []int{10, 100 << 10, 10, 10, 100 << 10, 10} {
		fmt.Fprintf(&stream, `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Some","text":%q}}`, strings.Repeat("x", size))
	}
	next, buffers := delivery.Events(io.NopCloser(strings.NewReader(stream.String())))
	for i := range 6 {
		if _, _, err := next(); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	if n := buffers(); n != 3 {
		t.Errorf("%d buffers were used; want a new one after each of the two large events", n)
	}
}
