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

const daemons = "agent" // name of the DaemonSet

// daemonSet measures a DaemonSet on all nodes: creation and rolling updates in place.
func (b *bench) daemonSet(ctx context.Context) error {
	if err := b.start(); err != nil {
		return err
	}
	n := int32(b.nodes) //nolint:gosec // a flag
	look := func(ctx context.Context) (seen, error) {
		var set v1beta1.DaemonSet
		err := b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: daemons}, &set)
		s := set.Status
		done := s.DesiredNumberScheduled == n && s.UpdatedNumberScheduled == n && s.NumberAvailable == n
		return seen{s.ObservedGeneration, done, s.UpdatedNumberScheduled}, err //nolint:wrapcheck // it says what
	}
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(b.out, "a DaemonSet on %d nodes\n", b.nodes)
	for _, s := range []step{
		{"created", b.createDaemons, look, b.nodes},
		{"rolled in place, maxUnavailable 100%", b.rollDaemons("agent:v2", "100%"), look, b.nodes},
		{"rolled in place, maxUnavailable 10%", b.rollDaemons("agent:v3", "10%"), look, b.nodes},
	} {
		if err := b.step(ctx, w, s); err != nil {
			return err
		}
	}
	if err := b.usage(w); err != nil {
		return err
	}
	if err := b.bare(ctx, w, daemons); err != nil {
		return err
	}
	fmt.Fprint(w, why)
	return w.Flush() //nolint:wrapcheck // stdout
}

func (b *bench) createDaemons(ctx context.Context) (int64, error) {
	set := v1beta1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: daemons, Namespace: metav1.NamespaceDefault}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": daemons}}
	set.Spec.Template.Labels = map[string]string{"app": daemons}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "agent", Image: "agent:v1"}}
	set.Spec.UpdateStrategy = v1beta1.DaemonSetUpdateStrategy{
		Type: v1beta1.DaemonSetRollingUpdate, RollingUpdate: &v1beta1.DaemonSetRollingUpdateStrategy{Type: v1beta1.DaemonSetInPlaceIfPossible},
	}
	if err := b.client.Create(ctx, &set); err != nil {
		return 0, fmt.Errorf("create the DaemonSet: %w", err)
	}
	return set.Generation, nil
}

func (b *bench) rollDaemons(image, unavailable string) func(context.Context) (int64, error) {
	return func(ctx context.Context) (int64, error) {
		var set v1beta1.DaemonSet
		if err := b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: daemons}, &set); err != nil {
			return 0, fmt.Errorf("read the DaemonSet: %w", err)
		}
		before := set.DeepCopy()
		set.Spec.Template.Spec.Containers[0].Image = image
		set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString(unavailable))
		if err := b.client.Patch(ctx, &set, client.MergeFrom(before)); err != nil {
			return 0, fmt.Errorf("change the DaemonSet: %w", err)
		}
		return set.Generation, nil
	}
}
