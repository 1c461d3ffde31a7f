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

const daemons = "agent" // name of the DaemonSet

// daemonSet measures a DaemonSet on all nodes: creation and rolling updates in place.
func (b *bench) daemonSet(ctx context.Context) {
	b.start()
	n := int32(b.nodes) //nolint:gosec // a flag
	look := func(ctx context.Context) seen {
		var set v1beta1.DaemonSet
		must.Do(b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: daemons}, &set))
		s := set.Status
		done := s.DesiredNumberScheduled == n && s.UpdatedNumberScheduled == n && s.NumberAvailable == n
		return seen{s.ObservedGeneration, done, s.UpdatedNumberScheduled}
	}
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(b.out, "a DaemonSet on %d nodes\n", b.nodes)
	for _, s := range []step{
		{"created", b.createDaemons, look, b.nodes},
		{"rolled in place, maxUnavailable 100%", b.rollDaemons("agent:v2", "100%"), look, b.nodes},
		{"rolled in place, maxUnavailable 10%", b.rollDaemons("agent:v3", "10%"), look, b.nodes},
	} {
		b.step(ctx, w, s)
	}
	b.usage(w)
	b.bare(ctx, w, daemons)
	fmt.Fprint(w, why)
	must.Do(w.Flush())
}

func (b *bench) createDaemons(ctx context.Context) int64 {
	set := v1beta1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: daemons, Namespace: metav1.NamespaceDefault}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": daemons}}
	set.Spec.Template.Labels = map[string]string{"app": daemons}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "agent", Image: "agent:v1"}}
	set.Spec.UpdateStrategy = v1beta1.DaemonSetUpdateStrategy{
		Type: v1beta1.DaemonSetRollingUpdate, RollingUpdate: &v1beta1.DaemonSetRollingUpdateStrategy{Type: v1beta1.DaemonSetInPlaceIfPossible},
	}
	must.Do(b.client.Create(ctx, &set))
	return set.Generation
}

func (b *bench) rollDaemons(image, unavailable string) func(context.Context) int64 {
	return func(ctx context.Context) int64 {
		var set v1beta1.DaemonSet
		must.Do(b.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: daemons}, &set))
		before := set.DeepCopy()
		set.Spec.Template.Spec.Containers[0].Image = image
		set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString(unavailable))
		must.Do(b.client.Patch(ctx, &set, client.MergeFrom(before)))
		return set.Generation
	}
}
