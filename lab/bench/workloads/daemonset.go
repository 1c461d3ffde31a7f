package workloads

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/keelson-io/keelson/lab/harness/must"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// daemonSet measures a DaemonSet on all nodes: creation and rolling updates in place.
func (b *bench) daemonSet(ctx context.Context) {
	const name = "agent"
	b.start()
	n := int32(b.nodes) //nolint:gosec // a flag
	set := v1beta1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
	set.Spec.Selector, set.Spec.Template = selector(name), template(name, "agent")
	set.Spec.UpdateStrategy = v1beta1.DaemonSetUpdateStrategy{
		Type: v1beta1.DaemonSetRollingUpdate, RollingUpdate: &v1beta1.DaemonSetRollingUpdateStrategy{Type: v1beta1.DaemonSetInPlaceIfPossible},
	}
	look := func(ctx context.Context) seen {
		s := get[v1beta1.DaemonSet](ctx, b, name).Status
		done := s.DesiredNumberScheduled == n && s.UpdatedNumberScheduled == n && s.NumberAvailable == n
		return seen{s.ObservedGeneration, done, s.UpdatedNumberScheduled}
	}
	roll := func(image, unavailable string) func(context.Context) int64 {
		return change(b, name, func(s *v1beta1.DaemonSet) {
			s.Spec.Template.Spec.Containers[0].Image = image
			s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString(unavailable))
		})
	}
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(b.out, "a DaemonSet on %d nodes\n", b.nodes)
	for _, s := range []step{
		{"created", b.create(&set), look, b.nodes},
		{"rolled in place, maxUnavailable 100%", roll("agent:v2", "100%"), look, b.nodes},
		{"rolled in place, maxUnavailable 10%", roll("agent:v3", "10%"), look, b.nodes},
	} {
		b.step(ctx, w, s)
	}
	b.usage(w)
	b.bare(ctx, w, name)
	fmt.Fprint(w, why)
	must.Do(w.Flush())
}
