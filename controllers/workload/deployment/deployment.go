// Package deployment divides the updates of Deployments of apps/v1 that have the annotation
// workloads.keelson.io/update-strategy. It changes fields of the Deployment alone: the Deployment controller of
// Kubernetes goes on to scale the ReplicaSets.
//
// Between two steps the Deployment is paused. A step lets the Deployment controller replace a number of
// pods and no more, however late a reconcile comes; see [steer].
package deployment

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

const kind = "Deployment"

// retryAfter is when to try again after a conflict. The change that caused it usually comes first.
const retryAfter = time.Second

// Reconciler reconciles Deployments that have the annotation.
type Reconciler struct {
	*base.Reconciler
	running   context.Context //nolint:containedctx // see work
	followers *followers
	now       func() time.Time
}

// Add adds the controller of Deployments to a manager. The context ends what it starts. It returns an error
// if the client or the controller cannot be built.
func Add(ctx context.Context, m ctrl.Manager, o base.Options) error {
	h, err := base.New(m, kind, "keelson-deployments", nil, o)
	if err != nil {
		return fmt.Errorf("the controller of Deployments: %w", err)
	}
	r := &Reconciler{Reconciler: h, running: ctx, followers: newFollowers(h.API), now: o.Now}
	err = ctrl.NewControllerManagedBy(m).Named("deployment").
		For(&appsv1.Deployment{}, builder.WithPredicates(steered())).
		WatchesRawSource(source.Channel(r.followers.events, enqueue())).
		WithOptions(controller.Options{MaxConcurrentReconciles: o.Workers}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("the controller of Deployments: %w", err)
	}
	return nil
}

// steered lets the events of Deployments through that have the annotation, or had it.
func steered() predicate.Predicate {
	is := predicate.NewPredicateFuncs(base.HasUpdateStrategy)
	is.UpdateFunc = func(e event.UpdateEvent) bool {
		return base.HasUpdateStrategy(e.ObjectOld) || base.HasUpdateStrategy(e.ObjectNew)
	}
	return is
}

// Reconcile implements [reconcile.Reconciler].
func (r *Reconciler) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	d := &appsv1.Deployment{}
	if err := r.Objects.Get(ctx, q.NamespacedName, d); err != nil {
		if apierrors.IsNotFound(err) {
			r.followers.stop(q.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err) //nolint:wrapcheck // it says what and where
	}
	if d.DeletionTimestamp != nil || !base.HasUpdateStrategy(d) {
		r.followers.stop(q.NamespacedName)
		return reconcile.Result{}, nil
	}
	after, err := r.work(ctx, d)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: retryAfter}, nil
	}
	return base.Result(ctx, after, err)
}

// work is one reconcile of a Deployment. It returns when the next one is due without a change; 0 means
// never.
func (r *Reconciler) work(ctx context.Context, d *appsv1.Deployment) (time.Duration, error) {
	o := observation{deployment: d, now: r.now()}
	p := newPlan(o)
	if p.waits {
		return 0, nil // an event follows
	}
	if p.needs {
		follower, err := r.followers.of(r.running, d) //nolint:contextcheck // informers of one Deployment outlive a reconcile
		if err != nil {
			return 0, err
		}
		if o.sets, o.pods, o.known = follower.observe(d); !o.known {
			return 0, nil // an event follows
		}
		p = newPlan(o)
	}
	if !p.busy {
		r.followers.stop(client.ObjectKeyFromObject(d))
	}
	left, err := r.write(ctx, o, p)
	if left > 0 && (p.after == 0 || left < p.after) {
		p.after = left
	}
	return p.after, err
}

