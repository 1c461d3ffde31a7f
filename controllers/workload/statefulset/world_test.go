package statefulset_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/workload/statefulset"
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

// world is a namespace with a controller, a kubelet and a StatefulSet db.
type world struct{ *worldtest.World }

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return &world{worldtest.New(t, apiServer, time.Now, statefulset.Add)}
}

type change = func(*v1beta1.StatefulSetSpec)

// create creates the StatefulSet, of db:v1 and with the policy Parallel.
func (w *world) create(replicas int32, changes ...change) {
	w.Helper()
	set := &v1beta1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: w.Namespace}}
	set.Spec = v1beta1.StatefulSetSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, ServiceName: "db",
		PodManagementPolicy: appsv1.ParallelPodManagement,
		UpdateStrategy:      v1beta1.StatefulSetUpdateStrategy{RollingUpdate: &v1beta1.StatefulSetRollingUpdateStrategy{}},
	}
	set.Spec.Template.Labels = map[string]string{"app": "db"}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "db", Image: "db:v1"}}
	for _, c := range changes {
		c(&set.Spec)
	}
	w.Make(set)
}

func ordered(s *v1beta1.StatefulSetSpec) { s.PodManagementPolicy = appsv1.OrderedReadyPodManagement }

func inPlace(s *v1beta1.StatefulSetSpec) {
	s.UpdateStrategy.RollingUpdate.PodUpdatePolicy = v1beta1.PodUpdateInPlaceIfPossible
}

func image(is string) change {
	return func(s *v1beta1.StatefulSetSpec) { s.Template.Spec.Containers[0].Image = is }
}

func partition(n int32) change {
	return func(s *v1beta1.StatefulSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = &n }
}

func replicas(n int32) change { return func(s *v1beta1.StatefulSetSpec) { s.Replicas = &n } }

// growable is a class of volumes that can grow, which the API server checks.
const growable = "growable"

// volume adds a claim template of a size.
func volume(size string) change {
	return func(s *v1beta1.StatefulSetSpec) {
		c := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
		c.Spec.StorageClassName = new(growable)
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
		s.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{c}
	}
}

// change changes the spec.
func (w *world) change(changes ...change) {
	w.Helper()
	set := w.get()
	before := set.DeepCopy()
	for _, c := range changes {
		c(&set.Spec)
	}
	if err := w.Client.Patch(w.Context(), set, client.MergeFrom(before)); err != nil {
		w.Fatal(err)
	}
}

func (w *world) get() *v1beta1.StatefulSet {
	w.Helper()
	var set v1beta1.StatefulSet
	if err := w.Client.Get(w.Context(), client.ObjectKey{Namespace: w.Namespace, Name: "db"}, &set); err != nil {
		w.Fatal(err)
	}
	return &set
}

// pods returns the pods, by name.
func (w *world) pods() []corev1.Pod {
	w.Helper()
	list, err := w.Pods.CoreV1().Pods(w.Namespace).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

// images returns what each pod is to run, by name.
func (w *world) images() map[string]string {
	out := map[string]string{}
	for _, p := range w.pods() {
		out[p.Name] = p.Spec.Containers[0].Image
	}
	return out
}

func uids(pods []corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, p := range pods {
		out[p.Name] = string(p.UID)
	}
	return out
}

// eventually waits until something holds.
func (w *world) eventually(what string, is func() bool) {
	w.Helper()
	err := wait.PollUntilContextTimeout(w.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) { return is(), nil })
	if err == nil {
		return
	}
	for _, p := range w.pods() {
		w.Logf("%s: %v %v %v %+v", p.Name, p.Labels, p.Spec.Containers[0].Image, p.DeletionTimestamp, p.Status.Conditions)
	}
	w.Fatalf("never %s: %+v", what, w.get().Status)
}

// settled waits until as many pods are available, and as many of them have the newest revision.
func (w *world) settled(replicas, updated int32) {
	w.Helper()
	w.eventually(fmt.Sprintf("%d pods, %d of them updated", replicas, updated), func() bool {
		set := w.get()
		s := set.Status
		return s.ObservedGeneration == set.Generation && s.Replicas == replicas && s.AvailableReplicas == replicas && s.ReadyReplicas == replicas &&
			s.UpdatedReplicas == updated && s.UpdatedAvailableReplicas == updated && s.UpdatedReadyReplicas == updated
	})
}

// label sets a label of a pod.
func (w *world) label(pod, key string) {
	w.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: w.Namespace}}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, key))
	if err := w.Client.Patch(w.Context(), p, patch); err != nil {
		w.Fatal(err)
	}
}

func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	w.Helper()
	var c corev1.PersistentVolumeClaim
	if err := w.Client.Get(w.Context(), client.ObjectKey{Namespace: w.Namespace, Name: name}, &c); err != nil {
		w.Fatal(err)
	}
	return &c
}

// classes creates the class of volumes that can grow.
func (w *world) classes() {
	w.Helper()
	_, err := w.Pods.StorageV1().StorageClasses().Create(w.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: growable}, Provisioner: "test.keelson.io/volumes", AllowVolumeExpansion: new(true),
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
}

// resized is what a volume driver writes when a claim is bound, or has grown.
func (w *world) resized(name, size string, conditions ...corev1.PersistentVolumeClaimCondition) {
	w.Helper()
	c := w.claim(name)
	c.Status.Phase, c.Status.Conditions = corev1.ClaimBound, conditions
	c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	if err := w.Client.Status().Update(w.Context(), c); err != nil {
		w.Fatal(err)
	}
}
