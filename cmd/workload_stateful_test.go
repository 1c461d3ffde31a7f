package cmd_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// A StatefulSet of apps.kruise.io as a person sees and steers it, with the controllers that ship. One
// of Kubernetes may have its name.
func TestWorkloadStatefulSet(t *testing.T) {
	s := newShop(t)
	s.run()
	set := &v1beta1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "db"}}
	set.Spec = v1beta1.StatefulSetSpec{
		Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, PodManagementPolicy: appsv1.ParallelPodManagement,
		UpdateStrategy: v1beta1.StatefulSetUpdateStrategy{RollingUpdate: &v1beta1.StatefulSetRollingUpdateStrategy{PodUpdatePolicy: v1beta1.PodUpdateInPlaceIfPossible}},
	}
	set.Spec.Template.Labels = map[string]string{"app": "db"}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "db", Image: "db:v1"}}
	s.create(set)
	change := func(change func(*v1beta1.StatefulSetSpec)) {
		t.Helper()
		var is v1beta1.StatefulSet
		if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(set), &is); err != nil {
			t.Fatal(err)
		}
		before := is.DeepCopy()
		change(&is.Spec)
		if err := s.client.Patch(t.Context(), &is, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	s.keelson("status", "db", "--watch", "--timeout", "3m").want(t, 0).says(t, "StatefulSet workloadstatefulset/db: Healthy\n")
	change(func(spec *v1beta1.StatefulSetSpec) {
		spec.Template.Spec.Containers[0].Image = "db:v2"
		spec.UpdateStrategy.RollingUpdate.Partition = new(int32(2))
	})
	s.keelson("status", "asts/db", "--watch", "--timeout", "3m").want(t, 0).says(t, "Healthy: 1 of 3 pods updated: partition 2\n")
	s.keelson("status", "db").want(t, 0).says(t, "update: InPlaceIfPossible, partition 2, to revision ", "2         db-", "db-2  ", "available\n")
	s.keelson("pause", "db").want(t, 0).says(t, "StatefulSet workloadstatefulset/db is paused")
	change(func(spec *v1beta1.StatefulSetSpec) { spec.UpdateStrategy.RollingUpdate.Partition = nil })
	s.keelson("status", "db").want(t, 1).says(t, "paused: 1 of 3 pods updated")
	s.keelson("resume", "db").want(t, 0)
	s.keelson("status", "db", "--watch", "--timeout", "3m").want(t, 0).says(t, "Healthy\n")
	s.keelson("rollback", "db").want(t, 0).says(t, "db:v2 → db:v1")
	s.keelson("status", "db", "--watch", "--timeout", "3m").want(t, 0).says(t, "Healthy\n")
	if got := s.images(); got["db:v1"] != 3 {
		t.Errorf("%v", got)
	}
	native := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "db"}}
	native.Spec = appsv1.StatefulSetSpec{Selector: set.Spec.Selector, Template: set.Spec.Template}
	s.create(native)
	s.keelson("status", "db").want(t, 2).says(t, "has several workloads db: say asts/db or sts/db")
}

// An update in batches as a person sees and steers it: it waits, is released, and a second time stops at
// pods that can't run.
func TestWorkloadBatches(t *testing.T) {
	s := newShop(t)
	s.run()
	set := cloneSet(s.namespace)
	s.create(set)
	s.keelson("status", "web", "--watch", "--timeout", "3m").want(t, 0)
	s.keelson("next-batch", "web").want(t, 2).says(t, "the update of CloneSet workloadbatches/web is not divided: it has no spec.updateStrategy.rollingUpdate.batches")
	s.change(func(spec *v1beta1.CloneSetSpec) {
		spec.UpdateStrategy.RollingUpdate.Batches = &v1beta1.UpdateBatches{Sizes: []intstr.IntOrString{intstr.FromInt32(1), intstr.FromInt32(1)}}
	})
	s.keelson("next-batch", "web").want(t, 2).says(t, "has no update in batches")
	image := func(is string) {
		t.Helper()
		s.change(func(spec *v1beta1.CloneSetSpec) { spec.Template.Spec.Containers[0].Image = is })
	}
	waits := func(batch string, reason v1beta1.BatchReason) {
		t.Helper()
		until(t, batch+" "+string(reason), func() bool {
			is := s.get().Status.Batches
			return is != nil && is.Batch == batch && is.Reason == reason
		})
	}
	image("web:v2")
	waits("1/3", v1beta1.BatchApproval)
	s.keelson("status", "web").want(t, 1).says(t, "Progressing: batch 1/3: the next batch begins after 'keelson workload next-batch'", "\nbatch: 1/3 since ")
	s.keelson("next-batch", "web").want(t, 0).says(t, "CloneSet workloadbatches/web: batch 2 of revision web-")
	waits("2/3", v1beta1.BatchApproval)
	s.keelson("next-batch", "web", "--all", "-o", "json").want(t, 0).says(t, `"batch": "2/3"`, `"released": 2147483647`)
	s.keelson("status", "web", "--watch", "--timeout", "3m").want(t, 0).says(t, "Healthy\n")
	s.keelson("next-batch", "web").want(t, 2).says(t, "the update of CloneSet workloadbatches/web is done: batch 3/3")
	if got := s.images(); got["web:v2"] != 3 {
		t.Errorf("%v", got)
	}
}
