// Package daemonset runs DaemonSets of apps.kruise.io: a pod on each node that should run one.
// Pods move to new revisions by partition and node selector. They are updated in place,
// replaced, or surged beside the old pod.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
)

const kind = "DaemonSet"

// Reconciler reconciles DaemonSets.
type Reconciler struct {
	*base.Reconciler
	options inplace.Options
	now     func() time.Time
	live    client.Reader // reads from the API server
	backoff *backoff
	nodes   *nodes

	rosters *base.StateByObject[roster]
}

func newReconciler(h *base.Reconciler, live client.Reader, o base.Options) *Reconciler {
	return &Reconciler{Reconciler: h, live: live, options: o.InPlace, now: o.Now, backoff: newBackoff(), nodes: newNodes(), rosters: base.NewStateByObject(newRoster)}
}

// Add adds the controller of DaemonSets to a manager. It returns an error if the client or the
// controller cannot be built.
func Add(_ context.Context, m ctrl.Manager, o base.Options) error {
	h, err := base.New(m, kind, "daemonset-controller", base.NewSpecs(spec), o)
	if err != nil {
		return fmt.Errorf("DaemonSets: %w", err)
	}
	r := newReconciler(h, m.GetAPIReader(), o)
	err = h.Watch(m, &v1beta1.DaemonSet{}).
		Watches(&corev1.Node{}, r.nodes.eventHandler(r.all), builder.WithPredicates(predicate.Funcs{UpdateFunc: matters})).
		Complete(r)
	if err != nil {
		return fmt.Errorf("DaemonSets: %w", err)
	}
	return nil
}

// matters reports whether a change of a node can matter to a DaemonSet: its labels or spec
// differ.
func matters(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*corev1.Node)
	is, isNode := e.ObjectNew.(*corev1.Node)
	return !ok || !isNode || !equality.Semantic.DeepEqual(was.Labels, is.Labels) || !equality.Semantic.DeepEqual(was.Spec, is.Spec)
}

// all returns a request for every DaemonSet.
func (r *Reconciler) all(ctx context.Context) []reconcile.Request {
	var list v1beta1.DaemonSetList
	if err := r.Objects.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot list the DaemonSets after a change of nodes; each follows its own changes")
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}

// Reconcile implements [reconcile.Reconciler].
func (r *Reconciler) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	steps := base.Steps[*v1beta1.DaemonSet]{Forget: r.rosters.Forget, Waits: r.Expect.Waits, Check: check, Refuse: r.refuse, Work: r.work}
	return steps.Reconcile(ctx, r.Objects, q, &v1beta1.DaemonSet{})
}

// work is one reconcile of a DaemonSet. It returns when the next one is due without a change; 0 means
// never.
func (r *Reconciler) work(ctx context.Context, set *v1beta1.DaemonSet) (time.Duration, error) {
	l, err := r.newSyncContext(ctx, set)
	if err != nil {
		return 0, fmt.Errorf("DaemonSet %s/%s: %w", set.Namespace, set.Name, err)
	}
	err = l.act(ctx)
	after, statusErr := l.writeStatus(ctx)
	l.RequeueAfter(after)
	return l.After(), errors.Join(err, statusErr)
}

// spec returns what a DaemonSet is to be: its spec, and the batches that are released.
func spec(o client.Object) any {
	set, ok := o.(*v1beta1.DaemonSet)
	if !ok {
		return nil
	}
	return []any{set.Spec, set.Annotations[v1beta1.AnnotationNextBatch]}
}
