package daemonset

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/workload/podorder"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/worldtest"
)

// yard has nodes and the pods of a DaemonSet, and judges them by their labels alone.
type yard struct {
	*worldtest.Changes
	nodes *nodes
	now   time.Time
}

const minReady = 30

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

// Whatever happens to nodes and pods, and however a reconcile gets the changes: sums and places
// equal those of a new roster of all nodes and pods.
func TestRoster(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		y := &yard{worldtest.NewChanges(), newNodes(), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
		r, generation := newRoster(), int64(1)
		born := 0
		node := func(rt *rapid.T) string { return rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "node") }
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if rapid.Bool().Draw(rt, "looks") { // else more changes happen first
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
				y.Is(p)
			},
			"ready": func(rt *rapid.T) {
				p := y.Some(rt)
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(y.now)}}
				y.Is(p)
			},
			"updated": func(rt *rapid.T) { p := y.Some(rt); p.Labels[revision.Label] = "new"; y.Is(p) },
			"delete":  func(rt *rapid.T) { p := y.Some(rt); p.DeletionTimestamp = new(metav1.NewTime(y.now)); y.Is(p) },
			"gone":    func(rt *rapid.T) { p := y.Some(rt); y.Gone(p) },
			"moved":   func(rt *rapid.T) { p := y.Some(rt); p.Spec.NodeName = node(rt); y.Is(p) },
			"time": func(rt *rapid.T) {
				y.now = y.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(rt, "seconds")) * time.Second)
			},
			"spec": func(*rapid.T) { generation++; y.Void = true },
		})
		y.compare(rt, r, basis{generation: generation})
	})
}

// compare holds a roster against one that is made of all nodes and pods.
func (y *yard) compare(rt *rapid.T, r *roster, b basis) {
	rt.Helper()
	again := r.sync(b, y.Since, y.nodes, y.judge, y.now)
	all, fresh := &yard{&worldtest.Changes{Pods: y.Pods, Void: true}, y.nodes, y.now}, newRoster()
	if due := fresh.sync(b, all.Since, y.nodes, all.judge, y.now); again != due {
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
