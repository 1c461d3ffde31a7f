package deployment_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/workload/deployment"
	"github.com/keelson-io/keelson/controllers/workload/worldtest"
)

// apiServer is a real one, without the controllers of Kubernetes; nil in -short runs.
var apiServer *rest.Config

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { apiServer = config }, "../../../components/workload-controllers/template/crds"))
}

// patience is no bound of anything: a machine that does much else takes its time.
const patience = 3 * time.Minute

// world has a Deployment web of two pods. The test writes what the Deployment controller would.
type world struct {
	*worldtest.World
	d *appsv1.Deployment
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{World: worldtest.New(t, apiServer, time.Now, deployment.Add)}
	w.d = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "web"}}
	w.d.Spec = appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
	w.d.Spec.Template.Labels = map[string]string{"app": "web"}
	w.d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "web:v1"}}
	w.Make(w.d)
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.Namespace, Name: "web-1", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w.d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
	}}
	labels := map[string]string{"app": "web", appsv1.DefaultDeploymentUniqueLabelKey: "1"}
	set.Spec = appsv1.ReplicaSetSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: *w.d.Spec.Template.DeepCopy()}
	set.Labels, set.Spec.Template.Labels = labels, labels
	w.Make(set)
	w.observed(2)
	return w
}

// change changes the Deployment as a user does.
func (w *world) change(change func(*appsv1.Deployment)) {
	w.Helper()
	before := w.d.DeepCopy()
	change(w.d)
	if err := w.Client.Patch(w.Context(), w.d, client.MergeFrom(before)); err != nil {
		w.Fatal(err)
	}
}

// observed writes the status of the Deployment controller.
func (w *world) observed(updated int32) {
	w.Helper()
	before := w.d.DeepCopy()
	w.d.Status = appsv1.DeploymentStatus{ObservedGeneration: w.d.Generation, Replicas: 2, UpdatedReplicas: updated, ReadyReplicas: 2, AvailableReplicas: 2}
	if err := w.Client.Status().Patch(w.Context(), w.d, client.MergeFrom(before)); err != nil {
		w.Fatal(err)
	}
}

// until waits until the Deployment is as wanted.
func (w *world) until(what string, is func(*appsv1.Deployment) bool) {
	w.Helper()
	err := wait.PollUntilContextTimeout(w.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := w.Client.Get(ctx, client.ObjectKeyFromObject(w.d), w.d)
		return err == nil && is(w.d), err
	})
	if err != nil {
		w.Fatalf("never %s: %v: %+v %v", what, err, w.d.Spec, w.d.Annotations)
	}
}

func strategy(text string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1beta1.AnnotationUpdateStrategy, text)
	}
}

// A Deployment is taken over, a step of it opens, and it is handed back, also by a controller that was away.
func TestStep(t *testing.T) {
	w := newWorld(t)
	w.change(strategy("partition: 3%"))
	seen := func(d *appsv1.Deployment) bool {
		return d.Spec.Paused && deployment.Status(d).ObservedGeneration == d.Generation
	}
	w.until("taken over", seen)
	w.observed(2)
	w.change(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "web:v2" })
	w.observed(0)
	w.until("open", func(d *appsv1.Deployment) bool { return !d.Spec.Paused && d.Spec.MinReadySeconds > 1<<30 })
	u := w.d.Spec.Strategy.RollingUpdate
	if s := deployment.Status(w.d); u.MaxUnavailable.IntValue()+u.MaxSurge.IntValue() != 1 || s.Batches == nil || s.Batches.Reason != v1beta1.BatchUpdating {
		t.Errorf("a step of one pod: %+v, %+v", u, s)
	}
	w.Restart(func() {
		w.until("annotated", func(d *appsv1.Deployment) bool { return deployment.Before(d) != nil })
		w.change(func(d *appsv1.Deployment) { delete(d.Annotations, v1beta1.AnnotationUpdateStrategy) })
	})
	w.until("handed back", func(d *appsv1.Deployment) bool {
		u := d.Spec.Strategy.RollingUpdate
		return !d.Spec.Paused && d.Spec.MinReadySeconds == 0 && *d.Spec.ProgressDeadlineSeconds == 600 && u.MaxSurge.StrVal == "25%" && u.MaxUnavailable.StrVal == "25%" &&
			len(d.Annotations) == 0
	})
}

// An annotation that can't be followed is refused, with an event, until it is corrected.
func TestRefusedAnnotation(t *testing.T) {
	w := newWorld(t)
	w.change(strategy("{batches: {sizes: [0]}}"))
	w.until("refused", func(d *appsv1.Deployment) bool {
		return d.Spec.Paused && strings.Contains(deployment.Status(d).Refused, "a batch has at least one pod")
	})
	w.change(strategy("{batches: {sizes: [1]}}"))
	w.observed(2)
	w.until("followed", func(d *appsv1.Deployment) bool {
		s := deployment.Status(d)
		return s.Refused == "" && s.ObservedGeneration == d.Generation
	})
	if err := w.Client.Delete(t.Context(), w.d); err != nil {
		t.Fatal(err)
	}
}
