package cloneset

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
)

// adopt adopts pods that the selector finds, and releases pods that it no longer finds: see
// [base.Adopter].
func (l *syncContext) adopt(ctx context.Context) (int, error) {
	return base.Adopter{
		Reconciler: l.Reconciler.Reconciler, Set: l.set, Kind: v1beta1.GroupVersion.WithKind(kind), Client: l.client, Live: l.live,
		Owns: func(p *corev1.Pod) bool { return l.selector.Matches(labels.Set(p.Labels)) },
	}.Adopt(ctx, l.roster.unselected())
}

// adopters returns the CloneSets that may adopt a pod without a controller.
func (r *Reconciler) adopters(ctx context.Context, pod client.Object) []reconcile.Request {
	var list v1beta1.CloneSetList
	if err := r.Objects.List(ctx, &list, client.InNamespace(pod.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // a list of the informer fails only when the process ends
	}
	var out []reconcile.Request
	for i := range list.Items {
		if base.Selects(list.Items[i].Spec.Selector, pod) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}
