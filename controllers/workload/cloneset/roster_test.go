package cloneset

import (
	"fmt"
	"maps"
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
)

// yard has the pods of a CloneSet, and judges them by their labels alone.
type yard struct {
	pods    map[types.UID]*corev1.Pod
	changed map[types.UID]bool
	void    bool
	now     time.Time
}

const minReady = 30

// since is what [podclient.Known] would say.
func (y *yard) since(m *podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod] {
	defer func() { y.changed, y.void = map[types.UID]bool{}, false }()
	if y.void || len(y.pods) == 0 {
		return podclient.Changes[*corev1.Pod]{Anew: true, Are: slices.Collect(maps.Values(y.pods))}
	}
	var c podclient.Changes[*corev1.Pod]
	for uid := range y.changed {
		if p := y.pods[uid]; p != nil {
			c.Are = append(c.Are, p)
		} else {
			c.Gone = append(c.Gone, uid)
		}
	}
	return c
}

func (y *yard) judge(p *corev1.Pod) facts {
	f := facts{active: active(p), ready: podclient.Ready(p), stranger: p.Labels["stranger"] != "", revision: p.Labels[revision.Label]}
	f.rank = podorder.RankOf(p, podorder.Options{Now: y.now, MinReadySeconds: minReady})
	f.member = member{name: p.Name, pod: p, updated: f.revision == "new", marked: p.Labels["marked"] != "", preparing: p.Labels["preparing"] != "", available: podorder.Available(p, minReady, y.now)}
	if since, ready := podorder.ReadySince(p); ready && !f.available {
		f.due = since.Add(minReady * time.Second)
	}
	return f
}

// Whatever befalls pods, in whatever portions a look hears of it: sums and order are
// those that one has who looks at all of them for the first time.
func TestRoster(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		y := &yard{pods: map[types.UID]*corev1.Pod{}, changed: map[types.UID]bool{}, now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), void: true}
		r, generation := newRoster(), int64(1)
		born := 0
		change := func(p *corev1.Pod) {
			y.pods[p.UID] = p
			y.changed[p.UID] = true
		}
		some := func(rt *rapid.T) *corev1.Pod {
			if len(y.pods) == 0 {
				rt.Skip("there is no pod")
			}
			return y.pods[rapid.SampledFrom(slices.Sorted(maps.Keys(y.pods))).Draw(rt, "pod")].DeepCopy()
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if rapid.Bool().Draw(rt, "looks") {
					return // several things befall pods between two looks
				}
				r.sync(basis{generation: generation}, y.since, y.judge, y.now)
				if rapid.Bool().Draw(rt, "needs no order") {
					return
				}
				y.compare(rt, r)
			},
			"create": func(rt *rapid.T) {
				born++
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprint("pod", born), UID: types.UID(fmt.Sprint("pod", born)), CreationTimestamp: metav1.NewTime(y.now.Add(-time.Duration(rapid.IntRange(0, 3).Draw(rt, "age")) * time.Minute)),
					Labels: map[string]string{revision.Label: rapid.SampledFrom([]string{"old", "new"}).Draw(rt, "revision")},
				}}
				p.Spec.NodeName = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(rt, "node")
				p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodPending, corev1.PodRunning}).Draw(rt, "phase")
				change(p)
			},
			"ready": func(rt *rapid.T) {
				p := some(rt)
				p.Status.Phase = corev1.PodRunning
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(y.now)}}
				change(p)
			},
			"unready": func(rt *rapid.T) { p := some(rt); p.Status.Conditions = nil; change(p) },
			"label": func(rt *rapid.T) {
				p := some(rt)
				key := rapid.SampledFrom([]string{"marked", "preparing", "stranger", revision.Label}).Draw(rt, "label")
				p.Labels[key] = map[bool]string{true: "new", false: ""}[p.Labels[key] == ""]
				change(p)
			},
			"scheduled": func(rt *rapid.T) {
				p := some(rt)
				p.Spec.NodeName = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "node")
				change(p)
			},
			"ends":   func(rt *rapid.T) { p := some(rt); p.Status.Phase = corev1.PodFailed; change(p) },
			"delete": func(rt *rapid.T) { p := some(rt); p.DeletionTimestamp = new(metav1.NewTime(y.now)); change(p) },
			"gone":   func(rt *rapid.T) { p := some(rt); delete(y.pods, p.UID); y.changed[p.UID] = true },
			"time": func(rt *rapid.T) {
				y.now = y.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(rt, "seconds")) * time.Second)
			},
			"spec": func(*rapid.T) { generation++; y.void = true },
			"void": func(*rapid.T) { y.void = true },
		})
		r.sync(basis{generation: generation}, y.since, y.judge, y.now)
		y.compare(rt, r)
	})
}

// compare holds a roster against one that is made of all pods.
func (y *yard) compare(rt *rapid.T, r *roster) {
	rt.Helper()
	all := &yard{pods: y.pods, now: y.now, void: true}
	fresh := newRoster()
	due := fresh.sync(basis{}, all.since, all.judge, y.now)
	if diff := cmp.Diff(fresh.sums, r.sums, cmp.AllowUnexported(sums{}, tally{}, served{})); diff != "" {
		rt.Fatalf("sums: -want +got:\n%s", diff)
	}
	if again := r.sync(r.basis, func(*podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod] {
		return podclient.Changes[*corev1.Pod]{}
	}, y.judge, y.now); again != due {
		rt.Fatalf("it looks again after %v, and not %v", again, due)
	}
	var pods []*corev1.Pod
	for _, p := range y.pods {
		if active(p) {
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
	if len(r.unsettled) != len(pods) || len(r.order) != len(pods) || len(r.entries) != len(y.pods) {
		rt.Fatalf("%d unsettled, %d in order of %d pods; %d entries of %d", len(r.unsettled), len(r.order), len(pods), len(r.entries), len(y.pods))
	}
}
