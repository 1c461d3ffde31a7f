package daemonset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
	"github.com/keelson-io/keelson/controllers/workload/reload"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/slowstart"
)

// syncContext is one reconcile of a DaemonSet: the observed and desired state, and the results.
type syncContext struct {
	*Reconciler
	set     *v1beta1.DaemonSet
	want    want
	client  podclient.Client
	history revision.History
	roster  *roster
	fit     fit
	chosen  labels.Selector // selects the nodes whose pods are updated
	plans   *inplace.Plans
	batch   batch.Decision

	base.Timer
}

func (r *Reconciler) newSyncContext(ctx context.Context, set *v1beta1.DaemonSet) (*syncContext, error) {
	l := &syncContext{
		Reconciler: r, set: set, roster: r.rosters.Of(set), fit: newFit(&set.Spec.Template), plans: inplace.NewPlans(r.options),
		client: podclient.Client{API: r.API, Expect: r.Expect, Owner: set.UID, Hooks: hooks(set), Reloads: r.Reloads, Events: r.Events, Now: r.now()},
	}
	owner := revision.Owner{Object: set, Kind: v1beta1.GroupVersion.WithKind(kind), Labels: set.Spec.Selector.MatchLabels, Collisions: set.Status.CollisionCount}
	owner.Confirm = func(ctx context.Context) error { return base.CheckCurrent(ctx, r.live, owner.Kind, set) }
	var err error
	if l.history, err = r.Revisions.Sync(ctx, owner, &set.Spec.Template); err != nil {
		return nil, err
	}
	if l.chosen, err = nodeSelector(set); err != nil {
		return nil, err
	}
	b := basis{generation: set.Generation, specs: r.Specs.Changes(set), updated: l.history.Updated.Name}
	for _, r := range l.history.Revisions {
		b.history += r.Name + " "
	}
	since := func(m *podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod] { return r.Owned.Since(m, set) }
	l.RequeueAfter(l.roster.sync(b, since, r.nodes, l.judge, l.client.Now))
	if l.want, err = newWant(set, l.roster.sums.running); err != nil {
		return nil, err
	}
	l.divide()
	return l, nil
}

// divide decides how far the batches go.
func (l *syncContext) divide() {
	u := l.set.Spec.UpdateStrategy.RollingUpdate
	if u == nil {
		return
	}
	l.want, l.batch = l.want.divide(u.Batches, l.set.Status.Batches, batch.Update{
		Revision: l.history.Updated.Name, Before: l.history.Before(func(hash string) bool { return l.roster.sums.revisions[hash] > 0 }), Paused: u.Paused != nil && *u.Paused,
		Released: l.set.Annotations[v1beta1.AnnotationNextBatch], Now: l.client.Now,
	}, &l.roster.sums, l.roster.failedPods())
	l.RequeueAfter(l.batch.After)
}

// hooks returns the hooks that DaemonSets support, which is only PreDelete. OpenKruise ignores
// the other hooks, and its pods may have their labels or finalizers.
func hooks(set *v1beta1.DaemonSet) *v1beta1.Lifecycle {
	if set.Spec.Lifecycle == nil || set.Spec.Lifecycle.PreDelete == nil {
		return nil
	}
	return &v1beta1.Lifecycle{PreDelete: set.Spec.Lifecycle.PreDelete}
}

// check returns an error for a spec that cannot be followed.
func check(set *v1beta1.DaemonSet) error {
	if _, err := newWant(set, 0); err != nil {
		return err
	}
	if _, err := metav1.LabelSelectorAsSelector(set.Spec.Selector); err != nil {
		return fmt.Errorf("spec.selector: %w", err)
	}
	update := field.NewPath("spec", "updateStrategy")
	unknown := base.OneOf(update.Child("type"), set.Spec.UpdateStrategy.Type, v1beta1.DaemonSetUpdateStrategyTypes())
	if u := set.Spec.UpdateStrategy.RollingUpdate; u != nil {
		unknown = append(unknown, base.OneOf(update.Child("rollingUpdate", "rollingUpdateType"), u.Type, v1beta1.DaemonSetRollingUpdateTypes())...)
		unknown = append(unknown, batch.Validate(update.Child("rollingUpdate", "batches"), u.Batches, set.Spec.UpdateStrategy.Type == v1beta1.DaemonSetOnDelete)...)
	}
	unknown = append(unknown, reload.Validate(field.NewPath("spec", "template"), &set.Spec.Template)...)
	if len(unknown) > 0 {
		return unknown.ToAggregate() //nolint:wrapcheck // it names the fields
	}
	_, err := nodeSelector(set)
	return err
}

