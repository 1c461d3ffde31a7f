package podorder_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/workload/podorder"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// change makes a pod another one.
type change func(*corev1.Pod)

func pod(name string, changes ...change) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       corev1.PodSpec{NodeName: "node-" + name},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-30 * time.Minute)),
		}}},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func on(node string) change           { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
func phase(is corev1.PodPhase) change { return func(p *corev1.Pod) { p.Status.Phase = is } }
func unready(p *corev1.Pod)           { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func readyFor(d time.Duration) change {
	return func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-d)) }
}

func createdFor(d time.Duration) change {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-d)) }
}
func neverCreated(p *corev1.Pod) { p.CreationTimestamp = metav1.Time{} }
func costs(n string) change {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: n} }
}

func restarted(times ...int32) change {
	return func(p *corev1.Pod) {
		for _, n := range times {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{RestartCount: n})
		}
	}
}

// Of two pods the one that is missed less is deleted first. In each case the later keys
// say the opposite.
func TestForDeletion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why        string
		less, more []change
		minReady   int32
	}{
		"Unassigned":     {why: "The pod never ran.", less: []change{on(""), costs("9"), createdFor(2 * time.Hour)}, more: []change{phase(corev1.PodPending), unready}},
		"Pending":        {why: "The pod doesn't run yet.", less: []change{phase(corev1.PodPending), costs("9")}, more: []change{phase(corev1.PodUnknown), unready}},
		"Unknown":        {why: "Whether the pod runs is unknown.", less: []change{phase(corev1.PodUnknown), costs("9")}, more: []change{unready}},
		"NotReady":       {why: "The pod does not serve.", less: []change{unready, costs("9")}, more: []change{costs("-9"), readyFor(time.Second)}},
		"NotAvailable":   {why: "The pod may not stay ready.", less: []change{readyFor(time.Minute), costs("9")}, more: []change{costs("-9"), restarted(9)}, minReady: 90},
		"Cost":           {why: "The owner gave the pod a lower deletion cost.", less: []change{costs("-1")}, more: []change{readyFor(time.Second), restarted(9)}},
		"CostNoNumber":   {why: "A cost that is no number counts as 0.", less: []change{costs("cheap")}, more: []change{costs("1"), readyFor(time.Second)}},
		"CostTooLarge":   {why: "A cost that is no int32 counts as 0.", less: []change{costs("99999999999")}, more: []change{costs("1"), readyFor(time.Second)}},
		"ReadyLately":    {why: "The pod became ready last.", less: []change{readyFor(time.Minute)}, more: []change{restarted(9), createdFor(time.Minute)}},
		"Restarts":       {why: "The pod restarted more often.", less: []change{restarted(3)}, more: []change{restarted(2), createdFor(time.Minute)}},
		"RestartsOfOne":  {why: "The worst container counts, not the sum.", less: []change{restarted(0, 3)}, more: []change{restarted(2, 2), createdFor(time.Minute)}},
		"Youngest":       {why: "The pod is the youngest.", less: []change{createdFor(time.Minute)}, more: nil},
		"NeverCreated":   {why: "The pod was not created yet.", less: []change{neverCreated}, more: []change{createdFor(time.Minute)}},
		"UnreadyByYouth": {why: "The time since when a pod is not ready does not count.", less: []change{unready, createdFor(time.Minute)}, more: []change{unready, readyFor(time.Second)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, order := range [][]string{{"less", "more"}, {"more", "less"}} {
				pods := make([]*corev1.Pod, 2)
				pods[slices.Index(order, "less")] = pod("less", c.less...)
				pods[slices.Index(order, "more")] = pod("more", c.more...)
				podorder.ForDeletion(pods, podorder.Options{Now: now, MinReadySeconds: c.minReady})
				if pods[0].Name != "less" {
					t.Errorf("%s It comes second.", c.why)
				}
			}
		})
	}
}

// Where pods stand together one of them is missed less, after what their owner says and
// before what they have done.
func TestForDeletionCrowd(t *testing.T) {
	t.Parallel()
	alone, dear := pod("alone", readyFor(time.Second)), pod("dear", on("shared"), costs("1"))
	first, second := pod("first", on("shared"), readyFor(time.Hour)), pod("second", on("shared"), readyFor(time.Minute))
	got := sorted([]*corev1.Pod{alone, dear, first, second}, podorder.Options{Now: now})
	if want := "second first alone dear"; got != want {
		t.Errorf("They go in the order %s, want %s", got, want)
	}
	byZone := podorder.Options{Now: now, Crowd: func(p *corev1.Pod) int { return len(p.Name) }}
	if got, want := sorted([]*corev1.Pod{first, alone, second}, byZone), "second alone first"; got != want {
		t.Errorf("With another crowd in the order %s, want %s", got, want)
	}
}

// All keys at once: each pod goes for a reason of its own, and by all that counts less it
// would be missed more than the next.
func TestForDeletionByAllKeys(t *testing.T) {
	t.Parallel()
	old := createdFor(5 * time.Hour)
	pods := []*corev1.Pod{
		pod("unassigned", on(""), costs("9"), old),
		pod("pending", phase(corev1.PodPending), costs("9"), old),
		pod("unknown", phase(corev1.PodUnknown), costs("9"), old),
		pod("unready", unready, costs("9"), old),
		pod("cheap", costs("-1"), readyFor(4*time.Hour), old),
		pod("crowded", on("shared"), readyFor(2*time.Hour), old),
		pod("crowd", on("shared"), readyFor(3*time.Hour), old),
		pod("lately", readyFor(time.Minute), old),
		pod("restarted", restarted(3), old),
		pod("youngest", createdFor(time.Minute)),
		pod("oldest", old),
	}
	want := namesOf(pods)
	rapid.Check(t, func(rt *rapid.T) {
		if got := sorted(rapid.Permutation(pods).Draw(rt, "as they come"), podorder.Options{Now: now}); got != want {
			rt.Errorf("They go in the order %s, want %s", got, want)
		}
	})
}

func sorted(pods []*corev1.Pod, o podorder.Options) string {
	podorder.ForDeletion(pods, o)
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

// However pods come, the same ones go, and none is lost.
func TestForDeletionIsAnOrder(t *testing.T) {
	t.Parallel()
	changes := []change{
		on(""), on("shared"), phase(corev1.PodPending), unready, costs("5"), costs("-5"), readyFor(time.Minute), restarted(1), restarted(4, 2), createdFor(time.Minute), neverCreated,
	}
	rapid.Check(t, func(rt *rapid.T) {
		var pods []*corev1.Pod
		for i := range rapid.IntRange(2, 12).Draw(rt, "pods") {
			p := pod(string(rune('a'+i)), createdFor(time.Duration(i)*time.Hour)) // so that no two are equal
			for _, c := range rapid.SliceOfN(rapid.IntRange(0, len(changes)-2), 0, 4).Draw(rt, "changes") {
				created := p.CreationTimestamp
				changes[c](p)
				p.CreationTimestamp = created
			}
			pods = append(pods, p)
		}
		o := podorder.Options{Now: now, MinReadySeconds: rapid.SampledFrom([]int32{0, 90}).Draw(rt, "minReadySeconds")}
		want := sorted(slices.Clone(pods), o)
		if got := sorted(rapid.Permutation(pods).Draw(rt, "as they come"), o); got != want {
			rt.Errorf("%s, and in another order %s", want, got)
		}
		if letters := strings.Fields(want); len(slices.Compact(slices.Sorted(slices.Values(letters)))) != len(pods) {
			rt.Errorf("%d pods became %q", len(pods), letters)
		}
	})
}
