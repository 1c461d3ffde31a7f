package livecache_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/delivery/livecache"
)

// What a plan is made from changes the digest of an object, and nothing else does.
func TestDigest(t *testing.T) {
	t.Parallel()
	object := func() map[string]any {
		var u unstructured.Unstructured
		if err := u.UnmarshalJSON([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","uid":"1",
			"resourceVersion":"5","generation":1,"managedFields":[{"manager":"x"}],"labels":{"k":"v"}},
			"data":{"a":"1","b":""},"list":[1,2.5,true,null,{}],"status":{"ready":true}}`)); err != nil {
			t.Fatal(err)
		}
		return u.Object
	}
	cases := map[string]struct {
		why, path string
		value     any
		same      bool
	}{
		"Status":     {"Health is read of it, and no plan.", "status", map[string]any{}, true},
		"Version":    {"Every write changes it.", "metadata/resourceVersion", "6", true},
		"Generation": {"It says that something changed, and not what.", "metadata/generation", int64(2), true},
		"Managers":   {"They are read where they decide.", "metadata/managedFields", []any{}, true},
		"UID":        {"It is another object of the name.", "metadata/uid", "2", false},
		"Deletion":   {"It is being deleted.", "metadata/deletionTimestamp", "2026-01-01T00:00:00Z", false},
		"Label":      {"It may have moved.", "metadata/labels/k", "w", false},
		"Data":       {"It drifted.", "data/a", "2", false},
		"Deeper":     {"It is called as the status is, and is none.", "data/status", "2", false},
		"Keys":       {"Text does not run from one key to the next.", "data", map[string]any{"a": "1b", "": ""}, false},
		"Null":       {"A null is no empty text.", "data/b", nil, false},
		"Type":       {"A number is no text.", "data/a", int64(1), false},
		"Order":      {"Lists are ordered.", "list", []any{2.5, int64(1), true, nil, map[string]any{}}, false},
		"Nesting":    {"A list in a list is another list.", "list", []any{[]any{int64(1), 2.5}, true, nil, map[string]any{}}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after := object()
			if err := unstructured.SetNestedField(after, c.value, strings.Split(c.path, "/")...); err != nil {
				t.Fatal(err)
			}
			if same := livecache.Digest(object()) == livecache.Digest(after); same != c.same {
				t.Errorf("%s The same digest: %v", c.why, same)
			}
		})
	}
}

// Two objects have the same digest if, and only if, they are the same.
func TestDigestTellsObjectsApart(t *testing.T) {
	t.Parallel()
	leaf := rapid.OneOf(
		rapid.Map(rapid.StringMatching(`[ab]{0,2}`), func(s string) any { return s }),
		rapid.Map(rapid.Int64Range(0, 2), func(n int64) any { return n }),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Just[any](nil),
	)
	tree := leaf
	for range 3 {
		tree = rapid.OneOf(leaf,
			rapid.Map(rapid.SliceOfN(tree, 0, 3), func(l []any) any { return l }),
			rapid.Map(rapid.MapOfN(rapid.StringMatching(`[ab]{0,2}`), tree, 0, 3), func(m map[string]any) any { return m }))
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := map[string]any{"spec": tree.Draw(t, "a")}, map[string]any{"spec": tree.Draw(t, "b")}
		if same := livecache.Digest(a) == livecache.Digest(b); same != reflect.DeepEqual(a, b) {
			t.Errorf("the same digest: %v\n%v\n%v", same, a, b)
		}
	})
}
