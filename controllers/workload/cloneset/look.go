package cloneset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

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
)

// look is one look at a CloneSet: what there is, what is wanted, and what was done.
type look struct {
	*Reconciler
	set    *v1beta1.CloneSet
	want   want
	policy v1beta1.PodUpdatePolicy
	at     time.Time

	history          revision.History
	current, updated *appsv1.ControllerRevision

	pods    []*corev1.Pod // that aren't on their way out, those first that are missed least
	members []member      // one for each
	byName  map[string]*corev1.Pod
	ids     map[string]time.Time                       // that pods have, also those that have ended; until when those that are deleted have time
	claims  map[string][]*corev1.PersistentVolumeClaim // by id
	shares  shares
	plans   map[[2]string]*inplace.Plan // by the names of both revisions; nil: not in place

	client podclient.Client

	timer sync.Mutex
	after time.Duration // when to look again; 0: when something changes
}

func (r *Reconciler) look(ctx context.Context, set *v1beta1.CloneSet) (*look, error) {
	l := &look{Reconciler: r, set: set.DeepCopy(), at: r.now(), byName: map[string]*corev1.Pod{}, plans: map[[2]string]*inplace.Plan{}}
	l.ids, l.claims = map[string]time.Time{}, map[string][]*corev1.PersistentVolumeClaim{}
	l.want, _ = newWant(&set.Spec) // it was checked
	l.client = podclient.Client{API: r.api, Expect: r.expect, Known: r.known, Owner: set.UID, Generation: set.Generation, Hooks: set.Spec.Lifecycle, Now: l.at}
	l.policy = v1beta1.PodUpdateRecreate
	if u := set.Spec.UpdateStrategy.RollingUpdate; u != nil && u.PodUpdatePolicy != "" {
		l.policy = u.PodUpdatePolicy
	}
	if err := l.readRevisions(ctx); err != nil {
		return nil, err
	}
	l.readPods()
	return l, l.readClaims(ctx)
}

// check refuses what can't be read.
func check(s *v1beta1.CloneSetSpec) error {
	if _, err := newWant(s); err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Selector)
	switch {
	case err != nil:
		return fmt.Errorf("spec.selector: %w", err)
	case selector.Empty():
		return errors.New("spec.selector finds every pod")
	case !selector.Matches(labels.Set(s.Template.Labels)):
		return errors.New("spec.selector doesn't find pods of spec.template") // they would be released, and made again, for ever
	}
	if u := s.UpdateStrategy.RollingUpdate; u != nil {
		if _, err := podorder.NewPriority(u.PriorityStrategy); err != nil {
			return fmt.Errorf("spec.updateStrategy.rollingUpdate.priorityStrategy.%w", err)
		}
	}
	return nil
}

// readRevisions finds the revision of the template, and makes it where there is none.
func (l *look) readRevisions(ctx context.Context) error {
	owner := revision.Owner{Object: l.set, Kind: v1beta1.GroupVersion.WithKind(kind), Labels: l.set.Spec.Selector.MatchLabels, Collisions: l.set.Status.CollisionCount}
	var err error
	if l.history, err = l.revisions.Sync(ctx, owner, &l.set.Spec.Template); err != nil {
		return err
	}
	l.updated, l.current = l.history.Updated, l.history.Named(l.set.Status.CurrentRevision)
	if l.current == nil {
		l.current = l.updated // which pods stay at, or go back to
	}
	l.want.alone = l.current.Name == l.updated.Name
	return nil
}

// readPods takes the pods as the informer has them, sorted by how little they are missed.
func (l *look) readPods() {
	for _, p := range l.known.Of(l.set) {
		l.take(p)
		if active(p) {
			l.pods = append(l.pods, p)
		}
	}
	podorder.ForDeletion(l.pods, podorder.Options{Now: l.at, MinReadySeconds: l.set.Spec.MinReadySeconds})
	for _, p := range l.pods {
		l.byName[p.Name] = p
		l.members = append(l.members, l.member(p))
	}
}

// active reports whether a pod hasn't ended, and isn't on its way out.
func active(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// take notes that a pod has an id, and how long.
func (l *look) take(p *corev1.Pod) {
	var ends time.Time
	if p.DeletionTimestamp != nil {
		ends = p.DeletionTimestamp.Time
	}
	l.ids[p.Labels[v1beta1.LabelInstanceID]] = ends
}

func (l *look) member(p *corev1.Pod) member {
	available, after := l.client.Available(p, l.set.Spec.MinReadySeconds)
	l.again(after)
	m := member{name: p.Name, updated: revision.Has(p, l.updated.Name), marked: l.marked(p), available: available}
	m.preparing = lifecycle.StateOf(p) == v1beta1.LifecyclePreparingDelete
	m.recallable = m.preparing && !m.marked && lifecycle.Judge(p, l.set.Spec.Lifecycle, lifecycle.Keep, false).State == v1beta1.LifecycleNormal
	m.begun = lifecycle.StateOf(p) == v1beta1.LifecyclePreparingUpdate || !inplace.Open(p)
	m.inPlace = l.plan(p, l.target(m)) != nil
	return m
}

// target is the revision that a member goes to when it goes.
func (l *look) target(m member) *appsv1.ControllerRevision {
	if m.updated {
		return l.current
	}
	return l.updated
}

func (l *look) marked(p *corev1.Pod) bool {
	_, labelled := p.Labels[v1beta1.LabelSpecifiedDelete]
	return labelled || slices.Contains(l.set.Spec.ScaleStrategy.PodsToDelete, p.Name)
}

// again looks again though nothing changes.
func (l *look) again(after time.Duration) {
	l.timer.Lock()
	defer l.timer.Unlock()
	if after > 0 && (l.after == 0 || after < l.after) {
		l.after = after
	}
}

// plan is how a pod comes to a revision in place; nil: it can't.
func (l *look) plan(p *corev1.Pod, to *appsv1.ControllerRevision) *inplace.Plan {
	if l.policy == v1beta1.PodUpdateRecreate {
		return nil
	}
	from := l.history.Of(p)
	if from == nil {
		return nil // nobody knows what it was made from
	}
	key := [2]string{from.Name, to.Name}
	if plan, known := l.plans[key]; known {
		return plan
	}
	var plan *inplace.Plan
	was, err := revision.Template(from)
	is, toErr := revision.Template(to)
	if err == nil && toErr == nil {
		plan, _ = inplace.NewPlan(was, is, l.options)
	}
	l.plans[key] = plan
	return plan
}

// grace is how long a pod is out of its Services before it changes.
func (l *look) grace() time.Duration {
	u := l.set.Spec.UpdateStrategy.RollingUpdate
	if u == nil || u.InPlaceUpdateStrategy == nil {
		return 0
	}
	return time.Duration(u.InPlaceUpdateStrategy.GracePeriodSeconds) * time.Second
}
