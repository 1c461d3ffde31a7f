package livecache_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/delivery/livecache"
)

// TestReadList: a list that is read item by item has the items that the dynamic client
// makes of it.
func TestReadList(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ why, text, wantErr string }{
		"Typed":      {why: "API servers leave the kind of items to the list.", text: `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"next"},"items":[{"metadata":{"name":"a"},"data":{"a":"1"}},{"metadata":{"name":"b"}}]}`},
		"Custom":     {why: "Custom resources say it themselves.", text: `{"apiVersion":"a.example/v1","items":[{"apiVersion":"a.example/v1","kind":"A","metadata":{"name":"a"},"spec":{"n":1,"f":1.5}}],"kind":"AList","metadata":{"resourceVersion":"7"}}`},
		"Empty":      {why: "There may be none.", text: `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`},
		"Null":       {why: "Some aggregated APIs say so.", text: `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":null}`},
		"NoItems":    {why: "Not an answer: all that is known would be taken for gone.", text: `{"kind":"Status","apiVersion":"v1"}`, wantErr: "not a list"},
		"ItemsText":  {why: "As above.", text: `{"kind":"ConfigMapList","apiVersion":"v1","items":"a"}`, wantErr: "not a list"},
		"More":       {why: "What is not known is not needed.", text: `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"other":{"a":[1]},"items":[]}`},
		"TooMany":    {why: "A cluster may claim any number.", text: `{"kind":"ConfigMapList","apiVersion":"v1","items":[` + strings.Repeat("{},", 4) + `{}]}`, wantErr: "more than 20000 objects of one kind to watch"},
		"NoKind":     {why: "It can not be told what it is.", text: `{"items":[{}]}`, wantErr: "no kind or apiVersion"},
		"NullItem":   {why: "As above.", text: `{"kind":"ConfigMapList","apiVersion":"v1","items":[null]}`, wantErr: "no kind or apiVersion"},
		"NoList":     {why: "Not an answer.", text: `[]`, wantErr: "it has [ where { was to come"},
		"ItemsNoMap": {why: "As above.", text: `{"kind":"ConfigMapList","apiVersion":"v1","items":["a"]}`, wantErr: "decode an item"},
		"CutOff":     {why: "Half a list is none: what is not in it would be taken for gone.", text: `{"kind":"ConfigMapList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}`, wantErr: "decode"},
		"CutOffLate": {why: "As above.", text: `{"kind":"ConfigMapList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}]`, wantErr: "decode"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := livecache.ReadList(c.text, 4)
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("%s\ngot error %v, want one that says %q", c.why, err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s\n%v", c.why, err)
			}
			decoded, _, err := unstructured.UnstructuredJSONScheme.Decode([]byte(c.text), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			want, ok := decoded.(*unstructured.UnstructuredList)
			if !ok { // it has no items for this decoder
				want = &unstructured.UnstructuredList{Object: decoded.(*unstructured.Unstructured).Object} //nolint:forcetypeassert // it is one of the two
			}
			if got.ResourceVersion != want.GetResourceVersion() || got.Continue != want.GetContinue() || len(got.Items) != len(want.Items) {
				t.Fatalf("%s\ngot %+v, want %+v", c.why, got, want)
			}
			for i := range want.Items {
				if !reflect.DeepEqual(got.Items[i], &want.Items[i]) {
					t.Errorf("%s\nitem %d is %v, want %v", c.why, i, got.Items[i], &want.Items[i])
				}
			}
		})
	}
}

// TestBodiesAreBounded: of the objects that a cluster claims those bodies are kept that fit,
// and only of components that are looked at. The others are known, and read when
// they are needed.
func TestBodiesAreBounded(t *testing.T) {
	t.Parallel()
	const most = 32 << 20
	object := func(component string, i, size int) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"a": strings.Repeat("x", size)},
			"metadata": map[string]any{"name": fmt.Sprint(component, i), "namespace": "a", "resourceVersion": "1", "labels": map[string]any{v1alpha1.LabelComponent: component}},
		}}
	}
	objects := func(component string, n int) (out []*unstructured.Unstructured) {
		for i := range n {
			out = append(out, object(component, i, 1<<20))
		}
		return out
	}
	b := livecache.NewBodies("web")
	holds := func(what string, atLeast int) {
		t.Helper()
		held, summed, _ := b.Held()
		if held != summed || held > most || held < atLeast {
			t.Errorf("%s: %d bytes are held, and bodies take %d", what, held, summed)
		}
	}
	whole := func(all []*unstructured.Unstructured) (n int) {
		t.Helper()
		for _, u := range all {
			body, known := b.Known(u)
			if !known {
				t.Fatalf("%s is not known", u.GetName())
			}
			if body {
				n++
			}
		}
		return n
	}
	b.Break(objects("web", 100)...)
	if err := b.List(objects("web", 100)...); err != nil {
		t.Fatal(err)
	}
	holds("a list of 100 MiB, after one that ended in the middle", most/2)
	if n := whole(objects("web", 100)); n < 16 || n > 32 {
		t.Errorf("%d of 100 bodies are kept", n)
	}
	b.Wrote(object("web", 1000, 1<<20))
	holds("an answer to a write", most/2)
	for i := range 100 {
		if err := b.Delete(object("web", i, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	holds("all are deleted", 0)
	for i := range 3 {
		if err := b.Update(object("web", i, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	holds("three are new", 3<<20)
	if n := whole(objects("web", 3)); n != 3 {
		t.Errorf("%d of 3 bodies are kept", n)
	}
	if err := b.List(append(objects("web", 3), objects("other", 3)...)...); err != nil {
		t.Fatal(err)
	}
	holds("those of a component that is not looked at come", 3<<20)
	if n := whole(objects("other", 3)); n != 0 {
		t.Errorf("%d bodies are kept of a component that is not looked at", n)
	}
	b.Forget("web")
	if held, _, _ := b.Held(); held > 2<<20 { // the answer to the write
		t.Errorf("%d bytes are held after all were forgotten", held)
	}
}

// TestComponentsAreBounded: objects of ever new components that come and go leave nothing
// behind.
func TestComponentsAreBounded(t *testing.T) {
	t.Parallel()
	b := livecache.NewBodies("web")
	for i := range 100_000 {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": "a", "namespace": "a", "resourceVersion": fmt.Sprint(i + 1), "labels": map[string]any{v1alpha1.LabelComponent: fmt.Sprint("c", i)}},
		}}
		if err := b.Update(u); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, groups := b.Held(); groups > 30_000 {
		t.Errorf("%d components are known", groups)
	}
}
