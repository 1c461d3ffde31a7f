package cloneset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/worldtest"
)

// yard has the pods of a CloneSet, and judges them by their labels alone.
type yard struct {
	*worldtest.Changes
	now time.Time
}

const minReady = 30

func (y *yard) judge(p *corev1.Pod) facts {
	f := facts{active: podclient.Active(p), ready: podclient.Ready(p), stranger: p.Labels["stranger"] != "", revision: p.Labels[revision.Label]}
	f.rank = podorder.RankOf(p, podorder.Options{Now: y.now, MinReadySeconds: minReady})
	f.member = member{name: p.Name, pod: p, updated: f.revision == "new", marked: p.Labels["marked"] != "", preparing: p.Labels["preparing"] != "", available: podorder.Available(p, minReady, y.now)}
	if since, ready := podorder.ReadySince(p); ready && !f.available {
		f.due = since.Add(minReady * time.Second)
	}
	return f
}

// Whatever happens to pods, and however a reconcile gets the changes: sums and order equal those of
// a new roster of all pods.
func TestRoster(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		y := &yard{worldtest.NewChanges(), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
		r, generation := newRoster(), int64(1)
		born := 0
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if rapid.Bool().Draw(rt, "looks") {
					return // several changes happen to pods between two reconciles
				}
				r.sync(basis{generation: generation}, y.Since, y.judge, y.now)
				if rapid.Bool().Draw(rt, "needs no order") {
					return
				}
				y.compare(rt, r)
			},
			"create": func(rt *rapid.T) {
				born++
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprint("pod", born), UID: types.UID(fmt.Sprint("pod", born)), CreationTimestamp: metav1.NewTime(y.now.Add(-time.Duration(rapid.IntRange(0, 1).Draw(rt, "age")) * time.Minute)),
					Labels: map[string]string{revision.Label: rapid.SampledFrom([]string{"old", "new"}).Draw(rt, "revision")},
				}}
				p.Spec.NodeName = rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "node")
				p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodPending, corev1.PodRunning}).Draw(rt, "phase")
				y.Is(p)
			},
			"ready": func(rt *rapid.T) {
				p := y.Some(rt)
				p.Status.Phase = corev1.PodRunning
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(y.now)}}
				y.Is(p)
			},
			"unready": func(rt *rapid.T) { p := y.Some(rt); p.Status.Conditions = nil; y.Is(p) },
			"label": func(rt *rapid.T) {
				p := y.Some(rt)
				key := rapid.SampledFrom([]string{"marked", "preparing", "stranger", revision.Label}).Draw(rt, "label")
				p.Labels[key] = map[bool]string{true: "new", false: ""}[p.Labels[key] == ""]
				y.Is(p)
			},
			"scheduled": func(rt *rapid.T) {
				p := y.Some(rt)
				p.Spec.NodeName = rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "node")
				y.Is(p)
			},
			"ends":   func(rt *rapid.T) { p := y.Some(rt); p.Status.Phase = corev1.PodFailed; y.Is(p) },
			"delete": func(rt *rapid.T) { p := y.Some(rt); p.DeletionTimestamp = new(metav1.NewTime(y.now)); y.Is(p) },
			"gone":   func(rt *rapid.T) { p := y.Some(rt); y.Gone(p) },
			"time": func(rt *rapid.T) {
				y.now = y.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(rt, "seconds")) * time.Second)
			},
			"spec": func(*rapid.T) { generation++; y.Void = true },
			"void": func(*rapid.T) { y.Void = true },
		})
		r.sync(basis{generation: generation}, y.Since, y.judge, y.now)
		y.compare(rt, r)
	})
}

// compare compares a roster with a new one that is made of all pods.
func (y *yard) compare(rt *rapid.T, r *roster) {
	rt.Helper()
	all := &yard{&worldtest.Changes{Pods: y.Pods, Void: true}, y.now}
	fresh := newRoster()
	due := fresh.sync(basis{}, all.Since, all.judge, y.now)
	if diff := cmp.Diff(fresh.sums, r.sums, cmp.AllowUnexported(sums{}, tally{}, served{})); diff != "" {
		rt.Fatalf("sums: -want +got:\n%s", diff)
	}
	if again := r.sync(r.basis, func(*podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod] {
		return podclient.Changes[*corev1.Pod]{}
	}, y.judge, y.now); again != due {
		rt.Fatalf("it looks again after %v, and not %v", again, due)
	}
	var pods []*corev1.Pod
	for _, p := range y.Pods {
		if podclient.Active(p) {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	podorder.ForDeletion(pods, podorder.Options{Now: y.now, MinReadySeconds: minReady})
	var want []string
	for _, p := range pods {
		want = append(want, p.Name)
	}
	if got := names(r.members()); !slices.Equal(got, want) {
		rt.Fatalf("in the order %v, and not %v", got, want)
	}
	if len(r.unsettled) != len(pods) || len(r.order) != len(pods) || len(r.entries) != len(y.Pods) {
		rt.Fatalf("%d unsettled, %d in order of %d pods; %d entries of %d", len(r.unsettled), len(r.order), len(pods), len(r.entries), len(y.Pods))
	}
}
