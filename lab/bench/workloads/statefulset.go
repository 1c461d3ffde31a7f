package workloads

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/keelson-io/keelson/lab/harness/must"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

const stateful = "db" // name of the StatefulSet

// statefulSet measures a StatefulSet whose pods are updated in parallel, from creation to scale-down.
// It compares the updates with those of the CloneSet in the same run.
func (b *bench) statefulSet(ctx context.Context) {
	b.start()
	n := int32(b.pods) //nolint:gosec // a flag
	of := func(is func(v1beta1.StatefulSetStatus) (bool, int32)) func(context.Context) seen {
		return func(ctx context.Context) seen {
			var set v1beta1.StatefulSet
			must.Do(b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: stateful}, &set))
			done, counts := is(set.Status)
			return seen{set.Status.ObservedGeneration, done, counts}
		}
	}
	change := func(change func(*v1beta1.StatefulSetSpec)) func(context.Context) int64 {
		return func(ctx context.Context) int64 {
			var set v1beta1.StatefulSet
			must.Do(b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: stateful}, &set))
			before := set.DeepCopy()
			change(&set.Spec)
			must.Do(b.client.Patch(ctx, &set, client.MergeFrom(before)))
			return set.Generation
		}
	}
	rolling := func(image, unavailable string) func(context.Context) int64 {
		return change(func(s *v1beta1.StatefulSetSpec) {
			s.Template.Spec.Containers[0].Image = image
			s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString(unavailable))
		})
	}
	updated := of(func(s v1beta1.StatefulSetStatus) (bool, int32) {
		return s.UpdatedReadyReplicas == n && s.ReadyReplicas == n, s.UpdatedReadyReplicas
	})
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(b.out, "a StatefulSet of %d pods, Parallel\n", b.pods)
	for _, s := range []step{
		{"created", b.createStateful, of(func(s v1beta1.StatefulSetStatus) (bool, int32) {
			return s.Replicas == n && s.ReadyReplicas == n, s.ReadyReplicas
		}), b.pods},
		{updatedAll, rolling("db:v2", "100%"), updated, b.pods},
		{updatedSome, rolling("db:v3", "20%"), updated, b.pods},
	} {
		clones := b.took[s.name]
		b.step(ctx, w, s)
		fmt.Fprintf(w, "\t%.2f times as long as the CloneSet\n", b.last.Seconds()/clones.Seconds())
	}
	b.usage(w)
	gone := of(func(s v1beta1.StatefulSetStatus) (bool, int32) { return s.Replicas == 0, s.Replicas })
	b.step(ctx, w, step{"scaled to 0", change(func(s *v1beta1.StatefulSetSpec) { s.Replicas = new(int32(0)) }), gone, b.pods})
	must.Do(w.Flush())
}

func (b *bench) createStateful(ctx context.Context) int64 {
	set := v1beta1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: stateful, Namespace: metav1.NamespaceDefault}}
	set.Spec.Replicas, set.Spec.Selector = new(int32(b.pods)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": stateful}} //nolint:gosec // a flag
	set.Spec.PodManagementPolicy, set.Spec.ServiceName = appsv1.ParallelPodManagement, stateful
	set.Spec.Template.Labels = map[string]string{"app": stateful}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "db", Image: "db:v1"}}
	set.Spec.UpdateStrategy.RollingUpdate = &v1beta1.StatefulSetRollingUpdateStrategy{PodUpdatePolicy: v1beta1.PodUpdateInPlaceIfPossible}
	must.Do(b.client.Create(ctx, &set))
	return set.Generation
}
