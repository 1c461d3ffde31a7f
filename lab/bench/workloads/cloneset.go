package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

const clones = "web" // name of the CloneSet

// cloneSet measures a CloneSet from creation to scale-down.
func (b *bench) cloneSet(ctx context.Context) error {
	if err := b.start(); err != nil {
		return err
	}
	n := int32(b.pods) //nolint:gosec // a flag
	of := func(is func(v1beta1.CloneSetStatus) (bool, int32)) func(context.Context) (seen, error) {
		return func(ctx context.Context) (seen, error) {
			var set v1beta1.CloneSet
			err := b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: clones}, &set)
			done, counts := is(set.Status)
			return seen{set.Status.ObservedGeneration, done, counts}, err //nolint:wrapcheck // it says what
		}
	}
	rolling := func(image, unavailable string) func(context.Context) (int64, error) {
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
		{"updated in place, maxUnavailable 100%", rolling("web:v2", "100%"), updated, b.pods},
		{"updated in place, maxUnavailable 20%", rolling("web:v3", "20%"), updated, b.pods},
	} {
		if err := b.step(ctx, w, s); err != nil {
			return err
		}
	}
	if err := b.usage(w); err != nil {
		return err
	}
	if err := b.bare(ctx, w, clones); err != nil {
		return err
	}
	gone := of(func(s v1beta1.CloneSetStatus) (bool, int32) { return s.Replicas == 0, s.Replicas })
	if err := b.step(ctx, w, step{"scaled to 0", b.changeClones(func(s *v1beta1.CloneSetSpec) { s.Replicas = new(int32(0)) }), gone, b.pods}); err != nil {
		return err
	}
	return w.Flush() //nolint:wrapcheck // stdout
}

func (b *bench) createClones(ctx context.Context) (int64, error) {
	set := v1beta1.CloneSet{ObjectMeta: metav1.ObjectMeta{Name: clones, Namespace: metav1.NamespaceDefault}}
	set.Spec.Replicas, set.Spec.Selector = new(int32(b.pods)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": clones}} //nolint:gosec // a flag
	set.Spec.Template.Labels = map[string]string{"app": clones}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "web:v1"}}
	set.Spec.UpdateStrategy.RollingUpdate = &v1beta1.CloneSetRollingUpdateStrategy{PodUpdatePolicy: v1beta1.PodUpdateInPlaceIfPossible}
	if err := b.client.Create(ctx, &set); err != nil {
		return 0, fmt.Errorf("create the CloneSet: %w", err)
	}
	return set.Generation, nil
}

func (b *bench) changeClones(change func(*v1beta1.CloneSetSpec)) func(context.Context) (int64, error) {
	return func(ctx context.Context) (int64, error) {
		var set v1beta1.CloneSet
		if err := b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: clones}, &set); err != nil {
			return 0, fmt.Errorf("read the CloneSet: %w", err)
		}
		before := set.DeepCopy()
		change(&set.Spec)
		if err := b.client.Patch(ctx, &set, client.MergeFrom(before)); err != nil {
			return 0, fmt.Errorf("change the CloneSet: %w", err)
		}
		return set.Generation, nil
	}
}
