package cloneset_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/cloneset"
	"github.com/keelson-io/keelson/controllers/workload/kubelettest"
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

// world is a namespace with a controller and a kubelet.
type world struct {
	*testing.T
	client    client.Client
	pods      kubernetes.Interface
	namespace string
	kubelet   *kubelettest.Kubelet
	restart   func(between func())
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, func(*base.Options) {})
}

// newWorldWith returns a world whose controller has other options.
func newWorldWith(t *testing.T, change func(*base.Options)) *world {
	t.Helper()
	t.Parallel()
	w := worldtest.New(t, apiServer, time.Now, func(ctx context.Context, m ctrl.Manager, o base.Options) error {
		change(&o)
		return cloneset.Add(ctx, m, o)
	})
	return &world{T: t, client: w.Client, pods: w.Pods, namespace: w.Namespace, kubelet: w.Kubelet, restart: w.Restart}
}

// create creates a CloneSet of web:v1.
func (w *world) create(replicas int32, change func(*v1beta1.CloneSetSpec)) {
	w.Helper()
	set := &v1beta1.CloneSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: w.namespace}}
	set.Spec = v1beta1.CloneSetSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		UpdateStrategy: v1beta1.CloneSetUpdateStrategy{RollingUpdate: &v1beta1.CloneSetRollingUpdateStrategy{}},
	}
	set.Spec.Template.Labels = map[string]string{"app": "web"}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "web:v1"}}
	if change != nil {
		change(&set.Spec)
	}
	if err := w.client.Create(w.Context(), set); err != nil {
		w.Fatal(err)
	}
}

// change changes the CloneSet's spec.
func (w *world) change(change func(*v1beta1.CloneSetSpec)) {
	w.Helper()
	set := w.get()
	before := set.DeepCopy()
	change(&set.Spec)
	if err := w.client.Patch(w.Context(), set, client.MergeFrom(before)); err != nil {
		w.Fatal(err)
	}
}

func (w *world) get() *v1beta1.CloneSet {
	w.Helper()
	var set v1beta1.CloneSet
	if err := w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: "web"}, &set); err != nil {
		w.Fatal(err)
	}
	return &set
}

// watch records what the API server tells of objects, until the returned function is called.
func (w *world) watch(like client.ObjectList) func() []client.Object {
	w.Helper()
	c, err := client.NewWithWatch(apiServer, client.Options{Scheme: w.client.Scheme()})
	if err != nil {
		w.Fatal(err)
	}
	if err := c.List(w.Context(), like, client.InNamespace(w.namespace)); err != nil {
		w.Fatal(err)
	}
	events, err := c.Watch(w.Context(), like, &client.ListOptions{Namespace: w.namespace, Raw: &metav1.ListOptions{ResourceVersion: like.GetResourceVersion()}})
	if err != nil {
		w.Fatal(err)
	}
	var seen []client.Object
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range events.ResultChan() {
			if o, ok := e.Object.(client.Object); ok {
				seen = append(seen, o)
			}
		}
	}()
	return func() []client.Object {
		events.Stop()
		<-ended
		return seen
	}
}

// list returns the pods, by name.
func (w *world) list() []corev1.Pod {
	w.Helper()
	list, err := w.pods.CoreV1().Pods(w.namespace).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items
}

// eventually waits until the status is so.
func (w *world) eventually(what string, is func(v1beta1.CloneSetStatus) bool) {
	w.Helper()
	var set v1beta1.CloneSet
	err := wait.PollUntilContextTimeout(w.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "web"}, &set); err != nil {
			return false, err
		}
		return set.Status.ObservedGeneration == set.Generation && is(set.Status), nil
	})
	if err == nil {
		return
	}
	for _, p := range w.list() {
		w.Logf("%s: %v %v %+v", p.Name, p.Labels, p.Spec.Containers[0].Image, p.Status.Conditions)
	}
	w.Fatalf("never %s: %v, %+v", what, err, set.Status)
}

// settled waits until as many pods are available, and as many of them have the newest
// revision.
func (w *world) settled(replicas, updated int32) {
	w.Helper()
	w.eventually(fmt.Sprintf("%d pods, %d of them updated", replicas, updated), func(s v1beta1.CloneSetStatus) bool {
		return s.Replicas == replicas && s.AvailableReplicas == replicas && s.ReadyReplicas == replicas && s.UpdatedReplicas == updated && s.UpdatedAvailableReplicas == updated
	})
}
