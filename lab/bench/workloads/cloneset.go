package workloads

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// cloneSet measures a CloneSet from creation to scale-down, and the bare loop on its pods.
func (b *bench) cloneSet(ctx context.Context) {
	const name = "web"
	set := v1beta1.CloneSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
	set.Spec.Replicas, set.Spec.Selector, set.Spec.Template = new(int32(b.pods)), selector(name), template(name, "web") //nolint:gosec // a flag
	set.Spec.UpdateStrategy.RollingUpdate = &v1beta1.CloneSetRollingUpdateStrategy{PodUpdatePolicy: v1beta1.PodUpdateInPlaceIfPossible}
	b.replicated(ctx, replicated{
		title: "a CloneSet of %d pods", name: name, image: "web", bare: true, object: &set,
		status: func(ctx context.Context) replicas {
			s := get[v1beta1.CloneSet](ctx, b, name).Status
			return replicas{s.ObservedGeneration, s.Replicas, s.ReadyReplicas, s.UpdatedReadyReplicas}
		},
		roll: func(image, unavailable string) func(context.Context) int64 {
			return change(b, name, func(s *v1beta1.CloneSet) {
				s.Spec.Template.Spec.Containers[0].Image = image
				s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString(unavailable))
			})
		},
		empty: change(b, name, func(s *v1beta1.CloneSet) { s.Spec.Replicas = new(int32(0)) }),
	})
}
