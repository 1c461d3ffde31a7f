package batch_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

// sizes reads numbers and percentages.
func sizes(of ...any) []intstr.IntOrString {
	var out []intstr.IntOrString
	for _, v := range of {
		switch v := v.(type) {
		case int:
			out = append(out, intstr.FromInt32(int32(v))) //nolint:gosec // small
		case string:
			out = append(out, intstr.FromString(v))
		}
	}
	return out
}

// Sizes add up, the pods of a percentage are rounded up, no batch is empty, and the last one has the rest.
func TestEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why    string
		sizes  []intstr.IntOrString
		wanted int
		want   []int
	}{
		"Two":         {"30 % and 70 % of six pods are two and four.", sizes("30%", "70%"), 6, []int{2, 6}},
		"Numbers":     {"The rest is a batch of its own.", sizes(1, 5), 40, []int{1, 6, 40}},
		"Mixed":       {"One pod first, and then halves.", sizes(1, "50%", "50%"), 10, []int{1, 6, 10}},
		"Many":        {"Percentages are added before they are rounded.", sizes("10%", "10%", "10%", "70%"), 15, []int{2, 3, 5, 15}},
		"Few":         {"A batch has one pod at least, and those that find none are left out.", sizes("10%", "10%", "10%", "70%"), 2, []int{1, 2}},
		"One":         {"All at once.", sizes("100%"), 5, []int{5}},
		"TooMany":     {"More pods than there are, are all.", sizes(7), 5, []int{5}},
		"None":        {"Without pods there is no batch.", sizes("30%", "70%"), 0, nil},
		"NoOverflow":  {"Numbers as large as they get.", sizes(1<<31-1, 1<<31-1, 1<<31-1), 3, []int{3}},
		"LessThanAll": {"What no size has is the last batch.", sizes("20%"), 10, []int{2, 10}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, batch.Ends(c.sizes, c.wanted)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
		})
	}
}

// What can't be followed is refused, with its field.
func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why      string
		batches  v1beta1.UpdateBatches
		onDelete bool
		want     []string
	}{
		"Good":     {"Both kinds of sizes.", v1beta1.UpdateBatches{Sizes: sizes(1, "40%", "60%"), Auto: true, Interval: &metav1.Duration{Duration: time.Minute}, MaxFailed: new(intstr.FromString("10%"))}, false, nil},
		"NoSizes":  {"There is nothing to do.", v1beta1.UpdateBatches{}, false, []string{"b.sizes"}},
		"Zero":     {"An empty batch.", v1beta1.UpdateBatches{Sizes: sizes(0, "0%")}, false, []string{"b.sizes[0]", "b.sizes[1]"}},
		"Negative": {"Fewer than none.", v1beta1.UpdateBatches{Sizes: sizes(-1, "-1%"), MaxFailed: new(intstr.FromInt32(-1)), Interval: &metav1.Duration{Duration: -1}}, false, []string{"b.sizes[0]", "b.sizes[1]", "b.interval", "b.maxFailed"}},
		"TooMuch":  {"More than all.", v1beta1.UpdateBatches{Sizes: sizes("60%", "50%"), MaxFailed: new(intstr.FromString("101%"))}, false, []string{"b.sizes[1]", "b.maxFailed"}},
		"Text":     {"No number.", v1beta1.UpdateBatches{Sizes: sizes("half", "10", "+5%", "1e1%", "256%")}, false, []string{"b.sizes[0]", "b.sizes[1]", "b.sizes[2]", "b.sizes[3]", "b.sizes[4]"}},
		"TooMany":  {"A hundred are enough.", v1beta1.UpdateBatches{Sizes: make([]intstr.IntOrString, 101)}, false, []string{"b.sizes"}},
		"OnDelete": {"Users decide when pods are updated.", v1beta1.UpdateBatches{Sizes: sizes(1)}, true, []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, err := range batch.Validate(field.NewPath("b"), &c.batches, c.onDelete) {
				got = append(got, err.Field)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
		})
	}
	if all := batch.Validate(field.NewPath("b"), nil, true); len(all) > 0 {
		t.Errorf("no batches: %v", all)
	}
}

// start is when the updates of the tests start.
var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// step is one decision of an update, with what it is told and what it should say.
type step struct {
	why     string
	after   time.Duration // since the start
	pods    batch.Pods
	change  func(*v1beta1.UpdateBatches, *batch.Update)
	batch   string
	reason  v1beta1.BatchReason
	stay    int
	stopped bool
	message string // part of it
}

