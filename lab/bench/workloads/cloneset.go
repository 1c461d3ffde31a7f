package workloads

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/keelson-io/keelson/lab/harness/must"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

const clones = "web" // name of the CloneSet

// Names of steps that several workloads have.
const (
	updatedAll  = "updated in place, maxUnavailable 100%"
	updatedSome = "updated in place, maxUnavailable 20%"
)

// cloneSet measures a CloneSet from creation to scale-down.
func (b *bench) cloneSet(ctx context.Context) {
	b.start()
	n := int32(b.pods) //nolint:gosec // a flag
	of := func(is func(v1beta1.CloneSetStatus) (bool, int32)) func(context.Context) seen {
		return func(ctx context.Context) seen {
			var set v1beta1.CloneSet
			must.Do(b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: clones}, &set))
			done, counts := is(set.Status)
			return seen{set.Status.ObservedGeneration, done, counts}
		}
	}
	rolling := func(image, unavailable string) func(context.Context) int64 {
		return b.changeClones(func(s *v1beta1.CloneSetSpec) {
			s.Template.Spec.Containers[0].Image = image
			s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString(unavailable))
		})
	}
	updated := of(func(s v1beta1.CloneSetStatus) (bool, int32) {
		return s.UpdatedReadyReplicas == n && s.ReadyReplicas == n, s.UpdatedReadyReplicas
	})
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(b.out, "a CloneSet of %d pods\n", b.pods)
	for _, s := range []step{
		{"created", b.createClones, of(func(s v1beta1.CloneSetStatus) (bool, int32) {
			return s.Replicas == n && s.ReadyReplicas == n, s.ReadyReplicas
		}), b.pods},
		{updatedAll, rolling("web:v2", "100%"), updated, b.pods},
		{updatedSome, rolling("web:v3", "20%"), updated, b.pods},
	} {
		b.step(ctx, w, s)
	}
	b.usage(w)
	b.bare(ctx, w, clones)
	gone := of(func(s v1beta1.CloneSetStatus) (bool, int32) { return s.Replicas == 0, s.Replicas })
	b.step(ctx, w, step{"scaled to 0", b.changeClones(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(0)) }), gone, b.pods})
	must.Do(w.Flush())
}

func (b *bench) createClones(ctx context.Context) int64 {
	set := v1beta1.CloneSet{ObjectMeta: metav1.ObjectMeta{Name: clones, Namespace: metav1.NamespaceDefault}}
	set.Spec.Replicas, set.Spec.Selector = new(int32(b.pods)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": clones}} //nolint:gosec // a flag
	set.Spec.Template.Labels = map[string]string{"app": clones}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "web:v1"}}
	set.Spec.UpdateStrategy.RollingUpdate = &v1beta1.CloneSetRollingUpdateStrategy{PodUpdatePolicy: v1beta1.PodUpdateInPlaceIfPossible}
	must.Do(b.client.Create(ctx, &set))
	return set.Generation
}

func (b *bench) changeClones(change func(*v1beta1.CloneSetSpec)) func(context.Context) int64 {
	return func(ctx context.Context) int64 {
		var set v1beta1.CloneSet
		must.Do(b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: clones}, &set))
		before := set.DeepCopy()
		change(&set.Spec)
		must.Do(b.client.Patch(ctx, &set, client.MergeFrom(before)))
		return set.Generation
	}
}
