package statefulset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/slowstart"
)

// act carries out the decision, and completes what was begun. An error of one pod does not stop the
// other pods.
func (l *syncContext) act(ctx context.Context) error {
	var p plan
	if !l.want.idle(l.roster.sums) {
		p = l.want.decide(l.roster.members(), l.inOrder)
	}
	// Each kind has a share of its own: deletions that hooks hold back must not keep others waiting.
	removed := slices.Concat(atMost(p.ended), atMost(p.condemned), atMost(p.marked), atMost(p.replace))
	p.update, p.resize = atMost(p.update), atMost(p.resize)
	busy := map[string]bool{}
	for _, m := range slices.Concat(removed, p.update) {
		busy[m.name] = true
	}
	l.failedCreate = l.create(ctx, p.create)
	resizeErr := l.resizeClaims(ctx, p.resize)
	l.failedUpdate = errors.Join(l.remove(ctx, removed), resizeErr, l.update(ctx, p.update))
	l.failedUpdate = errors.Join(l.failedUpdate, l.completeUpdates(ctx, busy))
	l.failedCreate = errors.Join(l.failedCreate, l.mendClaims(ctx))
	err := errors.Join(l.failedCreate, l.failedUpdate, l.forget(ctx))
	l.failedUpdate = errors.Join(l.failedUpdate, l.notUpdatableError()) // trying again would not help
	return err
}

func atMost(members []member) []member { return members[:min(len(members), maxPodsPerReconcile)] }

// create creates pods of both revisions.
func (l *syncContext) create(ctx context.Context, all []creation) error {
	told := podclient.EventBatch{Noun: "Pod"}
	defer func() {
		told.Emit(l.Events, l.set, "SuccessfulCreate", "Creating", "create %s in StatefulSet "+l.set.Name+" successful")
	}()
	// What is wrong with one name or claim is no reason to create no other pod.
	errs := make([]error, len(all))
	n, err := slowstart.Run(len(all), podclient.AtOnce, func(i int) error {
		err := l.createOne(ctx, all[i], &told)
		if errors.Is(err, errNameTaken) {
			errs[i], err = err, nil
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("%d of %d pods were created: %w", n, len(all), err)
	}
	return errors.Join(err, first(errs))
}

// errNameTaken is part of errors that concern a single ordinal: another object has the name of its pod
// or claim.
var errNameTaken = errors.New("the name is taken")

// each calls do for all, and returns the first error by index. An error of one does not stop the
// others.
func each[T any](all []T, do func(T) error) error {
	errs := make([]error, len(all))
	_, _ = slowstart.Run(len(all), podclient.AtOnce, func(i int) error {
		errs[i] = do(all[i])
		return nil
	})
	return first(errs)
}

// first returns the first error, and says how many there are.
func first(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	return fmt.Errorf("%w (and %d more)", errs[0], len(errs)-1)
}

func (l *syncContext) createOne(ctx context.Context, c creation, told *podclient.EventBatch) error {
	of := l.updated
	if c.old {
		of = l.current
	}
	pod, err := l.newPod(of, c.ordinal)
	if err != nil {
		return err
	}
	free, err := l.createClaims(ctx, pod.Name, c.ordinal)
	if err != nil || !free {
		return err
	}
	made, err := l.client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) { // its own pods are known
		err = fmt.Errorf("%w: there is a pod %s that is not of this StatefulSet: delete it, or reserve its ordinal", errNameTaken, pod.Name)
	}
	if made == nil {
		l.Events.Eventf(l.set, nil, corev1.EventTypeWarning, "FailedCreate", "Creating", "create Pod %s in StatefulSet %s failed error: %v", pod.Name, l.set.Name, err)
		return err
	}
	l.countWrite(ctx, nil, made)
	told.Add(made)
	return err
}

// newPod returns a new pod of a revision, with an ordinal.
func (l *syncContext) newPod(of *appsv1.ControllerRevision, ordinal int) (*corev1.Pod, error) {
	t, err := revision.Template(of)
	if err != nil {
		return nil, err
	}
	name := l.set.Name + "-" + strconv.Itoa(ordinal)
	has := maps.Clone(t.Labels)
	if has == nil {
		has = map[string]string{}
	}
	has[revision.Label] = of.Name
	if len(of.Name) > validation.LabelValueMaxLength {
		has[revision.Label] = revision.Hash(of.Name)
	}
	has[appsv1.StatefulSetPodNameLabel], has[appsv1.PodIndexLabel] = name, strconv.Itoa(ordinal)
	has[v1beta1.LabelLifecycle] = string(v1beta1.LifecycleNormal)
	if !l.selector.Matches(labels.Set(has)) {
		return nil, fmt.Errorf("spec.selector doesn't find pods of revision %s", of.Name) // the selector changed since
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: l.set.Namespace, Labels: has, Annotations: maps.Clone(t.Annotations), Finalizers: t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.set, v1beta1.GroupVersion.WithKind(kind))},
		},
		Spec: t.Spec,
	}
	if !lifecycle.Agrees(l.client.Hooks.PreNormal, pod) {
		has[v1beta1.LabelLifecycle] = string(v1beta1.LifecyclePreparingNormal)
	}
	pod.Spec.Hostname, pod.Spec.Subdomain = name, l.set.Spec.ServiceName
	if l.policy != v1beta1.PodUpdateRecreate {
		inplace.AddGate(&pod.Spec)
	}
	lifecycle.AddGate(&pod.Spec, l.set.Spec.Lifecycle)
	podclient.AddClaims(&pod.Spec, l.set.Spec.VolumeClaimTemplates, func(t *corev1.PersistentVolumeClaim) string { return l.claimName(t, ordinal) })
	return pod, nil
}