// Updates of six pods in batches of 30 % and 70 %, told step by step.
func TestDecide(t *testing.T) {
	t.Parallel()
	pods := func(updated, available int, failed ...string) batch.Pods {
		return batch.Pods{Wanted: 6, Reached: updated, Updated: updated, Available: available, Failed: failed}
	}
	revision := func(to, before string) func(*v1beta1.UpdateBatches, *batch.Update) {
		return func(_ *v1beta1.UpdateBatches, u *batch.Update) { u.Revision, u.Before = to, before }
	}
	for name, steps := range map[string][]step{
		"Manual": {
			{"Two pods first.", 0, pods(0, 0), nil, "1/2", v1beta1.BatchUpdating, 4, false, "0 of 2 pods updated"},
			{"One of them serves.", time.Second, pods(2, 1), nil, "1/2", v1beta1.BatchUpdating, 4, false, "2 of 2 pods updated, 1 available"},
			{"Both serve, and the interval begins.", 2 * time.Second, pods(2, 2), nil, "1/2", v1beta1.BatchInterval, 4, false, "12:01:02Z"},
			{"One is lost: the interval will begin again.", 30 * time.Second, pods(2, 1), nil, "1/2", v1beta1.BatchUpdating, 4, false, ""},
			{"It begins again.", 40 * time.Second, pods(2, 2), nil, "1/2", v1beta1.BatchInterval, 4, false, "12:01:40Z"},
			{"It is over.", 100 * time.Second, pods(2, 2), nil, "1/2", v1beta1.BatchApproval, 4, false, "next-batch"},
			{"The batch of another revision is released.", 101 * time.Second, pods(2, 2), func(_ *v1beta1.UpdateBatches, u *batch.Update) {
				u.Released = batch.Release(&v1beta1.BatchStatus{Revision: "a", Started: metav1.NewTime(start)}, 2)
			}, "1/2", v1beta1.BatchApproval, 4, false, ""},
			{"This one is released; the limit is still the old one.", 102 * time.Second, pods(2, 2), func(_ *v1beta1.UpdateBatches, u *batch.Update) {
				u.Released = batch.Release(&v1beta1.BatchStatus{Revision: "b", Started: metav1.NewTime(start)}, 2)
			}, "2/2", v1beta1.BatchUpdating, 4, false, ""},
			{"The status is written.", 103 * time.Second, pods(2, 2), nil, "2/2", v1beta1.BatchUpdating, 0, false, "2 of 6 pods updated"},
			{"The partition of the spec counts, too.", 104 * time.Second, pods(5, 5), func(_ *v1beta1.UpdateBatches, u *batch.Update) { u.Partition = 1 }, "2/2", v1beta1.BatchPartition, 0, false, "partition 1"},
			{"All serve.", 105 * time.Second, pods(6, 6), func(_ *v1beta1.UpdateBatches, u *batch.Update) { u.Partition = 0 }, "2/2", v1beta1.BatchDone, 0, false, ""},
			{"A pod that fails later is no part of it.", 200 * time.Second, pods(6, 5, "web-1"), nil, "2/2", v1beta1.BatchDone, 0, false, ""},
			{"The way back is divided, too.", 300 * time.Second, pods(0, 0), revision("a", "b"), "1/2", v1beta1.BatchUpdating, 4, false, ""},
		},
		"Failed": {
			{"Two pods first.", 0, pods(0, 0), nil, "1/2", v1beta1.BatchUpdating, 4, false, ""},
			{"One can't run.", time.Second, pods(2, 1, "web-5"), nil, "1/2", v1beta1.BatchFailed, 4, true, "failed: web-5; maxFailed is 0"},
			{"One may fail.", 2 * time.Second, pods(2, 1, "web-5"), func(b *v1beta1.UpdateBatches, _ *batch.Update) { b.MaxFailed = new(intstr.FromString("17%")) }, "1/2", v1beta1.BatchUpdating, 4, false, ""},
			{"Less than one of six may.", 3 * time.Second, pods(2, 1, "web-5"), func(b *v1beta1.UpdateBatches, _ *batch.Update) { b.MaxFailed = new(intstr.FromString("16%")) }, "1/2", v1beta1.BatchFailed, 4, true, ""},
			{"A better revision begins anew.", 4 * time.Second, pods(0, 0), revision("c", "a"), "1/2", v1beta1.BatchUpdating, 4, false, ""},
			{"The way back from it, which has not ended, is not divided.", 5 * time.Second, pods(4, 4), revision("a", "a"), "2/2", v1beta1.BatchUpdating, 0, false, ""},
			{"It ends.", 6 * time.Second, pods(6, 6), nil, "2/2", v1beta1.BatchDone, 0, false, ""},
		},
		"BackWithoutACurrentRevision": { // of a DaemonSet, which knows only what its pods have
			{"Two pods first.", 0, pods(0, 0), nil, "1/2", v1beta1.BatchUpdating, 4, false, ""},
			{"Another revision, although the first has not ended.", time.Second, pods(0, 0), revision("c", "b"), "1/2", v1beta1.BatchUpdating, 4, false, ""},
			{"The way back to where all pods came from.", 2 * time.Second, pods(4, 4), revision("a", "c"), "2/2", v1beta1.BatchUpdating, 0, false, ""},
		},
		"BackAndScaled": { // one batch became two
			{"Two pods first.", 0, pods(0, 0), func(b *v1beta1.UpdateBatches, _ *batch.Update) { b.Sizes = sizes(2, 4) }, "1/2", v1beta1.BatchUpdating, 4, false, ""},
			{"Back, with one pod.", time.Second, batch.Pods{Wanted: 1, Old: 1}, revision("a", "a"), "1/1", v1beta1.BatchUpdating, 0, false, ""},
			{"With six pods there are two batches. Broken ones wait for no release.", 2 * time.Second, batch.Pods{Wanted: 6, Old: 1}, nil, "2/2", v1beta1.BatchUpdating, 0, false, ""},
		},
		"BackAlthoughPodsFail": {
			{"Two pods first.", 0, pods(0, 0), nil, "1/2", v1beta1.BatchUpdating, 4, false, ""},
			{"A pod of the old revision, which counts as updated now, has failed for a week. The way back goes on.", time.Second, pods(4, 3, "web-0"), revision("a", "a"), "2/2", v1beta1.BatchUpdating, 0, false, ""},
		},
		"TheSameRevisionAgain": {
			{"Two pods first.", 0, pods(2, 2), func(b *v1beta1.UpdateBatches, _ *batch.Update) { b.Interval = nil }, "1/2", v1beta1.BatchApproval, 4, false, ""},
			{"All batches of this update are released.", time.Second, pods(2, 2), func(_ *v1beta1.UpdateBatches, u *batch.Update) {
				u.Released = batch.Release(&v1beta1.BatchStatus{Revision: "b", Started: metav1.NewTime(start)}, 1<<31-1)
			}, "2/2", v1beta1.BatchUpdating, 4, false, ""},
			{"Back.", 2 * time.Second, pods(6, 6), revision("a", "a"), "2/2", v1beta1.BatchDone, 0, false, ""},
			{"Once more: the release was for another update.", time.Hour, pods(2, 2), revision("b", "a"), "1/2", v1beta1.BatchApproval, 4, false, ""},
		},
		"MorePodsThanWereUpdated": { // a selector of nodes that was narrow, and is wide now
			{"Two nodes are all that are wanted.", 0, batch.Pods{Wanted: 2, Reached: 2, Updated: 2, Available: 2}, func(b *v1beta1.UpdateBatches, _ *batch.Update) { b.Interval, b.Auto = nil, true }, "2/2", v1beta1.BatchDone, 0, false, ""},
			{"A pod more, which is new, is no reason to begin again.", time.Second, batch.Pods{Wanted: 3, Reached: 2, Updated: 2, Available: 2}, nil, "2/2", v1beta1.BatchDone, 0, false, ""},
			{"Now there are eight more with the old revision.", time.Minute, batch.Pods{Wanted: 10, Reached: 2, Updated: 2, Available: 2, Old: 8}, nil, "1/2", v1beta1.BatchUpdating, 7, false, "2 of 3"},
		},
		"OtherSizes": {
			{"A small batch.", 0, batch.Pods{Wanted: 100, Reached: 2, Updated: 2, Available: 2}, func(b *v1beta1.UpdateBatches, _ *batch.Update) { b.Sizes, b.Interval = sizes(2, 8, 90), nil }, "1/3", v1beta1.BatchApproval, 98, false, ""},
			{"Larger ones: what is begun is the first of them, and no more is released.", time.Second, batch.Pods{Wanted: 100, Reached: 2, Updated: 2, Available: 2}, func(b *v1beta1.UpdateBatches, _ *batch.Update) { b.Sizes = sizes("20%", "80%") }, "1/2", v1beta1.BatchUpdating, 80, false, "2 of 20"},
			{"A smaller one: it is complete, and waits.", 2 * time.Second, batch.Pods{Wanted: 100, Reached: 20, Updated: 20, Available: 20}, func(b *v1beta1.UpdateBatches, _ *batch.Update) { b.Sizes = sizes(1) }, "1/2", v1beta1.BatchApproval, 99, false, ""},
		},
		"AClockThatWentBack": {
			{"The interval begins.", time.Hour, pods(2, 2), nil, "1/2", v1beta1.BatchInterval, 4, false, ""},
			{"It is an hour earlier: the interval begins anew.", 0, pods(2, 2), nil, "1/2", v1beta1.BatchInterval, 4, false, "12:01:00Z"},
		},
		"Lost": {
			{"The status was lost when three pods were updated: the batch that they are in goes on.", 0, pods(3, 3), nil, "2/2", v1beta1.BatchUpdating, 0, false, "3 of 6"},
			{"Fewer pods are updated now, and the batch does not go back.", time.Second, pods(1, 1), nil, "2/2", v1beta1.BatchUpdating, 0, false, ""},
			{"There are fewer batches now.", 2 * time.Second, pods(1, 1), func(b *v1beta1.UpdateBatches, _ *batch.Update) { b.Sizes = sizes("100%") }, "1/1", v1beta1.BatchUpdating, 0, false, ""},
		},
		"Paused": {
			{"It stands still.", 0, pods(0, 0), func(_ *v1beta1.UpdateBatches, u *batch.Update) { u.Paused = true }, "1/2", v1beta1.BatchPaused, 4, false, "paused"},
			{"No batch follows, however long ago the last one was complete.", time.Hour, pods(2, 2), nil, "1/2", v1beta1.BatchPaused, 4, false, ""},
			{"It goes on.", 2 * time.Hour, pods(2, 2), func(b *v1beta1.UpdateBatches, u *batch.Update) { u.Paused, b.Auto = false, true }, "2/2", v1beta1.BatchUpdating, 4, false, ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &v1beta1.UpdateBatches{Sizes: sizes("30%", "70%"), Interval: &metav1.Duration{Duration: time.Minute}}
			u := batch.Update{Revision: "b", Before: "a"}
			var status *v1beta1.BatchStatus
			for _, s := range steps {
				if s.change != nil {
					s.change(b, &u)
				}
				u.Now = start.Add(s.after)
				d := batch.Decide(b, status, u, s.pods)
				if is := d.Status; is.Batch != s.batch || is.Reason != s.reason || d.Partition != s.stay || d.Stopped != s.stopped || !strings.Contains(is.Message, s.message) {
					t.Fatalf("%s\ngot %+v: %+v", s.why, d, is)
				}
				if stored := d.Status.DeepCopy(); !stored.Since.Truncate(time.Second).Equal(stored.Since.Time) {
					t.Fatalf("%s\nthe time %s would be another one when it is read again", s.why, stored.Since)
				}
				status = d.Status
			}
		})
	}
}

