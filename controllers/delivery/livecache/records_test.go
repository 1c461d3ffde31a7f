package livecache

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/applier/records"
)

// TestRecordFeed: a component is looked at when its record changes, and when it is gone
// though no watch told of it.
func TestRecordFeed(t *testing.T) {
	var heard []string
	feed := &recordFeed{components: map[string]bool{}, seen: func(component, version string) { heard = append(heard, component+"@"+version) }}
	secret := func(component, version string) any {
		of := metav1.ObjectMeta{Name: "record-" + component, ResourceVersion: version, Labels: map[string]string{records.Label: component}}
		if component != "a" {
			return &metav1.PartialObjectMetadata{ObjectMeta: of} // as a list brings it
		}
		o := &unstructured.Unstructured{} // as a watch does
		o.SetName(of.Name)
		o.SetResourceVersion(of.ResourceVersion)
		o.SetLabels(of.Labels)
		return o
	}
	for _, step := range []struct {
		do   func() error
		want []string
	}{
		{func() error { return feed.Replace([]any{secret("a", "1"), secret("b", "2")}, "2") }, []string{"a@1", "b@2"}},
		{func() error { return feed.Update(secret("a", "3")) }, []string{"a@3"}},
		{func() error { return feed.Add(secret("c", "4")) }, []string{"c@4"}},
		{func() error { return feed.Delete(secret("b", "5")) }, []string{"b@5"}},
		{func() error { return feed.Replace([]any{secret("a", "3")}, "9") }, []string{"a@3", "c@9"}}, // b was gone before
		{func() error { return feed.Replace(nil, "10") }, []string{"a@10"}},
	} {
		heard = nil
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, heard); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	if err := feed.Update("something"); err == nil {
		t.Error("what is no metadata was taken for a record")
	}
}