// write writes what a plan changes, in one request. It fails with a conflict if the Deployment was changed
// since it was read. It returns when a status is due that changes too often.
func (r *Reconciler) write(ctx context.Context, o observation, p plan) (time.Duration, error) {
	d, was := o.deployment, Status(o.deployment)
	change, urgent, err := p.change(d)
	if err != nil || change == nil {
		return 0, err
	}
	if left := r.Paced(d.UID, o.now); left > 0 && !urgent {
		return left, nil
	}
	data, err := json.Marshal(change)
	if err != nil {
		return 0, fmt.Errorf("encode the change of Deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	now := d.DeepCopy()
	if err := r.Objects.Patch(ctx, now, client.RawPatch(types.MergePatchType, data), client.FieldOwner(v1alpha1.DeploymentManager)); err != nil {
		return 0, fmt.Errorf("change Deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	r.recordEvents(d, &was, p.status)
	return 0, nil
}

// change returns the merge patch of a plan; nil: nothing changes. urgent: more than the message of the status
// changes.
func (p plan) change(d *appsv1.Deployment) (change map[string]any, urgent bool, err error) {
	annotations, spec := map[string]any{}, specChange(fieldsOf(d), p.fields)
	put := func(name string, value any, is bool) error {
		text, has := d.Annotations[name]
		if !is {
			if has {
				annotations[name], urgent = nil, true
			}
			return nil
		}
		data, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("annotation %s: %w", name, err)
		}
		if text != string(data) {
			annotations[name] = string(data)
		}
		return nil
	}
	if err := put(v1beta1.AnnotationUpdateBefore, p.kept, p.kept != nil); err != nil {
		return nil, false, err
	}
	urgent = urgent || len(annotations) > 0
	if err := put(v1beta1.AnnotationUpdateStatus, p.status, p.status != nil); err != nil {
		return nil, false, err
	}
	if len(annotations) == 0 && len(spec) == 0 {
		return nil, false, nil
	}
	metadata := map[string]any{"resourceVersion": d.ResourceVersion, "uid": d.UID}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	change = map[string]any{"metadata": metadata}
	if len(spec) > 0 {
		change["spec"] = spec
	}
	was := Status(d)
	return change, urgent || len(spec) > 0 || p.status != nil && (was.ObservedGeneration != d.Generation || outline(was) != outline(*p.status)), nil
}

// outline returns what of a status is written at once.
func outline(s v1beta1.DeploymentUpdateStatus) any {
	b := s.Batches
	if b == nil {
		b = &v1beta1.BatchStatus{}
	}
	return [...]any{s.Refused, b.Number, b.Revision, b.Reason, b.Failed}
}

// specChange returns the part of a merge patch that changes the spec.
func specChange(live, to fields) map[string]any {
	spec, rolling := map[string]any{}, map[string]any{}
	if live.Paused != to.Paused {
		spec["paused"] = map[bool]any{true: true, false: nil}[to.Paused]
	}
	if live.MinReadySeconds != to.MinReadySeconds {
		spec["minReadySeconds"] = to.MinReadySeconds
	}
	if !same(live.ProgressDeadlineSeconds, to.ProgressDeadlineSeconds) {
		spec["progressDeadlineSeconds"] = to.ProgressDeadlineSeconds
	}
	if !same(live.MaxUnavailable, to.MaxUnavailable) {
		rolling["maxUnavailable"] = to.MaxUnavailable
	}
	if !same(live.MaxSurge, to.MaxSurge) {
		rolling["maxSurge"] = to.MaxSurge
	}
	if len(rolling) > 0 {
		spec["strategy"] = map[string]any{"rollingUpdate": rolling}
	}
	return spec
}

// recordEvents records an event for a change of the status.
func (r *Reconciler) recordEvents(d *appsv1.Deployment, was, is *v1beta1.DeploymentUpdateStatus) {
	switch {
	case is == nil:
		r.Events.Eventf(d, nil, corev1.EventTypeNormal, "HandedBack", "Reconciling", "the annotation %s is gone: the Deployment has its own fields again", v1beta1.AnnotationUpdateStrategy)
	case is.Refused != "" && is.Refused != was.Refused:
		r.Events.Eventf(d, nil, corev1.EventTypeWarning, base.ReasonRefused, "Reconciling", "%s", is.Refused)
	case is.Refused == "":
		batch.Tell(r.Events, d, was.Batches, is.Batches)
	}
}
