package daemonset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/slowstart"
)

// look is one look at a DaemonSet: what there is, what is wanted, and what was done.
type look struct {
	*Reconciler
	set     *v1beta1.DaemonSet
	want    want
	client  podclient.Client
	history revision.History
	places  []place // by name
	byName  map[string]*corev1.Pod
	plans   map[string]*inplace.Plan // from revisions; nil: not in place

	timer sync.Mutex
	after time.Duration // when to look again; 0: when something changes
}

func (r *Reconciler) look(ctx context.Context, set *v1beta1.DaemonSet) (*look, error) {
	l := &look{
		Reconciler: r, set: set, byName: map[string]*corev1.Pod{}, plans: map[string]*inplace.Plan{},
		client: podclient.Client{API: r.Pods, Expect: r.Expect, Known: r.Known, Owner: set.UID, Generation: set.Generation, Hooks: hooks(set), Now: r.now()},
	}
	owner := revision.Owner{Object: set, Kind: v1beta1.GroupVersion.WithKind(kind), Labels: set.Spec.Selector.MatchLabels, Collisions: set.Status.CollisionCount}
	var err error
	if l.history, err = r.Revisions.Sync(ctx, owner, &set.Spec.Template); err != nil {
		return nil, err
	}
	if err := l.read(ctx); err != nil {
		return nil, err
	}
	desired := 0
	for _, at := range l.places {
		if at.runs {
			desired++
		}
	}
	l.want, err = newWant(set, desired)
	return l, err
}

// hooks are those that DaemonSets have: OpenKruise passes over the others, and pods
// that came from it may hold them.
func hooks(set *v1beta1.DaemonSet) *v1beta1.Lifecycle {
	if set.Spec.Lifecycle == nil || set.Spec.Lifecycle.PreDelete == nil {
		return nil
	}
	return &v1beta1.Lifecycle{PreDelete: set.Spec.Lifecycle.PreDelete}
}

// check refuses what can't be read.
func check(set *v1beta1.DaemonSet) error {
	if _, err := newWant(set, 0); err != nil {
		return err
	}
	if _, err := metav1.LabelSelectorAsSelector(set.Spec.Selector); err != nil {
		return fmt.Errorf("spec.selector: %w", err)
	}
	_, err := nodeSelector(set)
	return err
}

// nodeSelector chooses the nodes whose pods are updated.
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

// read finds out what each node runs, and should.
func (l *look) read(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := l.Objects.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("the nodes: %w", err)
	}
	selector, err := nodeSelector(l.set)
	if err != nil {
		return err
	}
	there := make(map[string]*place, len(nodes.Items))
	for i, fit := 0, newFit(&l.set.Spec.Template); i < len(nodes.Items); i++ {
		n := &nodes.Items[i]
		at := &place{node: n.Name, selected: selector.Matches(labels.Set(n.Labels))}
		at.runs, at.stays = fit.eligible(n)
		there[n.Name] = at
	}
	for node, pods := range l.onNodes() {
		if there[node] == nil {
			there[node] = &place{node: node} // it has gone
		}
		for _, p := range pods {
			l.put(there[node], p)
		}
	}
	l.places = make([]place, 0, len(there))
	for _, name := range slices.Sorted(maps.Keys(there)) {
		l.places = append(l.places, *there[name])
	}
	return nil
}

// onNodes are the pods by node; of several those first that are missed most.
func (l *look) onNodes() map[string][]*corev1.Pod {
	out := map[string][]*corev1.Pod{}
	for _, p := range l.Known.Of(l.set) {
		out[nodeOf(p)] = append(out[nodeOf(p)], p)
	}
	for _, pods := range out {
		if len(pods) > 1 {
			podorder.ForDeletion(pods, podorder.Options{Now: l.client.Now, MinReadySeconds: l.set.Spec.MinReadySeconds})
			slices.Reverse(pods)
		}
	}
	return out
}

// put takes in that a node has a pod.
func (l *look) put(at *place, p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		at.occupied = true
		return
	}
	l.byName[p.Name] = p
	available, after := l.client.Available(p, l.set.Spec.MinReadySeconds)
	l.again(after)
	updated := revision.Has(p, l.history.Updated.Name)
	left := l.backoff.left(l.spot(p), l.client.Now)
	switch {
	case p.Status.Phase == corev1.PodFailed && left > 0:
		at.occupied = true
		l.again(left)
	case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
		at.surplus = append(at.surplus, p.Name)
	case updated && at.updated == "":
		at.updated, at.updatedAvailable = p.Name, available
	case !updated && at.old == "":
		at.old, at.oldAvailable, at.inPlace = p.Name, available, l.plan(p) != nil
	default:
		at.surplus = append(at.surplus, p.Name)
	}
}

