package daemonset

import (
	"fmt"
	"maps"
	"slices"
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

// yard has nodes and the pods of a DaemonSet, and judges them by their labels alone.
type yard struct {
	nodes   *nodes
	pods    map[types.UID]*corev1.Pod
	changed map[types.UID]bool
	void    bool
	now     time.Time
}

const minReady = 30

// since is what [podclient.Known] would say.
func (y *yard) since(*podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod] {
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

func (y *yard) judge(e *entry) facts {
	f := facts{place: place{node: e.node}}
	if e.is != nil {
		f.runs, f.stays, f.selected = e.is.Labels["runs"] != "", e.is.Labels["stays"] != "", e.is.Labels["selected"] != ""
	}
	slices.SortFunc(e.pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, p := range e.pods {
		available := podorder.Available(p, minReady, y.now)
		since, ready := podorder.ReadySince(p)
		if due := since.Add(minReady * time.Second); ready && !available && (f.due.IsZero() || due.Before(f.due)) {
			f.due = due
		}
		switch updated := p.Labels[revision.Label] == "new"; {
		case p.DeletionTimestamp != nil:
			f.occupied = true
		case updated && f.updated == "":
			f.updated, f.updatedAvailable = p.Name, available
		case !updated && f.old == "":
			f.old, f.oldAvailable = p.Name, available
		default:
			f.surplus = append(f.surplus, p.Name)
		}
	}
	return f
}

// Whatever befalls nodes and pods, in whatever portions a look hears of it: sums and
// places are those that one has who looks at all of them for the first time.
func TestRoster(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		y := &yard{nodes: newNodes(), pods: map[types.UID]*corev1.Pod{}, changed: map[types.UID]bool{}, now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), void: true}
		r, generation := newRoster(), int64(1)
		born := 0
		change := func(p *corev1.Pod) { y.pods[p.UID], y.changed[p.UID] = p, true }
		some := func(rt *rapid.T) *corev1.Pod {
			if len(y.pods) == 0 {
				rt.Skip("there is no pod")
			}
			return y.pods[rapid.SampledFrom(slices.Sorted(maps.Keys(y.pods))).Draw(rt, "pod")].DeepCopy()
		}
		node := func(rt *rapid.T) string { return rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "node") }
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if rapid.Bool().Draw(rt, "looks") { // or more befalls them before that
					y.compare(rt, r, basis{generation: generation})
				}
			},
			"node": func(rt *rapid.T) {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node(rt), Labels: map[string]string{}}}
				for _, label := range []string{"runs", "stays", "selected"} {
					n.Labels[label] = rapid.SampledFrom([]string{"", "yes"}).Draw(rt, label)
				}
				y.nodes.saw(n)
			},
			"lost": func(rt *rapid.T) { y.nodes.lost(node(rt)) },
			"create": func(rt *rapid.T) {
				born++
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprint("pod", born), UID: types.UID(fmt.Sprint("pod", born)), CreationTimestamp: metav1.NewTime(y.now.Add(time.Duration(born))),
					Labels: map[string]string{revision.Label: rapid.SampledFrom([]string{"old", "new"}).Draw(rt, "revision")},
				}}
				p.Spec.NodeName = node(rt)
				change(p)
			},
			"ready": func(rt *rapid.T) {
				p := some(rt)
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(y.now)}}
				change(p)
			},
			"updated": func(rt *rapid.T) { p := some(rt); p.Labels[revision.Label] = "new"; change(p) },
			"delete":  func(rt *rapid.T) { p := some(rt); p.DeletionTimestamp = new(metav1.NewTime(y.now)); change(p) },
			"gone":    func(rt *rapid.T) { p := some(rt); delete(y.pods, p.UID); y.changed[p.UID] = true },
			"moved":   func(rt *rapid.T) { p := some(rt); p.Spec.NodeName = node(rt); change(p) },
			"time": func(rt *rapid.T) {
				y.now = y.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(rt, "seconds")) * time.Second)
			},
			"spec": func(*rapid.T) { generation++; y.void = true },
		})
		y.compare(rt, r, basis{generation: generation})
	})
}

// compare holds a roster against one that is made of all nodes and pods.
func (y *yard) compare(rt *rapid.T, r *roster, b basis) {
	rt.Helper()
	again := r.sync(b, y.since, y.nodes, y.judge, y.now)
	all, fresh := &yard{pods: y.pods, now: y.now, void: true}, newRoster()
	if due := fresh.sync(b, all.since, y.nodes, all.judge, y.now); again != due {
		rt.Fatalf("it looks again after %v, and not %v", again, due)
	}
	unexported := cmp.AllowUnexported(sums{}, place{})
	if diff := cmp.Diff(fresh.sums, r.sums, unexported); diff != "" {
		rt.Fatalf("sums: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(fresh.places(), r.places(), unexported); diff != "" {
		rt.Fatalf("places: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(fresh.byName, r.byName); diff != "" {
		rt.Fatalf("pods by name: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(fresh.unsettled, r.unsettled); diff != "" {
		rt.Fatalf("unsettled: -want +got:\n%s", diff)
	}
}
