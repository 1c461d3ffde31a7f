package daemonset_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/workload/daemonset"
	"github.com/keelson-io/keelson/controllers/workload/worldtest"
)

// apiServer is a real one, with the CRDs that ship; nil in -short runs.
var apiServer *rest.Config

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { apiServer = config }, "../../../components/workload-controllers/template/crds"))
}

// patience is no bound of anything: a machine that does much else takes its time.
const patience = 3 * time.Minute

// world is one with nodes of its own.
type world struct {
	*worldtest.World
	name string // label of the nodes
}

func newWorld(t *testing.T, nodes int) *world {
	t.Helper()
	return newWorldAt(t, time.Now, nodes)
}

func newWorldAt(t *testing.T, now func() time.Time, nodes int) *world {
	t.Helper()
	t.Parallel()
	w := &world{World: worldtest.New(t, apiServer, now, daemonset.Add)}
	w.name = w.Namespace
	for i := range nodes {
		w.node(i)
	}
	return w
}

func (w *world) node(i int) *corev1.Node {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(w.name, "-", i), Labels: map[string]string{"of": w.name, "number": fmt.Sprint(i), "pool": fmt.Sprint(i % 3)}}}
	w.Make(n)
	n.Spec.Taints = nil // the API server adds that it isn't ready
	if err := w.Client.Update(w.Context(), n); err != nil {
		w.Fatal(err)
	}
	return n
}

// daemonSet is one of agent:v1 for the nodes of this world.
func (w *world) daemonSet(update v1beta1.DaemonSetRollingUpdateStrategy) *v1beta1.DaemonSet {
	set := &v1beta1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: w.name}}
	set.Spec = v1beta1.DaemonSetSpec{
		Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}},
		UpdateStrategy: v1beta1.DaemonSetUpdateStrategy{Type: v1beta1.DaemonSetRollingUpdate, RollingUpdate: &update},
	}
	set.Spec.Template.Labels = map[string]string{"app": "agent"}
	set.Spec.Template.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent:v1"}}, NodeSelector: map[string]string{"of": w.name}}
	return set
}

// create creates it.
func (w *world) create(update v1beta1.DaemonSetRollingUpdateStrategy, changes ...func(*v1beta1.DaemonSetSpec)) {
	w.Helper()
	set := w.daemonSet(update)
	for _, change := range changes {
		change(&set.Spec)
	}
	w.Make(set)
}

// change changes the DaemonSet's spec.
func (w *world) change(change func(*v1beta1.DaemonSetSpec)) {
	w.Helper()
	var set v1beta1.DaemonSet
	if err := w.Client.Get(w.Context(), client.ObjectKey{Namespace: w.name, Name: "agent"}, &set); err != nil {
		w.Fatal(err)
	}
	before := set.DeepCopy()
	change(&set.Spec)
	if err := w.Client.Patch(w.Context(), &set, client.MergeFrom(before)); err != nil {
		w.Fatal(err)
	}
}

// eventually waits until the status of the newest generation is so.
func (w *world) eventually(what string, is func(v1beta1.DaemonSetStatus) bool) v1beta1.DaemonSetStatus {
	w.Helper()
	var set v1beta1.DaemonSet
	err := wait.PollUntilContextTimeout(w.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := w.Client.Get(ctx, client.ObjectKey{Namespace: w.name, Name: "agent"}, &set); err != nil {
			return false, err
		}
		return set.Status.ObservedGeneration == set.Generation && is(set.Status), nil
	})
	if err != nil {
		w.Fatalf("never %s: %v, %+v", what, err, set.Status)
	}
	return set.Status
}

// settled waits until as many nodes have an available pod, as many of them of the newest
// revision, and returns the UIDs of the pods by node and image.
func (w *world) settled(nodes, updated int32) map[string]string {
	w.Helper()
	w.eventually(fmt.Sprintf("%d nodes, %d of them updated", nodes, updated), func(s v1beta1.DaemonSetStatus) bool {
		return s.DesiredNumberScheduled == nodes && s.CurrentNumberScheduled == nodes && s.NumberReady == nodes && s.NumberAvailable == nodes &&
			s.NumberUnavailable == 0 && s.NumberMisscheduled == 0 && s.UpdatedNumberScheduled == updated
	})
	return w.list()
}

