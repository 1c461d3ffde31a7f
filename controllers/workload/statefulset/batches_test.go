package statefulset_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

// batches divides updates into 30 % and 70 %.
func batches(auto bool) change {
	return func(s *v1beta1.StatefulSetSpec) {
		s.UpdateStrategy.RollingUpdate.Batches = &v1beta1.UpdateBatches{Sizes: []intstr.IntOrString{intstr.FromString("30%"), intstr.FromString("70%")}, Auto: auto}
	}
}

func atOnce(n int32) change {
	return func(s *v1beta1.StatefulSetSpec) {
		s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(n))
	}
}

// waits waits until the update waits for something in a batch, and returns its status.
func (w *world) waits(number string, reason v1beta1.BatchReason) *v1beta1.BatchStatus {
	w.Helper()
	var found *v1beta1.BatchStatus
	w.eventually(fmt.Sprintf("batch %s, %s", number, reason), func() bool {
		found = w.get().Status.Batches
		return found != nil && found.Batch == number && found.Reason == reason
	})
	return found
}

// release does what 'keelson workload next-batch' does.
func (w *world) release(is *v1beta1.BatchStatus) {
	w.Helper()
	set := w.get()
	before := set.DeepCopy()
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1beta1.AnnotationNextBatch, batch.Release(is, is.Number+1))
	if err := w.Client.Patch(w.Context(), set, client.MergeFrom(before)); err != nil {
		w.Fatal(err)
	}
}

// runs returns the ordinals of the pods that are to run an image.
func (w *world) runs(image string) string {
	var out []string
	for _, p := range w.pods() {
		if p.Spec.Containers[0].Image == image {
			out = append(out, strings.TrimPrefix(p.Name, "db-"))
		}
	}
	return strings.Join(out, " ")
}

// Six pods in batches of 30 % and 70 % are two and four, the highest ordinals first. The second batch
// waits for its release, however long the first is complete.
func TestBatches(t *testing.T) {
	w := newWorld(t)
	w.create(6, inPlace, batches(false))
	w.settled(6, 6)
	if is := w.get().Status.Batches; is != nil {
		t.Errorf("nothing was updated yet: %+v", is)
	}
	before := uids(w.pods())
	w.change(image("db:v2"))
	first := w.waits("1/2", v1beta1.BatchApproval)
	if got := w.runs("db:v2"); got != "4 5" {
		t.Errorf("the first batch has %s", got)
	}
	w.settled(6, 2)
	w.release(first)
	w.waits("2/2", v1beta1.BatchDone)
	w.settled(6, 6)
	if diff := cmp.Diff(before, uids(w.pods())); diff != "" {
		t.Errorf("pods were replaced (-before +after):\n%s", diff)
	}
	// A later update is divided anew; the annotation released a batch of the earlier one.
	w.change(image("db:v3"))
	w.waits("1/2", v1beta1.BatchApproval)
	if got := w.runs("db:v3"); got != "4 5" {
		t.Errorf("the first batch of the next update has %s", got)
	}
}

// A batch whose image can't be pulled stops the update, and names the pods. The way back needs no
// release, and touches no other pod.
func TestBatchFails(t *testing.T) {
	w := newWorld(t)
	w.create(6, inPlace, batches(true), atOnce(3))
	w.settled(6, 6)
	before := uids(w.pods())
	w.Kubelet.Lose("db:v2")
	w.change(image("db:v2"))
	is := w.waits("1/2", v1beta1.BatchFailed)
	if !strings.Contains(is.Message, "db-5") || is.Failed < 1 || len(is.FailedPods) < 1 {
		t.Errorf("%+v", is)
	}
	w.change(image("db:v1"))
	w.waits("2/2", v1beta1.BatchDone)
	w.settled(6, 6)
	if got := w.runs("db:v1"); got != "0 1 2 3 4 5" {
		t.Errorf("%s run v1", got)
	}
	after := uids(w.pods())
	for _, name := range []string{"db-0", "db-1", "db-2", "db-3"} {
		if before[name] != after[name] {
			t.Errorf("%s is another pod", name)
		}
	}
}

// A partition that is set by hand holds, whatever the batch, and the status says so. The interval is kept.
func TestBatchesAndPartition(t *testing.T) {
	w := newWorld(t)
	w.create(4, inPlace, atOnce(4), func(s *v1beta1.StatefulSetSpec) {
		s.UpdateStrategy.RollingUpdate.Batches = &v1beta1.UpdateBatches{
			Sizes: []intstr.IntOrString{intstr.FromInt32(1)}, Auto: true, Interval: &metav1.Duration{Duration: 2 * time.Second},
		}
	})
	w.settled(4, 4)
	w.change(image("db:v2"), partition(2))
	w.waits("1/2", v1beta1.BatchInterval)
	is := w.waits("2/2", v1beta1.BatchPartition)
	if got := w.runs("db:v2"); got != "2 3" || !strings.Contains(is.Message, "partition 2") {
		t.Errorf("%s run v2: %s", got, is.Message)
	}
	w.change(partition(0))
	w.waits("2/2", v1beta1.BatchDone)
	w.settled(4, 4)
}

// A workload whose first revision never ran is repaired in batches: the pods that others wait for come
// first.
func TestBatchesRepair(t *testing.T) {
	w := newWorld(t)
	w.Kubelet.Lose("db:v1")
	w.create(3, ordered, batches(true))
	w.eventually("the first pod waits for its image", func() bool { return len(w.pods()) == 1 })
	w.change(image("db:v2"))
	w.waits("2/2", v1beta1.BatchDone)
	w.settled(3, 3)
}

// What the controllers could not decode is refused by the API server, without a webhook: one such object
// would make the list of all unreadable.
func TestUnreadableBatches(t *testing.T) {
	w := newWorld(t)
	w.create(1)
	for batches, readable := range map[string]bool{
		`{"sizes": [1], "interval": "5 minutes"}`:    false,
		`{"sizes": [1], "interval": "1d"}`:           false,
		`{"sizes": [1], "interval": "-5m"}`:          false,
		`{"sizes": [1], "interval": 5}`:              false,
		`{"sizes": [99999999999]}`:                   false,
		`{"sizes": [1], "maxFailed": 99999999999}`:   false,
		`{"sizes": []}`:                              false,
		`{"sizes": [1, "30%"], "interval": "1h30m"}`: true,
		`{"sizes": [1], "interval": "9999999h"}`:     false, // too long for a duration
		// The longest text.
		`{"sizes": [1], "interval": "999999h999999h99999h"}`: true,
	} {
		patch := fmt.Appendf(nil, `{"spec": {"updateStrategy": {"rollingUpdate": {"batches": %s}}}}`, batches)
		err := w.Client.Patch(t.Context(), w.get(), client.RawPatch(types.MergePatchType, patch))
		if (err == nil) != readable {
			t.Errorf("%s: %v", batches, err)
		}
	}
	if b := w.get().Spec.UpdateStrategy.RollingUpdate.Batches; b == nil {
		t.Error("nothing was written")
	}
}