// spot is where a pod fails, if it does.
func (l *look) spot(p *corev1.Pod) spot {
	return spot{l.set.UID, revision.Hash(p.Labels[revision.Label]), nodeOf(p)}
}

// plan is how a pod comes to the new revision in place; nil: it can't.
func (l *look) plan(p *corev1.Pod) *inplace.Plan {
	u := l.set.Spec.UpdateStrategy.RollingUpdate
	from := l.history.Of(p)
	if from == nil || u == nil || u.Type != v1beta1.DaemonSetInPlaceIfPossible {
		return nil
	}
	if plan, known := l.plans[from.Name]; known {
		return plan
	}
	var plan *inplace.Plan
	if was, err := revision.Template(from); err == nil {
		plan, _ = inplace.NewPlan(was, &l.set.Spec.Template, l.options)
	}
	l.plans[from.Name] = plan
	return plan
}

// again looks again though nothing changes.
func (l *look) again(after time.Duration) {
	l.timer.Lock()
	defer l.timer.Unlock()
	if after > 0 && (l.after == 0 || after < l.after) {
		l.after = after
	}
}

// act does what was decided, and brings to its end what was begun.
func (l *look) act(ctx context.Context) error {
	p := l.want.decide(l.places)
	busy := map[string]bool{}
	for _, name := range append(slices.Clone(p.remove), p.update...) {
		busy[name] = true
	}
	var rest []*corev1.Pod
	used := map[string]bool{} // revisions, by hash
	for name, pod := range l.byName {
		used[revision.Hash(pod.Labels[revision.Label])] = true
		if !busy[name] {
			rest = append(rest, pod)
		}
	}
	// All are tried, whatever befalls one.
	var created, removed, updated podclient.Told
	defer func() {
		created.Tell(l.Events, l.set, "SuccessfulCreate", "Creating", "Created %s")
		removed.Tell(l.Events, l.set, "SuccessfulDelete", "Deleting", "Deleted %s")
		updated.Tell(l.Events, l.set, "SuccessfulUpdatePodInPlace", "Updating", "successfully update %s in-place(revision "+l.history.Updated.Name+")")
	}()
	return errors.Join(
		each(p.create, func(node string) error { return l.create(ctx, node, &created) }),
		each(p.remove, func(name string) error { return l.remove(ctx, l.byName[name], &removed) }),
		each(p.update, func(name string) error { return l.update(ctx, l.byName[name], &updated) }),
		each(l.client.Unsettled(rest), func(pod *corev1.Pod) error {
			after, err := l.client.Settle(ctx, pod)
			l.again(after)
			return err
		}),
		l.Revisions.Forget(ctx, l.history, l.set.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool { return used[revision.Hash(r.Name)] }),
	)
}

func each[T any](of []T, do func(T) error) error {
	_, err := slowstart.Run(len(of), podclient.AtOnce, func(i int) error { return do(of[i]) })
	return err
}

func (l *look) create(ctx context.Context, node string, told *podclient.Told) error {
	t := l.set.Spec.Template.DeepCopy()
	hash := revision.Hash(l.history.Updated.Name)
	if t.Labels == nil {
		t.Labels = map[string]string{}
	}
	t.Labels[revision.Label] = hash
	if state := lifecycle.AtBirth(l.client.Hooks); state != "" {
		t.Labels[v1beta1.LabelLifecycle] = string(state)
	}
	t.Spec.Affinity, t.Spec.Tolerations = bound(t.Spec.Affinity, node), tolerated(&t.Spec)
	if u := l.set.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Type == v1beta1.DaemonSetInPlaceIfPossible {
		inplace.AddGate(&t.Spec)
	}
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

func (l *look) remove(ctx context.Context, pod *corev1.Pod, told *podclient.Told) error {
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

func (l *look) update(ctx context.Context, pod *corev1.Pod, told *podclient.Told) error {
	changed, after, err := l.client.Update(ctx, pod, l.plan(pod), l.history.Updated.Name, 0)
	l.again(after)
	switch {
	case err != nil:
		l.Events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodInPlace", "Updating", "failed to update pod %s in-place: %v", pod.Name, err)
	case changed:
		told.Add(pod)
	}
	return err
}
