package daemonset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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
		client: podclient.Client{API: r.pods, Expect: r.expect, Owner: set.UID, Hooks: set.Spec.Lifecycle, Now: r.now()},
	}
	owner := revision.Owner{Object: set, Kind: v1beta1.GroupVersion.WithKind(kind), Labels: set.Spec.Selector.MatchLabels, Collisions: set.Status.CollisionCount}
	var err error
	if l.history, err = r.revisions.Sync(ctx, owner, &set.Spec.Template); err != nil {
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
	l.want, err = newWant(&set.Spec, desired)
	return l, err
}

// read finds out what each node runs, and should.
func (l *look) read(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := l.objects.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("the nodes: %w", err)
	}
	var pods corev1.PodList
	if err := l.objects.List(ctx, &pods, client.InNamespace(l.set.Namespace), client.MatchingFields{podclient.OwnerIndex(kind): string(l.set.UID)}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("its pods: %w", err)
	}
	selector := labels.Everything()
	if u := l.set.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Selector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(u.Selector); err != nil {
			return fmt.Errorf("spec.updateStrategy.rollingUpdate.selector: %w", err)
		}
	}
	there := map[string]*place{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		at := &place{node: n.Name, selected: selector.Matches(labels.Set(n.Labels))}
		at.runs, at.stays = eligible(n, &l.set.Spec.Template)
		there[n.Name] = at
	}
	var mine []*corev1.Pod
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp == nil {
			mine = append(mine, p)
			l.byName[p.Name] = p
		}
	}
	// Of several on a node those are kept that are missed most.
	podorder.ForDeletion(mine, podorder.Options{Now: l.client.Now, MinReadySeconds: l.set.Spec.MinReadySeconds})
	for _, p := range slices.Backward(mine) {
		node := nodeOf(p)
		if there[node] == nil {
			there[node] = &place{node: node} // it has gone
		}
		l.put(there[node], p)
	}
	for _, name := range slices.Sorted(maps.Keys(there)) {
		l.places = append(l.places, *there[name])
	}
	return nil
}

// put takes in that a node has a pod.
func (l *look) put(at *place, p *corev1.Pod) {
	available, after := l.client.Available(p, l.set.Spec.MinReadySeconds)
	l.again(after)
	updated := revision.Has(p, l.history.Updated.Name)
	switch {
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
	var rest []string
	for _, name := range slices.Sorted(maps.Keys(l.byName)) {
		if !busy[name] {
			rest = append(rest, name)
		}
	}
	// All are tried, whatever befalls one.
	var created, removed, updated podclient.Told
	defer func() {
		created.Tell(l.events, l.set, "SuccessfulCreate", "Creating", "Created %s")
		removed.Tell(l.events, l.set, "SuccessfulDelete", "Deleting", "Deleted %s")
		updated.Tell(l.events, l.set, "SuccessfulUpdatePodInPlace", "Updating", "successfully update %s in-place(revision "+l.history.Updated.Name+")")
	}()
	return errors.Join(
		each(p.create, func(node string) error { return l.create(ctx, node, &created) }),
		each(p.remove, func(name string) error { return l.remove(ctx, l.byName[name], &removed) }),
		each(p.update, func(name string) error { return l.update(ctx, l.byName[name], &updated) }),
		each(rest, func(name string) error {
			after, err := l.client.Settle(ctx, l.byName[name])
			l.again(after)
			return err
		}),
		l.revisions.Forget(ctx, l.history, l.set.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool {
			return slices.ContainsFunc(slices.Collect(maps.Values(l.byName)), func(p *corev1.Pod) bool { return revision.Has(p, r.Name) })
		}),
	)
}

func each(names []string, do func(string) error) error {
	_, err := slowstart.Run(len(names), podclient.AtOnce, func(i int) error { return do(names[i]) })
	return err
}

func (l *look) create(ctx context.Context, node string, told *podclient.Told) error {
	t := l.set.Spec.Template.DeepCopy()
	hash := revision.Hash(l.history.Updated.Name)
	if t.Labels == nil {
		t.Labels = map[string]string{}
	}
	t.Labels[revision.Label] = hash
	if state := lifecycle.AtBirth(l.set.Spec.Lifecycle); state != "" {
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
		l.events.Eventf(l.set, nil, corev1.EventTypeWarning, "FailedCreate", "Creating", "failed to create pod on node %s: %v", node, err)
		return err
	}
	told.Add(pod)
	return err
}

func (l *look) remove(ctx context.Context, pod *corev1.Pod, told *podclient.Told) error {
	gone, err := l.client.Delete(ctx, pod)
	switch {
	case err != nil:
		l.events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedDelete", "Deleting", "failed to delete pod %s: %v", pod.Name, err)
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
		l.events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodInPlace", "Updating", "failed to update pod %s in-place: %v", pod.Name, err)
	case changed:
		told.Add(pod)
	}
	return err
}

// writeStatus writes what was seen, where that is something else than before.
func (l *look) writeStatus(ctx context.Context) error {
	now := v1beta1.DaemonSetStatus{
		ObservedGeneration: l.set.Generation, UpdateRevision: revision.Hash(l.history.Updated.Name), CollisionCount: l.history.Collisions, Conditions: l.set.Status.Conditions,
	}
	for _, at := range l.places {
		pod, available := cmp.Or(at.updated, at.old), at.updatedAvailable || at.oldAvailable
		if !at.runs {
			if pod != "" {
				now.NumberMisscheduled++
			}
			continue
		}
		ready := false
		if pod != "" {
			_, ready = podorder.ReadySince(l.byName[pod])
			ready = ready && inplace.Open(l.byName[pod])
		}
		now.DesiredNumberScheduled++
		for of, counts := range map[*int32]bool{
			&now.CurrentNumberScheduled: pod != "", &now.NumberReady: ready || available, &now.NumberAvailable: available,
			&now.UpdatedNumberScheduled: at.updated != "", &now.NumberUnavailable: !available,
		} {
			if counts {
				*of++
			}
		}
	}
	if equality.Semantic.DeepEqual(now, l.set.Status) {
		return nil
	}
	set := l.set.DeepCopy()
	set.Status = now
	if err := l.objects.Status().Update(ctx, set); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("its status: %w", err)
	}
	return nil
}
