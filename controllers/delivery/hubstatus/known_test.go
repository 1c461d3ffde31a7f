package hubstatus

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
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
