package workloads

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// statefulSet measures a StatefulSet whose pods are updated in parallel, from creation to scale-down.
// It compares the updates with those of the CloneSet in the same run.
func (b *bench) statefulSet(ctx context.Context) {
	const name = "db"
	set := v1beta1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
	set.Spec.Replicas, set.Spec.Selector, set.Spec.Template = new(int32(b.pods)), selector(name), template(name, "db") //nolint:gosec // a flag
	set.Spec.PodManagementPolicy, set.Spec.ServiceName = appsv1.ParallelPodManagement, name
	set.Spec.UpdateStrategy.RollingUpdate = &v1beta1.StatefulSetRollingUpdateStrategy{PodUpdatePolicy: v1beta1.PodUpdateInPlaceIfPossible}
	b.replicated(ctx, replicated{
		title: "a StatefulSet of %d pods, Parallel", name: name, image: "db", object: &set,
		status: func(ctx context.Context) replicas {
			s := get[v1beta1.StatefulSet](ctx, b, name).Status
			return replicas{s.ObservedGeneration, s.Replicas, s.ReadyReplicas, s.UpdatedReadyReplicas}
		},
		roll: func(image, unavailable string) func(context.Context) int64 {
			return change(b, name, func(s *v1beta1.StatefulSet) {
				s.Spec.Template.Spec.Containers[0].Image = image
				s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString(unavailable))
			})
		},
		empty: change(b, name, func(s *v1beta1.StatefulSet) { s.Spec.Replicas = new(int32(0)) }),
	})
}