// nodeSelector returns the selector of the nodes whose pods are updated.
func nodeSelector(set *v1beta1.DaemonSet) (labels.Selector, error) {
	u := set.Spec.UpdateStrategy.RollingUpdate
	if u == nil || u.Selector == nil {
		return labels.Everything(), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(u.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.updateStrategy.rollingUpdate.selector: %w", err)
	}
	return selector, nil
}

// judge returns the facts about a node: what it runs, and what it should run.
func (l *syncContext) judge(e *entry) facts {
	f := facts{place: place{node: e.node}}
	if e.is != nil {
		f.selected = l.chosen.Matches(labels.Set(e.is.Labels))
		f.runs, f.stays = l.fit.eligible(e.is)
	}
	if len(e.pods) > 1 { // in reverse order of deletion
		podorder.ForDeletion(e.pods, podorder.Options{Now: l.client.Now, MinReadySeconds: l.set.Spec.MinReadySeconds})
		slices.Reverse(e.pods)
	}
	for _, p := range e.pods {
		l.put(&f, p)
	}
	return f
}

// put adds a pod to the facts of its node.
func (l *syncContext) put(f *facts, p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		f.occupied = true
		return
	}
	available, after := l.client.Available(p, l.set.Spec.MinReadySeconds)
	updated := revision.Has(p, l.history.Updated.Name)
	left := l.backoff.remaining(l.spot(p), l.client.Now)
	switch {
	case p.Status.Phase == corev1.PodFailed && left > 0:
		f.occupied, after = true, left
	case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
		f.surplus = append(f.surplus, p.Name)
	case updated && f.updated == "":
		f.updated, f.updatedAvailable = p.Name, available
		f.failed = batch.Failed(p, available, l.history.Updated.Name, l.set.Status.Batches)
		f.ready = f.ready || podclient.Ready(p)
	case !updated && f.old == "":
		f.old, f.oldAvailable, f.inPlace = p.Name, available, l.plan(p) != nil
		f.ready = f.ready || podclient.Ready(p)
	default:
		f.surplus = append(f.surplus, p.Name)
	}
	if due := l.client.Now.Add(after); after > 0 && (f.due.IsZero() || due.Before(f.due)) {
		f.due = due
	}
}

// spot returns the backoff key of a pod.
func (l *syncContext) spot(p *corev1.Pod) spot {
	return spot{l.set.UID, revision.Hash(p.Labels[revision.Label]), nodeOf(p)}
}

// plan returns the plan to update a pod in place to the new revision; nil if that is not
// possible.
func (l *syncContext) plan(p *corev1.Pod) *inplace.Plan {
	u := l.set.Spec.UpdateStrategy.RollingUpdate
	if u == nil || u.Type != v1beta1.DaemonSetInPlaceIfPossible {
		return nil
	}
	return l.plans.Between(l.history.Of(p), l.history.Updated)
}

