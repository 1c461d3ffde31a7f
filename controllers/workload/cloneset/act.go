package cloneset

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/keelson-io/keelson/controllers/workload/podclient"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/controllers/workload/slowstart"
)

// act does what the look has decided: pods come and go first, then others come to their
// revision, and what was begun is brought to its end in any case.
func (l *look) act(ctx context.Context) error {
	c := l.want.decide(tallies(l.members))
	c.createOld = min(c.createOld, burst)
	c.createNew = min(c.createNew, burst-c.createOld)
	doomed := atMost(c.doomed(l.members))
	err := errors.Join(l.create(ctx, c), l.delete(ctx, doomed))
	var m moves
	if err == nil && c.createOld+c.createNew+len(doomed) == 0 {
		m = c.moved(l.members)
		m.inPlace, m.mark = atMost(m.inPlace), atMost(m.mark)
	}
	busy := map[string]bool{}
	for _, list := range [][]member{doomed, m.inPlace, m.mark} {
		for _, p := range list {
			busy[p.name] = true
		}
	}
	return errors.Join(err, l.mark(ctx, m.mark), l.update(ctx, m.inPlace), l.settle(ctx, busy), l.forget(ctx))
}

func atMost(members []member) []member { return members[:min(len(members), burst)] }

// create creates pods of both revisions.
func (l *look) create(ctx context.Context, c counts) error {
	var told podclient.Told
	defer func() { told.Tell(l.events, l.set, "SuccessfulCreate", "Creating", "succeed to create %s") }()
	n, err := slowstart.Run(c.createOld+c.createNew, podclient.AtOnce, func(i int) error {
		of := l.updated
		if i < c.createOld {
			of = l.current
		}
		return l.createOne(ctx, of, &told)
	})
	if err != nil {
		return fmt.Errorf("%d of %d pods were created: %w", n, c.createOld+c.createNew, err)
	}
	return nil
}

func (l *look) createOne(ctx context.Context, of *appsv1.ControllerRevision, told *podclient.Told) error {
	pod, err := l.newPod(of)
	if err != nil {
		return err
	}
	made, err := l.client.Create(ctx, pod)
	if made == nil {
		l.events.Eventf(l.set, nil, corev1.EventTypeWarning, "FailedCreate", "Creating", "failed to create pod: %v", err)
		return err
	}
	told.Add(made)
	return err
}

// newPod is a pod of a revision.
func (l *look) newPod(of *appsv1.ControllerRevision) (*corev1.Pod, error) {
	t, err := revision.Template(of)
	if err != nil {
		return nil, err
	}
	id := rand.String(5)
	for _, taken := l.byName[l.set.Name+"-"+id]; taken; _, taken = l.byName[l.set.Name+"-"+id] {
		id = rand.String(5)
	}
	hash := revision.Hash(of.Name)
	labels := maps.Clone(t.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1beta1.LabelInstanceID] = id
	labels[revision.Label] = hash
	labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	annotations := maps.Clone(t.Annotations)
	if state := lifecycle.AtBirth(l.set.Spec.Lifecycle); state != "" {
		labels[v1beta1.LabelLifecycle] = string(state)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: l.set.Name + "-" + id, Namespace: l.set.Namespace, Labels: labels, Annotations: annotations, Finalizers: t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.set, v1beta1.GroupVersion.WithKind(kind))},
		},
		Spec: t.Spec,
	}
	if l.policy != v1beta1.PodUpdateRecreate {
		inplace.AddGate(&pod.Spec)
	}
	return pod, nil
}

// delete deletes pods, or asks those who hold them back.
func (l *look) delete(ctx context.Context, doomed []member) error {
	var told podclient.Told
	defer func() { told.Tell(l.events, l.set, "SuccessfulDelete", "Deleting", "succeed to delete %s") }()
	_, err := slowstart.Run(len(doomed), podclient.AtOnce, func(i int) error {
		pod := l.byName[doomed[i].name]
		gone, err := l.client.Delete(ctx, pod)
		switch {
		case err != nil:
			l.events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedDelete", "Deleting", "failed to delete pod %s: %v", pod.Name, err)
		case gone:
			told.Add(pod)
		}
		return err
	})
	return err
}

// mark asks for the replacement of pods that can't be updated in place.
func (l *look) mark(ctx context.Context, members []member) error {
	var told podclient.Told
	defer func() {
		told.Tell(l.events, l.set, "SuccessfulUpdatePodReCreate", "Updating", "successfully update %s for recreate")
	}()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, v1beta1.LabelSpecifiedDelete)
	_, err := slowstart.Run(len(members), podclient.AtOnce, func(i int) error {
		pod := l.byName[members[i].name]
		if l.policy == v1beta1.PodUpdateInPlaceOnly {
			l.events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodInPlace", "Updating", "pod %s can't be updated in place", pod.Name)
			return nil
		}
		if _, err := l.client.Patch(ctx, pod, patch); err != nil {
			l.events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodReCreate", "Updating", "failed to update pod %s for recreate: %v", pod.Name, err)
			return err
		}
		told.Add(pod)
		return nil
	})
	return err
}

// update brings pods to their other revision in place, as far as hooks and grace
// periods let it.
func (l *look) update(ctx context.Context, members []member) error {
	told := map[bool]*podclient.Told{false: {}, true: {}} // by whether it goes back
	defer func() {
		for back, to := range map[bool]*appsv1.ControllerRevision{false: l.updated, true: l.current} {
			told[back].Tell(l.events, l.set, "SuccessfulUpdatePodInPlace", "Updating", "successfully update %s in-place(revision "+to.Name+")")
		}
	}()
	_, err := slowstart.Run(len(members), podclient.AtOnce, func(i int) error {
		m := members[i]
		pod, to := l.byName[m.name], l.target(m)
		changed, after, err := l.client.Update(ctx, pod, l.plan(pod, to), to.Name, l.grace())
		l.again(after)
		switch {
		case err != nil:
			l.events.Eventf(l.set, pod, corev1.EventTypeWarning, "FailedUpdatePodInPlace", "Updating", "failed to update pod %s in-place: %v", m.name, err)
		case changed:
			told[m.updated].Add(pod)
		}
		return err
	})
	return err
}