// remove deletes pods, or records that a hook blocks a pod.
func (l *syncContext) remove(ctx context.Context, members []member) error {
	told := podclient.EventBatch{Noun: "Pod"}
	defer func() {
		told.Emit(l.Events, l.set, "SuccessfulDelete", "Deleting", "delete %s in StatefulSet "+l.set.Name+" successful")
	}()
	return each(members, func(m member) error {
		e := l.roster.at(m.ordinal)
		// The claims must know their owner before the pod is gone: the garbage collector deletes them.
		if err := l.ownClaims(ctx, &e.facts); err != nil {
			return err
		}
		gone, err := l.client.Delete(ctx, e.pod)
		switch {
		case err != nil:
			l.Events.Eventf(l.set, e.pod, corev1.EventTypeWarning, "FailedDelete", "Deleting", "delete Pod %s in StatefulSet %s failed error: %v", m.name, l.set.Name, err)
		case gone:
			told.Add(e.pod)
			l.countRemoval(e)
		}
		return err
	})
}

// countRemoval counts a pod that is being deleted, or gone.
func (l *syncContext) countRemoval(e *entry) {
	f := e.facts
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed.add(&f, -1)
	if f.terminating = true; !f.ended {
		f.serving = false
		l.changed.add(&f, 1)
	}
}

// update updates pods in place, as far as hooks and grace periods allow.
func (l *syncContext) update(ctx context.Context, members []member) error {
	told := podclient.EventBatch{}
	defer func() {
		told.Emit(l.Events, l.set, "SuccessfulUpdatePodInPlace", "Updating", "successfully update %s in-place(revision "+l.updated.Name+")")
	}()
	return each(members, func(m member) error {
		pod := l.roster.at(m.ordinal).pod
		did, err := l.client.Update(ctx, pod, l.plan(pod), l.updated.Name, l.grace())
		l.RequeueAfter(did.After)
		l.countWrite(ctx, pod, did.Pod)
		switch {
		case err != nil:
			l.Events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodInPlace", "Updating", "failed to update pod %s in-place: %v", pod.Name, err)
		case did.Patched:
			told.Add(pod)
		}
		return err
	})
}

// notUpdatableError returns an error for pods that InPlaceOnly keeps at their revision. It records an event when
// there are first such pods.
func (l *syncContext) notUpdatableError() error {
	s := l.roster.sums
	if s.notUpdatable == 0 || l.want.still() || l.want.moves(s.outdated, s.broken, s.reached) == 0 {
		return nil
	}
	i := slices.IndexFunc(l.roster.order, func(e *entry) bool {
		return e.kept && e.live() && l.want.notUpdatable(e.member) && !l.want.stays(e.position)
	})
	if i < 0 {
		return nil
	}
	pod := l.roster.order[i].pod
	err := fmt.Errorf("find strategy is InPlaceOnly but Pod %s can not update in-place", pod.Name)
	if !slices.ContainsFunc(l.set.Status.Conditions, func(c appsv1.StatefulSetCondition) bool { return c.Type == v1beta1.StatefulSetFailedUpdatePod }) {
		l.Events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodInPlace", "Updating", "%v", err)
	}
	return err
}

// completeUpdates completes started updates, and brings pods into service.
func (l *syncContext) completeUpdates(ctx context.Context, busy map[string]bool) error {
	var open []*entry
	var pods []*corev1.Pod
	for e := range l.roster.unsettled {
		if !busy[e.name] {
			open, pods = append(open, e), append(pods, e.pod)
		}
	}
	settled, err := l.client.SettleAll(ctx, pods, l.RequeueAfter)
	for i, e := range open {
		if settled[i] {
			delete(l.roster.unsettled, e)
		}
	}
	return err
}

// forget deletes unused revisions beyond the history limit.
func (l *syncContext) forget(ctx context.Context) error {
	return l.Revisions.Forget(ctx, l.history, l.set.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool {
		return r.Name == l.current.Name || l.roster.revisions[revision.Hash(r.Name)] > 0
	})
}