// list returns the UIDs of the pods that aren't on their way out, by node and image.
func (w *world) list() map[string]string {
	w.Helper()
	list, err := w.Pods.CoreV1().Pods(w.name).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	out := map[string]string{}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			out[p.Spec.NodeName+" "+p.Spec.Containers[0].Image] += string(p.UID)
		}
	}
	return out
}

// deleteOn deletes the pod of a node, as a user does.
func (w *world) deleteOn(node string) {
	w.Helper()
	list, err := w.Pods.CoreV1().Pods(w.name).List(w.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil || len(list.Items) != 1 {
		w.Fatalf("%d pods on %s: %v", len(list.Items), node, err)
	}
	if err := w.Pods.CoreV1().Pods(w.name).Delete(w.Context(), list.Items[0].Name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
}

func newImage(s *v1beta1.DaemonSetSpec) { s.Template.Spec.Containers[0].Image = "agent:v2" }

func partition(n int32) func(*v1beta1.DaemonSetSpec) {
	return func(s *v1beta1.DaemonSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromInt32(n)) }
}

// Each node has one pod: also one that comes later, and none that a taint keeps it from.
func TestEachNode(t *testing.T) {
	w := newWorld(t, 3)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{})
	w.settled(3, 3)
	late := w.node(3)
	w.settled(4, 4)
	late.Spec.Taints = []corev1.Taint{{Key: "example.com/broken", Effect: corev1.TaintEffectNoExecute}}
	if err := w.Client.Update(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	if got := w.settled(3, 3); len(got) != 3 || got[late.Name+" agent:v1"] != "" {
		t.Errorf("%v", got)
	}
}

// A partition from 4 to 2 to 0 updates two nodes at a time, in place.
func TestPartitionInPlace(t *testing.T) {
	w := newWorld(t, 4)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{Type: v1beta1.DaemonSetInPlaceIfPossible, Partition: new(intstr.FromInt32(4))})
	before := w.settled(4, 4)
	w.Kubelet.Happened()
	w.change(newImage)
	w.settled(4, 0)
	w.change(partition(2))
	w.settled(4, 2)
	w.change(partition(0))
	want := map[string]string{}
	for key, uid := range before {
		want[strings.Replace(key, "v1", "v2", 1)] = uid
	}
	if diff := cmp.Diff(want, w.settled(4, 4)); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	gates := strings.Join(w.Kubelet.Happened(), ", ")
	if n := strings.Count(gates, "gate False"); n != 4 || strings.Count(gates, "image agent:v2") != 4 || strings.Count(gates, "gate True") != 4 || strings.Contains(gates, "DELETED") {
		t.Errorf("%s", gates)
	}
}

// What can't be updated in place is replaced, on the nodes that the selector chooses.
func TestReplaceSelected(t *testing.T) {
	w := newWorld(t, 3)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"number": "1"}}})
	before := w.settled(3, 3)
	w.change(newImage)
	after := w.settled(3, 1)
	is := w.eventually("as far as the selector chooses", func(s v1beta1.DaemonSetStatus) bool {
		return len(s.Conditions) == 1 && s.Conditions[0].Reason == "ProgressPartitionAvailable"
	})
	if c := is.Conditions[0]; c.Type != "Progressing" || c.Status != corev1.ConditionTrue || c.Message != "1 of 1 nodes are updated that the selector and the partition choose" {
		t.Errorf("%+v", c)
	}
	for key, uid := range before {
		if strings.HasPrefix(key, w.name+"-1 ") {
			continue
		}
		if after[key] != uid {
			t.Errorf("%s was replaced", key)
		}
	}
	if after[w.name+"-1 agent:v2"] == "" {
		t.Errorf("%v", after)
	}
}

// With a surge the new pod runs beside the old one until it is available.
func TestSurge(t *testing.T) {
	w := newWorld(t, 2)
	w.create(v1beta1.DaemonSetRollingUpdateStrategy{MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0))})
	w.settled(2, 2)
	w.Kubelet.Happened()
	w.change(newImage)
	w.settled(2, 2)
	var order []string
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		for _, what := range w.Kubelet.Happened() {
			if what == "ADDED" || what == "deleting" {
				order = append(order, what)
			}
		}
		return len(order) >= 4, nil
	})
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"ADDED", "deleting", "ADDED", "deleting"}, order); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
