package cloneset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/keelson-io/keelson/controllers/workload/podclient"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/slowstart"
)

// act carries out the decision. It creates and deletes pods first. It updates pods only if there
// was nothing to create or delete, and no error. It always completes what was begun.
func (l *syncContext) act(ctx context.Context) error {
	old, updated := l.roster.sums.old, l.roster.sums.updated
	var members []member
	if old.preparing+updated.preparing > 0 {
		members = l.want.recall(l.roster.members())
		old, updated = tallies(members)
	}
	c := l.want.decide(old, updated)
	l.limit(&c)
	if members == nil && c.chooses(old, updated) {
		members = l.roster.members()
	}
	doomed, held := l.selectForDeletion(c, members)
	err := errors.Join(l.create(ctx, c), l.delete(ctx, slices.Concat(doomed, held)), l.dropClaims(ctx))
	m := c.moved(l.inTurn(c, members))
	if err != nil || c.createOld+c.createNew+len(doomed) > 0 {
		m = m.waiting()
	}
	busy := map[string]bool{}
	for _, list := range [][]member{doomed, held, m.waits} {
		for _, p := range list {
			busy[p.name] = true
		}
	}
	m.inPlace = atMost(m.inPlace)
	for _, p := range m.inPlace {
		busy[p.name] = true
	}
	// With InPlaceOnly a member in mark stays as it is: its earlier steps are completed.
	if m.mark = atMost(m.mark); l.policy != v1beta1.PodUpdateInPlaceOnly {
		for _, p := range m.mark {
			busy[p.name] = true
		}
	}
	return errors.Join(err, l.mark(ctx, m.mark), l.update(ctx, m.inPlace), l.completeUpdates(ctx, busy), l.forget(ctx))
}

// limit bounds how many pods this reconcile creates, and waits for claims that become free soon.
func (l *syncContext) limit(c *counts) {
	if l.roster.claims.shares.limit(c) {
		l.RequeueAfter(l.roster.claims.shares.after)
	}
	c.createOld = min(c.createOld, maxPodsPerReconcile)
	c.createNew = min(c.createNew, maxPodsPerReconcile-c.createOld)
}

// selectForDeletion returns the pods to delete. held are pods whose deletion was decided before: a hook
// still blocks them or has just released them.
func (l *syncContext) selectForDeletion(c counts, members []member) (doomed, held []member) {
	for _, m := range c.doomed(members) {
		if m.preparing {
			held = append(held, m)
		} else {
			doomed = append(doomed, m)
		}
	}
	return atMost(doomed), held
}

// inTurn returns the members that may change revision now, in the order of the update
// strategies.
func (l *syncContext) inTurn(c counts, members []member) []member {
	u := l.set.Spec.UpdateStrategy.RollingUpdate
	if u == nil || u.PriorityStrategy == nil && len(u.ScatterStrategy) == 0 {
		return members
	}
	priority, _ := podorder.NewPriority(u.PriorityStrategy) // check has validated it
	byName := map[string]member{}
	all := make([]*corev1.Pod, 0, len(members))
	waiting := map[bool][]*corev1.Pod{} // by member.updated
	for _, m := range members {
		all = append(all, m.pod)
		if byName[m.name] = m; m.idle() {
			waiting[m.updated] = append(waiting[m.updated], m.pod)
		}
	}
	var out []member
	for _, updated := range []bool{false, true} {
		pods := waiting[updated]
		priority.Sort(pods)
		for _, p := range podorder.Scatter(pods, all, u.ScatterStrategy) {
			out = append(out, byName[p.Name])
		}
	}
	if l.want.divided { // otherwise the pods of a batch could wait for a pod that none will update
		slices.SortStableFunc(out, unavailableFirst)
	}
	return c.turn(out)
}

func atMost(members []member) []member { return members[:min(len(members), maxPodsPerReconcile)] }

// create creates pods of both revisions.
func (l *syncContext) create(ctx context.Context, c counts) error {
	var told podclient.EventBatch
	defer func() { told.Emit(l.Events, l.set, "SuccessfulCreate", "Creating", "succeed to create %s") }()
	ids, err := l.newIDs(ctx, c)
	if err != nil {
		return err
	}
	n, err := slowstart.Run(c.createOld+c.createNew, podclient.AtOnce, func(i int) error {
		if i < c.createOld {
			return l.createOne(ctx, origin{l.current, l.claimTemplates.current, ids[i]}, &told)
		}
		return l.createOne(ctx, origin{l.updated, l.claimTemplates.updated, ids[i]}, &told)
	})
	if err != nil {
		return fmt.Errorf("%d of %d pods were created: %w", n, c.createOld+c.createNew, err)
	}
	return nil
}

// origin is what a new pod is made from: a revision, claim templates and an instance ID.
type origin struct {
	revision *appsv1.ControllerRevision
	claims   []corev1.PersistentVolumeClaim
	id       string
}

