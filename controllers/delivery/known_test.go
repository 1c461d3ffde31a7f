package delivery

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
)

// TestKnownOf: what is known of Deliveries that were read together is what is known of
// each alone, and is not what they were decoded into.
func TestKnownOf(t *testing.T) {
	at := metav1.NewTime(time.Unix(1, 0))
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: at}
	stalled := metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, LastTransitionTime: at}
	statuses := map[string]v1alpha1.DeliveryStatus{
		"":      {},
		"whole": {Cluster: "c", Component: "whole", LastDiff: &v1alpha1.DiffSummary{Time: at, Created: 2}, Conditions: []metav1.Condition{ready}},
		"two":   {Cluster: "c", Component: "two", Message: "waits", Conditions: []metav1.Condition{ready, stalled}},
	}
	var read, want []v1alpha1.Delivery
	for component, status := range statuses {
		d := v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{
			Name: "c." + component, Namespace: v1alpha1.Namespace, UID: types.UID("uid-" + component), ResourceVersion: fmt.Sprint(len(component)),
			Labels: map[string]string{v1alpha1.LabelCluster: "c", v1alpha1.LabelComponent: component},
		}, Status: status}
		read, want = append(read, d), append(want, *d.DeepCopy())
	}
	got := knownOf(read)
	for i := range read { // as a decoder would that uses them again
		for j := range read[i].Status.Conditions {
			read[i].Status.Conditions[j] = metav1.Condition{}
		}
		if last := read[i].Status.LastDiff; last != nil {
			*last = v1alpha1.DiffSummary{}
		}
	}
	for i := range want {
		is := got[i].delivery(want[i].Name)
		if len(want[i].Status.Conditions) == 0 {
			is.Status.Conditions = nil
		}
		if diff := cmp.Diff(&want[i], is); diff != "" {
			t.Errorf("%s: -want +got:\n%s", want[i].Name, diff)
		}
	}
}

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
