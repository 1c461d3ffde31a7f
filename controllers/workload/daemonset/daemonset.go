// Package daemonset runs DaemonSets of apps.kruise.io: a pod on each node that should
// run one, brought to new revisions by partition, by node, in place, by replacement, or
// beside the old one.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

const kind = "DaemonSet"

// Reconciler brings DaemonSets about.
type Reconciler struct {
	objects   client.Client // reads are the informers'
	pods      kubernetes.Interface
	events    events.EventRecorder
	options   inplace.Options
	now       func() time.Time
	expect    *expectations.Expectations
	revisions revision.Store
}

// Options are the settings of a [Reconciler].
type Options struct {
	// Workers is how many DaemonSets are looked at at once.
	Workers int
	// InPlace says what the cluster can do.
	InPlace inplace.Options
	// Now tells the time.
	Now func() time.Time
}

// Add has a manager run DaemonSets. Its client and cache must know the API groups v1,
// apps/v1 and apps.kruise.io.
func Add(ctx context.Context, m ctrl.Manager, o Options) error {
	pods, err := kubernetes.NewForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("DaemonSets: %w", err)
	}
	if err := m.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, podclient.OwnerIndex(kind), podclient.ByOwner(kind)); err != nil {
		return fmt.Errorf("DaemonSets: index pods: %w", err)
	}
	r := &Reconciler{
		objects: m.GetClient(), pods: pods, events: m.GetEventRecorder("daemonset-controller"), options: o.InPlace, now: o.Now,
		expect: expectations.New(o.Now), revisions: revision.Store{Cache: m.GetClient(), API: pods},
	}
	err = ctrl.NewControllerManagedBy(m).Named("daemonset").
		For(&v1beta1.DaemonSet{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, podclient.Heard(kind, r.expect)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.Funcs{UpdateFunc: matters})).
		WithOptions(controller.Options{MaxConcurrentReconciles: o.Workers}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("DaemonSets: %w", err)
	}
	return nil
}

// matters reports whether a change of a node may make it another one to a DaemonSet.
func matters(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*corev1.Node)
	is, isNode := e.ObjectNew.(*corev1.Node)
	return !ok || !isNode || !equality.Semantic.DeepEqual(was.Labels, is.Labels) || !equality.Semantic.DeepEqual(was.Spec, is.Spec)
}

// all has every DaemonSet looked at.
func (r *Reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var list v1beta1.DaemonSetList
	if err := r.objects.List(ctx, &list); err != nil {
		return nil // it is the informer's: it fails when the process ends
	}
	var out []reconcile.Request
	for _, d := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&d)})
	}
	return out
}

// Reconcile implements [reconcile.Reconciler].
func (r *Reconciler) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	var set v1beta1.DaemonSet
	if err := r.objects.Get(ctx, q.NamespacedName, &set); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) //nolint:wrapcheck // it says what and where
	}
	if set.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // its pods are the garbage collector's
	}
	if r.expect.Waits(set.UID) {
		return reconcile.Result{RequeueAfter: expectations.Patience}, nil
	}
	l, err := r.look(ctx, &set)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("DaemonSet %s: %w", q, err)
	}
	err = errors.Join(l.act(ctx), l.writeStatus(ctx))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil // somebody was faster: look again
	}
	return reconcile.Result{RequeueAfter: l.after}, err
}