// act carries out the decision, and completes what was begun.
func (l *syncContext) act(ctx context.Context) error {
	var p plan
	if !l.want.idle(&l.roster.sums) {
		p = l.want.decide(l.roster.places())
	}
	busy := map[string]bool{}
	for _, name := range slices.Concat(p.remove, p.update) {
		busy[name] = true
	}
	var rest []*corev1.Pod
	for _, pod := range l.roster.unsettled {
		if !busy[pod.Name] {
			rest = append(rest, pod)
		}
	}
	// An error of one pod must not stop the other actions.
	var created, removed, updated podclient.EventBatch
	defer func() {
		created.Emit(l.Events, l.set, "SuccessfulCreate", "Creating", "Created %s")
		removed.Emit(l.Events, l.set, "SuccessfulDelete", "Deleting", "Deleted %s")
		updated.Emit(l.Events, l.set, "SuccessfulUpdatePodInPlace", "Updating", "successfully update %s in-place(revision "+l.history.Updated.Name+")")
	}()
	return errors.Join(
		each(p.create, func(node string) error { return l.create(ctx, node, &created) }),
		each(p.remove, func(name string) error { return l.remove(ctx, l.roster.byName[name], &removed) }),
		each(p.update, func(name string) error { return l.update(ctx, l.roster.byName[name], &updated) }),
		l.completeUpdates(ctx, rest),
		l.Revisions.Forget(ctx, l.history, l.set.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool {
			return l.roster.sums.revisions[revision.Hash(r.Name)] > 0
		}),
	)
}

// completeUpdates completes started updates, and brings pods into service. An error of one pod does not
// stop the other pods.
func (l *syncContext) completeUpdates(ctx context.Context, pods []*corev1.Pod) error {
	settled, err := l.client.SettleAll(ctx, pods, l.RequeueAfter)
	for i, p := range pods {
		if settled[i] {
			delete(l.roster.unsettled, p.UID)
		}
	}
	return err
}

func each[T any](of []T, do func(T) error) error {
	_, err := slowstart.Run(len(of), podclient.AtOnce, func(i int) error { return do(of[i]) })
	return err
}

func (l *syncContext) create(ctx context.Context, node string, told *podclient.EventBatch) error {
	t := l.set.Spec.Template.DeepCopy()
	hash := revision.Hash(l.history.Updated.Name)
	if t.Labels == nil {
		t.Labels = map[string]string{}
	}
	t.Labels[revision.Label] = hash
	if l.client.Hooks != nil {
		t.Labels[v1beta1.LabelLifecycle] = string(v1beta1.LifecycleNormal)
	}
	t.Spec.Affinity, t.Spec.Tolerations = bound(t.Spec.Affinity, node), tolerated(&t.Spec)
	if u := l.set.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Type == v1beta1.DaemonSetInPlaceIfPossible {
		inplace.AddGate(&t.Spec)
	}
	lifecycle.AddGate(&t.Spec, l.client.Hooks)
	pod, err := l.client.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: l.set.Name + "-", Namespace: l.set.Namespace, Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.set, v1beta1.GroupVersion.WithKind(kind))},
		},
		Spec: t.Spec,
	})
	if pod == nil {
		l.Events.Eventf(l.set, nil, corev1.EventTypeWarning, "FailedCreate", "Creating", "failed to create pod on node %s: %v", node, err)
		return err
	}
	told.Add(pod)
	return err
}

func (l *syncContext) remove(ctx context.Context, pod *corev1.Pod, told *podclient.EventBatch) error {
	gone, err := l.client.Delete(ctx, pod)
	switch {
	case err != nil:
		l.Events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedDelete", "Deleting", "failed to delete pod %s: %v", pod.Name, err)
	case gone && pod.Status.Phase == corev1.PodFailed:
		l.backoff.next(l.spot(pod), l.client.Now)
		l.Events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedDaemonPod", "Deleting", "Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace, pod.Name, nodeOf(pod))
	case gone && pod.Status.Phase == corev1.PodSucceeded:
		l.Events.Eventf(l.set, pod, corev1.EventTypeNormal, "SucceededDaemonPod", "Deleting", "Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod.Namespace, pod.Name, nodeOf(pod))
	case gone:
		told.Add(pod)
	}
	return err
}

func (l *syncContext) update(ctx context.Context, pod *corev1.Pod, told *podclient.EventBatch) error {
	did, err := l.client.Update(ctx, pod, l.plan(pod), l.history.Updated.Name, 0)
	l.RequeueAfter(did.After)
	switch {
	case err != nil:
		l.Events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodInPlace", "Updating", "failed to update pod %s in-place: %v", pod.Name, err)
	case did.Patched:
		told.Add(pod)
	}
	return err
}
