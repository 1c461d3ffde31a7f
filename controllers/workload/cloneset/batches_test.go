package cloneset_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

// A CloneSet is updated in batches, by replacement beside the old pods, and stops at a batch that fails.
func TestBatches(t *testing.T) {
	w := newWorld(t)
	w.create(6, func(s *v1beta1.CloneSetSpec) {
		u := s.UpdateStrategy.RollingUpdate
		u.MaxSurge, u.MaxUnavailable = new(intstr.FromInt32(2)), new(intstr.FromInt32(0))
		u.Batches = &v1beta1.UpdateBatches{Sizes: []intstr.IntOrString{intstr.FromString("30%"), intstr.FromString("70%")}}
	})
	w.settled(6, 6)
	to := func(image string) {
		t.Helper()
		w.change(func(s *v1beta1.CloneSetSpec) { s.Template.Spec.Containers[0].Image = image })
	}
	waits := func(number string, reason v1beta1.BatchReason) *v1beta1.BatchStatus {
		t.Helper()
		var found *v1beta1.BatchStatus
		w.eventually(number+" "+string(reason), func(s v1beta1.CloneSetStatus) bool {
			found = s.Batches
			return found != nil && found.Batch == number && found.Reason == reason
		})
		return found
	}
	to("web:v2")
	first := waits("1/2", v1beta1.BatchApproval)
	w.settled(6, 2)
	set := w.get()
	before := set.DeepCopy()
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1beta1.AnnotationNextBatch, batch.Release(first, 2))
	if err := w.client.Patch(t.Context(), set, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	waits("2/2", v1beta1.BatchDone)
	w.settled(6, 6)

	w.kubelet.Lose("web:v3")
	to("web:v3")
	if is := waits("1/2", v1beta1.BatchFailed); !strings.Contains(is.Message, "web-") {
		t.Errorf("no pod is named: %s", is.Message)
	}
	to("web:v2")
	waits("2/2", v1beta1.BatchDone)
	w.settled(6, 6)
}