func (l *syncContext) createOne(ctx context.Context, from origin, told *podclient.EventBatch) error {
	pod, err := l.newPod(from)
	if err != nil {
		return err
	}
	if s, err := metav1.LabelSelectorAsSelector(l.set.Spec.Selector); err != nil || !s.Matches(labels.Set(pod.Labels)) {
		return fmt.Errorf("spec.selector doesn't find pods of revision %s", from.revision.Name) // the selector changed since
	}
	if err := l.createClaims(ctx, from.claims, from.id); err != nil {
		return err
	}
	made, err := l.client.Create(ctx, pod)
	if made == nil {
		l.Events.Eventf(l.set, nil, corev1.EventTypeWarning, "FailedCreate", "Creating", "failed to create pod: %v", err)
		return err
	}
	l.did(nil, made)
	told.Add(made)
	return err
}

// newPod returns a new pod.
func (l *syncContext) newPod(from origin) (*corev1.Pod, error) {
	t, err := revision.Template(from.revision)
	if err != nil {
		return nil, err
	}
	hash := revision.Hash(from.revision.Name)
	has := maps.Clone(t.Labels)
	if has == nil {
		has = map[string]string{}
	}
	has[v1beta1.LabelInstanceID] = from.id
	has[revision.Label] = hash
	has[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	has[v1beta1.LabelLifecycle] = string(v1beta1.LifecyclePreparingNormal)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: l.set.Name + "-" + from.id, Namespace: l.set.Namespace, Labels: has, Annotations: maps.Clone(t.Annotations), Finalizers: t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.set, v1beta1.GroupVersion.WithKind(kind))},
		},
		Spec: t.Spec,
	}
	if l.policy != v1beta1.PodUpdateRecreate {
		inplace.AddGate(&pod.Spec)
	}
	lifecycle.AddGate(&pod.Spec, l.set.Spec.Lifecycle)
	podclient.AddClaims(&pod.Spec, from.claims, func(t *corev1.PersistentVolumeClaim) string { return claimName(l.set, t, from.id) })
	return pod, nil
}

// delete deletes pods and their claims, or records that a hook blocks a pod. If the process is
// killed between pod and claims, the next reconcile deletes the claims or reuses them for a new
// pod.
func (l *syncContext) delete(ctx context.Context, doomed []member) error {
	var told podclient.EventBatch
	defer func() { told.Emit(l.Events, l.set, "SuccessfulDelete", "Deleting", "succeed to delete %s") }()
	_, err := slowstart.Run(len(doomed), podclient.AtOnce, func(i int) error {
		pod := doomed[i].pod
		gone, err := l.client.Delete(ctx, pod)
		switch {
		case err != nil:
			l.Events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedDelete", "Deleting", "failed to delete pod %s: %v", pod.Name, err)
		case gone:
			told.Add(pod)
			l.did(pod, nil)
			err = l.deleteClaims(ctx, pod.Labels[v1beta1.LabelInstanceID])
		}
		return err
	})
	return err
}

// mark labels pods that cannot be updated in place for replacement. With InPlaceOnly it records
// only an event.
func (l *syncContext) mark(ctx context.Context, members []member) error {
	var told podclient.EventBatch
	defer func() {
		told.Emit(l.Events, l.set, "SuccessfulUpdatePodReCreate", "Updating", "successfully update %s for recreate")
	}()
	_, err := slowstart.Run(len(members), podclient.AtOnce, func(i int) error {
		pod := members[i].pod
		if l.policy == v1beta1.PodUpdateInPlaceOnly {
			l.Events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodInPlace", "Updating", "pod %s can't be updated in place", pod.Name)
			return nil
		}
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:"true"}}}`, pod.UID, v1beta1.LabelSpecifiedDelete)
		if _, err := l.client.Patch(ctx, pod, patch); err != nil {
			l.Events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodReCreate", "Updating", "failed to update pod %s for recreate: %v", pod.Name, err)
			return err
		}
		told.Add(pod)
		return nil
	})
	return err
}

// update updates pods in place to their other revision, as far as hooks and grace periods allow.
func (l *syncContext) update(ctx context.Context, members []member) error {
	told := map[bool]*podclient.EventBatch{false: {}, true: {}} // by whether the pod goes back to the current revision
	defer func() {
		for back, to := range map[bool]*appsv1.ControllerRevision{false: l.updated, true: l.current} {
			told[back].Emit(l.Events, l.set, "SuccessfulUpdatePodInPlace", "Updating", "successfully update %s in-place(revision "+to.Name+")")
		}
	}()
	_, err := slowstart.Run(len(members), podclient.AtOnce, func(i int) error {
		m := members[i]
		pod, to := m.pod, l.target(m)
		did, err := l.client.Update(ctx, pod, l.plan(m), to.Name, l.grace())
		l.RequeueAfter(did.After)
		l.did(pod, did.Pod)
		switch {
		case err != nil:
			l.Events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodInPlace", "Updating", "failed to update pod %s in-place: %v", m.name, err)
		case did.Patched:
			told[m.updated].Add(pod)
		}
		return err
	})
	return err
}
