package daemonset_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/keelson-io/keelson/api/apps/v1alpha1"
	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
)

// fleet is how many nodes the worlds of these tests have.
const fleet = 100

// most is the most that a watch saw at any time.
type most struct {
	pods    int // that aren't on their way out
	out     int // nodes whose pod we have taken out of service, and that have none that serves since
	beside  int // nodes that run two pods
	updated int // pods of agent:v2
}

// observer follows the pods of a world, event by event.
type observer struct {
	mu     sync.Mutex
	pods   map[types.UID]*corev1.Pod
	served map[types.UID]bool // since its gate was opened: what its kubelet says later is not our doing
	most   most
}

// observe follows what happens from now on, to pods as they are now.
func (w *world) observe() *observer {
	w.Helper()
	list, err := w.Pods.CoreV1().Pods(w.name).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	o := &observer{pods: map[types.UID]*corev1.Pod{}, served: map[types.UID]bool{}}
	for i := range list.Items {
		o.take(&list.Items[i], false)
	}
	events := apiservertest.Watch(w, list.ResourceVersion, w.Pods.CoreV1().Pods(w.name).Watch)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range events.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				o.take(p, e.Type == watch.Deleted)
				o.count()
			}
		}
	}()
	w.Cleanup(func() {
		events.Stop()
		<-ended
	})
	return o
}

func (o *observer) take(p *corev1.Pod, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if gone {
		delete(o.pods, p.UID)
		return
	}
	o.pods[p.UID] = p
	_, ready := podorder.ReadySince(p)
	o.served[p.UID] = p.DeletionTimestamp == nil && inplace.Open(p) && (ready || o.served[p.UID])
}

func (o *observer) count() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := most{out: fleet}
	pods, serving := map[string]int{}, map[string]bool{}
	for uid, p := range o.pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		node := p.GenerateName // of one that no scheduler has bound yet
		if a := p.Spec.Affinity; a != nil {
			node = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
		}
		now.pods++
		if pods[node]++; pods[node] == 2 {
			now.beside++
		}
		if p.Spec.Containers[0].Image == "agent:v2" {
			now.updated++
		}
		if o.served[uid] && !serving[node] {
			serving[node] = true
			now.out--
		}
	}
	o.most = most{max(now.pods, o.most.pods), max(now.out, o.most.out), max(now.beside, o.most.beside), max(now.updated, o.most.updated)}
}

// seen returns the most that was seen since it was asked last.
func (o *observer) seen() most {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.most
	o.most = most{}
	return out
}

// within fails where more was seen than allowed, or less of it used than half: bounds
// are there to be made use of.
func (o *observer) within(t *testing.T, step string, bound most) {
	t.Helper()
	got := o.seen()
	for what, n := range map[string][2]int{
		"pods": {got.pods, bound.pods}, "nodes out of service": {got.out, bound.out}, "nodes with two pods": {got.beside, bound.beside}, "updated pods": {got.updated, bound.updated},
	} {
		if n[0] > n[1] || n[0] < n[1]/2 {
			t.Errorf("%s: there were %d %s, at most %d were wanted, and at least half of that", step, n[0], what, n[1])
		}
	}
}

// Only the nodes that the selector chooses come to the new revision, a tenth of all at a
// time.
func TestFleetSelector(t *testing.T) {
	w := newWorld(t, fleet)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "0"}}, MaxUnavailable: new(intstr.FromString("10%")),
	})
	before := w.settled(fleet, fleet)
	seen := w.observe()
	w.change(newImage)
	after := w.settled(fleet, 34)
	seen.within(t, "the roll", most{pods: fleet, out: 10, updated: 34})
	for i := range fleet {
		node := fmt.Sprint(w.name, "-", i)
		if old, now := before[node+" agent:v1"], after[node+" agent:v1"]; i%3 == 0 && (now != "" || after[node+" agent:v2"] == "") || i%3 != 0 && now != old {
			t.Errorf("%s: %s became %s", node, old, now)
		}
	}
}

// With a surge no node is without a pod that serves, and a fifth of them run two.
func TestFleetSurge(t *testing.T) {
	w := newWorld(t, fleet)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{MaxSurge: new(intstr.FromString("20%")), MaxUnavailable: new(intstr.FromInt32(0))})
	w.settled(fleet, fleet)
	seen := w.observe()
	w.change(newImage)
	w.settled(fleet, fleet)
	// Every node is counted once, also those whose old pod is still to go.
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return len(w.list()) == fleet, nil //nolint:contextcheck // the test's own
	})
	if err != nil {
		t.Errorf("%d pods: %v", len(w.list()), err)
	}
	seen.within(t, "the roll", most{pods: fleet + 20, out: 0, beside: 20, updated: fleet})
}

// A partition of 70 % updates 30 nodes, in place, one of 30 % 40 more, and 0 the rest: a
// quarter of all nodes at a time, and no pod is replaced.
func TestFleetPartition(t *testing.T) {
	w := newWorld(t, fleet)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{
		Type: v1beta1.DaemonSetInPlaceIfPossible, Partition: new(intstr.FromString("70%")), MaxUnavailable: new(intstr.FromString("25%")),
	})
	before := w.settled(fleet, fleet)
	seen := w.observe()
	w.change(newImage)
	w.settled(fleet, 30)
	seen.within(t, "70%", most{pods: fleet, out: 25, updated: 30})
	for _, step := range []struct {
		partition string
		updated   int
	}{{"30%", 70}, {"0%", fleet}} {
		w.change(func(s *v1beta1.DaemonSetSpec) {
			s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromString(step.partition))
		})
		w.settled(fleet, int32(step.updated)) //nolint:gosec // of 100
		seen.within(t, step.partition, most{pods: fleet, out: 25, updated: step.updated})
	}
	for key, uid := range w.list() {
		if before[strings.Replace(key, "v2", "v1", 1)] != uid {
			t.Errorf("%s was replaced", key)
		}
	}
}

// Creation goes on as the partition goes down, and no further: by the field of v1beta1,
// and by the annotation that manifests of v1alpha1 have.
func TestFleetProgressive(t *testing.T) {
	for name, progressive := range map[string]func(*v1beta1.DaemonSet){
		"Field": func(d *v1beta1.DaemonSet) {
			d.Spec.ScaleStrategy = &v1beta1.DaemonSetScaleStrategy{PartitionedScaling: true}
		},
		"Annotation": func(d *v1beta1.DaemonSet) {
			d.Annotations = map[string]string{v1alpha1.AnnotationProgressiveCreate: "true"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, fleet)
			seen := w.observe()
			set := w.daemonSet(v1beta1.DaemonSetRollingUpdateStrategy{Partition: new(intstr.FromString("90%"))})
			progressive(set)
			w.Make(set)
			for _, step := range []struct {
				partition string
				pods      int32
			}{{"90%", 10}, {"50%", 50}, {"0%", fleet}} {
				w.change(func(s *v1beta1.DaemonSetSpec) {
					s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromString(step.partition))
				})
				w.eventually(step.partition, func(s v1beta1.DaemonSetStatus) bool {
					return s.DesiredNumberScheduled == fleet && s.CurrentNumberScheduled == step.pods && s.NumberAvailable == step.pods && s.NumberUnavailable == fleet-step.pods
				})
				if got := seen.seen(); got.pods != int(step.pods) || got.beside > 0 {
					t.Errorf("%s: at most %d pods were seen, on %d nodes two; %d pods were wanted", step.partition, got.pods, got.beside, step.pods)
				}
			}
		})
	}
}