// Without batches, and for a workload whose pods all have the revision, nothing is divided.
func TestUndivided(t *testing.T) {
	t.Parallel()
	b := &v1beta1.UpdateBatches{Sizes: sizes(1)}
	for what, d := range map[string]batch.Decision{
		"no batches": batch.Decide(nil, &v1beta1.BatchStatus{Batch: "1/2", Number: 1}, batch.Update{Revision: "b", Before: "a"}, batch.Pods{Wanted: 6}),
		"a new one":  batch.Decide(b, nil, batch.Update{Revision: "a"}, batch.Pods{Wanted: 6}),
		"all alike":  batch.Decide(b, nil, batch.Update{Revision: "a", Before: "a"}, batch.Pods{Wanted: 6, Reached: 6, Updated: 6}),
	} {
		if d.Status != nil || d.Partition != 0 || d.Stopped {
			t.Errorf("%s: %+v", what, d)
		}
	}
}

// Whatever is written in an annotation and a status: a decision never panics, leaves at most all pods, and
// the batch is one of those that there are.
func TestDecideAnything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		n := func(what string) int { return rapid.IntRange(0, 12).Draw(rt, what) }
		names := rapid.SampledFrom([]string{"", "a", "b", "c"})
		b := &v1beta1.UpdateBatches{Sizes: sizes(1, "30%", 2), Auto: rapid.Bool().Draw(rt, "auto")}
		was := &v1beta1.BatchStatus{
			Number: rapid.Int32().Draw(rt, "number"), Revision: names.Draw(rt, "revision"), From: names.Draw(rt, "from"),
			Reason: v1beta1.BatchReason(rapid.SampledFrom([]string{"", "Done", "Failed", "else"}).Draw(rt, "reason")),
		}
		u := batch.Update{
			Revision: names.Draw(rt, "update"), Before: names.Draw(rt, "before"), Partition: n("partition"), Paused: rapid.Bool().Draw(rt, "paused"),
			Released: rapid.SampledFrom([]string{"", "a/2", "b@1/99999999999999999999", "a@-62135596800/2", "/", "b@1/2/3"}).Draw(rt, "released"), Now: start,
		}
		p := batch.Pods{Wanted: n("wanted"), Updated: n("updated"), Available: n("available"), Reached: n("reached"), Failed: make([]string, n("failed"))}
		d := batch.Decide(b, was, u, p)
		if d.Status == nil {
			return
		}
		if ends := batch.Ends(b.Sizes, p.Wanted); d.Partition < 0 || d.Partition > p.Wanted || d.Status.Number < 1 || int(d.Status.Number) > max(len(ends), 1) || len(d.Status.FailedPods) > 10 {
			rt.Fatalf("%+v: %+v", d, d.Status)
		}
	})
}

