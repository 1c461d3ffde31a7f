package daemonset_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// A DaemonSet is updated in batches of the nodes that its selector chooses. A batch that fails stops it,
// and the way back is not divided.
func TestBatches(t *testing.T) {
	w := newWorld(t, 6)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{
		Type: v1beta1.DaemonSetInPlaceIfPossible, MaxUnavailable: new(intstr.FromInt32(6)),
		Batches: &v1beta1.UpdateBatches{Sizes: []intstr.IntOrString{intstr.FromString("30%"), intstr.FromString("70%")}, Auto: true},
	})
	w.settled(6, 6)
	to := func(image string) {
		t.Helper()
		w.change(func(s *v1beta1.DaemonSetSpec) { s.Template.Spec.Containers[0].Image = image })
	}
	waits := func(number string, reason v1beta1.BatchReason) *v1beta1.BatchStatus {
		t.Helper()
		return w.eventually(number+" "+string(reason), func(s v1beta1.DaemonSetStatus) bool {
			return s.Batches != nil && s.Batches.Batch == number && s.Batches.Reason == reason
		}).Batches
	}
	to("agent:v2")
	waits("2/2", v1beta1.BatchDone)
	w.settled(6, 6)

	w.Kubelet.Lose("agent:v3")
	to("agent:v3")
	if is := waits("1/2", v1beta1.BatchFailed); !strings.Contains(is.Message, "agent-") || is.Failed < 1 || is.Failed > 2 {
		t.Errorf("%+v", is)
	}
	w.eventually("two nodes of six have it", func(s v1beta1.DaemonSetStatus) bool { return s.UpdatedNumberScheduled == 2 && s.NumberAvailable == 4 })
	to("agent:v2")
	waits("2/2", v1beta1.BatchDone)
	w.settled(6, 6)
	if note := w.event("BatchFailed"); !strings.Contains(note, "1/2") {
		t.Errorf("the event says %s", note)
	}
}
