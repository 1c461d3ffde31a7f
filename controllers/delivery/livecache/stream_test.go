package livecache_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/delivery/livecache"
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
			want, _, err := unstructured.UnstructuredJSONScheme.Decode(text, nil, nil)
			if err != nil {
				rt.Fatal(err)
			}
			wants, kinds = append(wants, want), append(kinds, kind)
		}
		next, _, _ := livecache.Events(io.NopCloser(strings.NewReader(stream.String())), nil)
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

// body is an answer of an API server.
type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error { b.closed = true; return nil }

// When all is told that there is, another watch goes on from there.
func TestEventsGoOn(t *testing.T) {
	t.Parallel()
	const (
		added = `{"type":"ADDED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"5"}}}`
		mark  = `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"6"}}}`
		end   = `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"7","annotations":{"` + metav1.InitialEventsAnnotationKey + `":"true"}}}}`
		late  = `{"type":"ADDED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","resourceVersion":"8"}}}`
		later = `{"type":"MODIFIED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","resourceVersion":"9"}}}`
	)
	for name, c := range map[string]struct {
		why, first, second string
		fails              bool
		from               []string
		want               []string
	}{
		"Goes":     {"The next brings what happened since.", added + end, late + later, false, []string{"7"}, []string{"5", "7", "8", "9"}},
		"Buffered": {"What was read of the first one already is told once: by the next.", added + end + late, late + later, false, []string{"7"}, []string{"5", "7", "8", "9"}},
		"Refused":  {"The first one is as good.", added + end + late + mark, later, true, []string{"7"}, []string{"5", "7", "8", "6"}},
		"Mark":     {"It doesn't say that all was told.", added + mark + late, later, false, nil, []string{"5", "6", "8"}},
		"Once":     {"The next one has nothing to tell first.", end, end + late, false, []string{"7"}, []string{"7", "7", "8"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := &body{Reader: strings.NewReader(c.first)}, &body{Reader: strings.NewReader(c.second)}
			var from []string
			next, stop, _ := livecache.Events(first, func(version string) (io.ReadCloser, error) {
				if from = append(from, version); c.fails {
					return nil, errors.New("not now")
				}
				return second, nil
			})
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
			went := c.from != nil && !c.fails
			if !slices.Equal(told, c.want) || !slices.Equal(from, c.from) || first.closed != went {
				t.Errorf("%s Told of %q, went on from %q, ended the first: %v; want %q, %q, %v", c.why, told, from, first.closed, c.want, c.from, went)
			}
			if stop(); second.closed != went || !first.closed {
				t.Errorf("%s In the end closed: the first %v, the next %v", c.why, first.closed, second.closed)
			}
		})
	}
}

// Who ends a watch while the next one begins ends that, too.
func TestEventsEndedMeanwhile(t *testing.T) {
	t.Parallel()
	second := &body{Reader: strings.NewReader("")}
	var stop func()
	next, end, _ := livecache.Events(io.NopCloser(strings.NewReader(
		`{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"7","annotations":{"`+metav1.InitialEventsAnnotationKey+`":"true"}}}}`)),
		func(string) (io.ReadCloser, error) { stop(); return second, nil })
	stop = end
	if _, _, err := next(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := next(); err == nil || !second.closed {
		t.Errorf("%v; the next is closed: %v", err, second.closed)
	}
}

// TestWatchAsksForNoBookmarks is on a real API server: those minutes of silence cost
// nothing, and no event is lost or doubled where one watch follows the other.
func TestWatchAsksForNoBookmarks(t *testing.T) {
	t.Parallel()
	apiservertest.Need(t, server)
	for name, metadata := range map[string]bool{"Whole": false, "Metadata": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var asked []string
			config := rest.CopyConfig(server)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					mu.Lock()
					defer mu.Unlock()
					asked = append(asked, "bookmarks="+r.URL.Query().Get("allowWatchBookmarks")+" initial="+r.URL.Query().Get("sendInitialEvents"))
					return next.RoundTrip(r)
				})
			})
			objects := dynamic.NewForConfigOrDie(server).Resource(configMaps).Namespace("default")
			prefix := "goes-on-" + strings.ToLower(name)
			create := func(name string) {
				o := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": prefix + "." + name, "labels": map[string]any{"of": prefix}}, "data": map[string]any{"a": "b"},
				}}
				if _, err := objects.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			create("before")
			w, err := livecache.Watch(t.Context(), config, "default", metadata, metav1.ListOptions{
				SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true, LabelSelector: "of=" + prefix,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			var told []string
			hear := func(events int) {
				for range events {
					select {
					case e := <-w.ResultChan():
						o, ok := e.Object.(*unstructured.Unstructured)
						if !ok {
							t.Fatalf("%s %v", e.Type, e.Object)
						}
						_, data := o.Object["data"]
						if e.Type != watch.Bookmark && data == metadata {
							t.Errorf("%s has data: %v", o.GetName(), data)
						}
						told = append(told, string(e.Type)+" "+strings.TrimPrefix(o.GetName(), prefix+"."))
					case <-time.After(patience):
						t.Fatalf("only %q was told", told)
					}
				}
			}
			hear(2)
			for i := range 20 { // while one takes the place of the other
				create(strconv.Itoa(i))
			}
			hear(20)
			if err := objects.Delete(t.Context(), prefix+".before", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			hear(1)
			want := []string{"ADDED before", "BOOKMARK "}
			for i := range 20 {
				want = append(want, "ADDED "+strconv.Itoa(i))
			}
			if diff := cmp.Diff(append(want, "DELETED before"), told); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff([]string{"bookmarks=true initial=true", "bookmarks= initial="}, asked); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// An invalid event ends a watch with an error, which a Reflector can tell from a quiet stream.
func TestEventsBroken(t *testing.T) {
	t.Parallel()
	const object = `{"apiVersion":"v1","kind":"ConfigMap"}`
	for name, c := range map[string]struct{ why, stream, wants string }{
		"Cut":     {"The connection broke in the middle of it.", `{"type":"ADDED","object":{"apiVer`, io.ErrUnexpectedEOF.Error()},
		"Kind":    {"The kind of the object is unknown.", `{"type":"ADDED","object":{"apiVersion":"v1"}}`, "no kind"},
		"Version": {"The API version of the object is unknown.", `{"type":"ADDED","object":{"kind":"ConfigMap"}}`, "apiVersion"},
		"None":    {"It has no object.", `{"type":"ADDED"}`, "no kind"},
		"Type":    {"It may mean anything.", `{"type":"MOVED","object":` + object + `}`, `"MOVED"`},
		"NoType":  {"It is something else.", object, `""`},
		"HTML":    {"It is something else.", `<html>`, "invalid character"},
		"List":    {"It is something else.", `[]`, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next, _, _ := livecache.Events(io.NopCloser(strings.NewReader(c.stream)), nil)
			if kind, o, err := next(); err == nil || !strings.Contains(err.Error(), c.wants) {
				t.Errorf("%s Read: %s %v, %v", c.why, kind, o, err)
			}
		})
	}
}

// A watch that the API server ends says why, as an object.
func TestEventsGone(t *testing.T) {
	t.Parallel()
	next, _, _ := livecache.Events(io.NopCloser(strings.NewReader(
		`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old","reason":"Expired","code":410}}`)), nil)
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
	next, _, buffers := livecache.Events(io.NopCloser(strings.NewReader(stream.String())), nil)
	for i := range 6 {
		if _, _, err := next(); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	if n := buffers(); n != 3 {
		t.Errorf("%d buffers were used; want a new one after each of the two large events", n)
	}
}