// A pod has failed if its kubelet can't run a container. One that has failed counts until it is available.
func TestFailed(t *testing.T) {
	t.Parallel()
	pod := func(reason string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-1"}}
		s := corev1.ContainerStatus{}
		if reason != "" {
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason}
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{}, s}
		return p
	}
	inInit := pod("")
	inInit.Status.InitContainerStatuses = pod("CrashLoopBackOff").Status.ContainerStatuses
	// An update in place has begun, and the kubelet still reports the container of before.
	before := pod("CrashLoopBackOff")
	before.Annotations = map[string]string{v1beta1.AnnotationInPlaceState: `{"revision":"b","updateTimestamp":"2026-01-01T12:00:00Z","lastContainerStatuses":{"web":{"imageID":"old"}}}`}
	before.Spec.Containers = []corev1.Container{{Name: "web", Image: "web:v2"}}
	before.Generation, before.Status.ObservedGeneration = 2, 1
	before.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", Image: "web:v1", ImageID: "old", State: before.Status.ContainerStatuses[1].State}}
	pulls := before.DeepCopy()
	pulls.Status.ContainerStatuses[0].State.Waiting.Reason, pulls.Status.ObservedGeneration = "ImagePullBackOff", 2
	ended := pod("")
	ended.Status.Phase = corev1.PodFailed
	// A container that crashes by its new configuration never answers. Its kubelet says so long before the
	// time of the reload ends.
	reloads := pod("CrashLoopBackOff")
	reloads.Annotations = map[string]string{
		v1beta1.AnnotationReload: `{"http": {"port": 8080}, "timeoutSeconds": 3600}`, v1beta1.AnnotationConfigurationVersion: "b",
		v1beta1.AnnotationReloadState: `{"version": "b", "since": "2026-01-01T12:00:00Z"}`,
	}
	had := &v1beta1.BatchStatus{Revision: "b", FailedPods: []string{"web-1"}}
	for name, c := range map[string]struct {
		pod       *corev1.Pod
		available bool
		was       *v1beta1.BatchStatus
		want      bool
	}{
		"Starts": {pod("ContainerCreating"), false, nil, false}, "Runs": {pod(""), false, nil, false},
		"Crashes": {pod("CrashLoopBackOff"), false, nil, true}, "NoImage": {pod("ImagePullBackOff"), false, nil, true},
		"StillTheOldContainer": {before, false, nil, false}, "NoNewImage": {pulls, false, nil, true},
		"CrashesInInit": {inInit, false, nil, true}, "Ended": {ended, false, nil, true},
		"CrashesByItsFiles":  {reloads, false, nil, true},
		"OfAnotherUpdate":    {pod(""), false, &v1beta1.BatchStatus{Revision: "a", FailedPods: []string{"web-1"}}, false},
		"BetweenTwoAttempts": {pod(""), false, had, true}, "Serves": {pod(""), true, had, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := batch.Failed(c.pod, c.available, "b", c.was); got != c.want {
				t.Errorf("failed: %v", got)
			}
		})
	}
}
