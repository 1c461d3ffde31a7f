package cloneset

import (
	"cmp"
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
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
	"github.com/keelson-io/keelson/controllers/workload/reload"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// syncContext is one reconcile of a CloneSet: the observed and desired state, and the results.
type syncContext struct {
	*Reconciler
	set      *v1beta1.CloneSet
	want     want
	policy   v1beta1.PodUpdatePolicy
	selector labels.Selector
	at       time.Time

	history          revision.History
	current, updated *appsv1.ControllerRevision
	// distinguish: revisions with other claim templates are other revisions.
	distinguish bool
	// claimTemplates are those of new pods.
	claimTemplates byRevision[[]corev1.PersistentVolumeClaim]

	roster *roster
	batch  batch.Decision
	plans  *inplace.Plans

	client podclient.Client
	base.Timer

	mu sync.Mutex
	// changed are the changes of the counts by what this reconcile has written: of all pods, and of
	// those with the update revision. The informer shows these pods later.
	changed, changedRenewed served
}

// did counts a write: the pod as it was, and as it is; nil: there was or is none. It may be called
// from several goroutines.
func (l *syncContext) did(was, is *corev1.Pod) {
	for by, pod := range map[int32]*corev1.Pod{-1: was, 1: is} {
		if pod == nil {
			continue
		}
		f := l.judge(pod)
		l.mu.Lock()
		l.changed.add(&f, by)
		if f.updated {
			l.changedRenewed.add(&f, by)
		}
		l.mu.Unlock()
	}
}

func (r *Reconciler) newSyncContext(ctx context.Context, set *v1beta1.CloneSet) (*syncContext, error) {
	l := &syncContext{Reconciler: r, set: set.DeepCopy(), at: r.now(), roster: r.rosters.Of(set), plans: inplace.NewPlans(r.options.InPlace)}
	l.want, _ = newWant(&set.Spec) // check has validated it
	l.client = podclient.Client{API: r.API, Expect: r.Expect, Owner: set.UID, Hooks: cmp.Or(set.Spec.Lifecycle, &v1beta1.Lifecycle{}), Reloads: r.Reloads, Events: r.Events, Now: l.at}
	l.policy = v1beta1.PodUpdateRecreate
	if u := set.Spec.UpdateStrategy.RollingUpdate; u != nil && u.PodUpdatePolicy != "" {
		l.policy = u.PodUpdatePolicy
	}
	if err := l.readRevisions(ctx); err != nil {
		return nil, err
	}
	if err := l.readPods(); err != nil {
		return nil, err
	}
	l.divide()
	return l, nil
}

// divide decides how far the batches go.
func (l *syncContext) divide() {
	var b *v1beta1.UpdateBatches
	if u := l.set.Spec.UpdateStrategy.RollingUpdate; u != nil {
		b = u.Batches
	}
	updated := int(l.roster.sums.renewed.replicas)
	l.want, l.batch = l.want.divide(b, l.set.Status.Batches, batch.Update{
		Revision: l.updated.Name, Before: l.before(), Released: l.set.Annotations[v1beta1.AnnotationNextBatch], Now: l.at,
	}, batch.Pods{Reached: updated, Updated: updated, Available: int(l.roster.sums.renewed.available), Old: l.roster.sums.old.total() + l.roster.sums.old.marked(), Failed: l.roster.failedPods()})
	l.RequeueAfter(l.batch.After)
}

// check returns an error for a spec that cannot be followed.
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
		return errors.New("spec.selector doesn't find pods of spec.template") // they would be released and created again endlessly
	}
	update := field.NewPath("spec", "updateStrategy")
	unknown := base.OneOf(update.Child("type"), s.UpdateStrategy.Type, v1beta1.CloneSetUpdateStrategyTypes())
	if u := s.UpdateStrategy.RollingUpdate; u != nil {
		unknown = append(unknown, base.OneOf(update.Child("rollingUpdate", "podUpdatePolicy"), u.PodUpdatePolicy, v1beta1.PodUpdatePolicies())...)
		unknown = append(unknown, batch.Validate(update.Child("rollingUpdate", "batches"), u.Batches, s.UpdateStrategy.Type == v1beta1.CloneSetOnDelete)...)
		if _, err := podorder.NewPriority(u.PriorityStrategy); err != nil {
			return fmt.Errorf("spec.updateStrategy.rollingUpdate.priorityStrategy.%w", err)
		}
	}
	unknown = append(unknown, reload.Validate(field.NewPath("spec", "template"), &s.Template)...)
	if len(unknown) > 0 {
		return unknown.ToAggregate() //nolint:wrapcheck // it names the fields
	}
	return nil
}

// readPods reads the changes of the pods and their claims.
func (l *syncContext) readPods() error {
	var err error
	if l.selector, err = metav1.LabelSelectorAsSelector(l.set.Spec.Selector); err != nil {
		return fmt.Errorf("spec.selector: %w", err)
	}
	b := basis{generation: l.set.Generation, specs: l.Specs.Changes(l.set), current: l.current.Name, updated: l.updated.Name, history: l.history.Version()}
	since := func(m *podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod] { return l.Owned.Since(m, l.set) }
	l.RequeueAfter(l.roster.sync(b, since, l.judge, l.at))
	l.readClaims()
	return nil
}

// judge returns the facts about a pod.
func (l *syncContext) judge(p *corev1.Pod) facts {
	o := podorder.Options{Now: l.at, MinReadySeconds: l.set.Spec.MinReadySeconds}
	f := facts{
		active: podclient.Active(p), ready: podclient.Ready(p), stranger: !l.selector.Matches(labels.Set(p.Labels)), revision: revision.Hash(p.Labels[revision.Label]),
		rank: podorder.RankOf(p, o),
	}
	if since, ready := podorder.ReadySince(p); ready && !podorder.Available(p, o.MinReadySeconds, o.Now) {
		f.due = since.Add(time.Duration(o.MinReadySeconds) * time.Second)
	}
	f.member = member{name: p.Name, pod: p, updated: l.isUpdated(p), marked: l.marked(p)}
	var left time.Duration
	if f.available, left = l.client.Available(p, o.MinReadySeconds); left > 0 {
		f.due = l.at.Add(left)
	}
	f.preparing = lifecycle.StateOf(p) == v1beta1.LifecyclePreparingDelete
	f.recallable = f.preparing && !f.marked && lifecycle.Judge(p, l.set.Spec.Lifecycle, lifecycle.Keep, false).State != v1beta1.LifecyclePreparingDelete
	f.held = lifecycle.StateOf(p) == v1beta1.LifecyclePreparingUpdate
	f.preparingUpdate = l.options.CountPreparingUpdate && f.held
	f.begun = f.held || !inplace.Open(p)
	f.inPlace = l.plan(f.member) != nil
	f.failed = f.updated && batch.Failed(p, f.available, l.updated.Name, l.set.Status.Batches)
	return f
}

func (l *syncContext) marked(p *corev1.Pod) bool {
	_, labelled := p.Labels[v1beta1.LabelSpecifiedDelete]
	return labelled || slices.Contains(l.set.Spec.ScaleStrategy.PodsToDelete, p.Name)
}

// grace returns how long a pod is out of its Services before an update in place.
func (l *syncContext) grace() time.Duration {
	u := l.set.Spec.UpdateStrategy.RollingUpdate
	if u == nil || u.InPlaceUpdateStrategy == nil {
		return 0
	}
	return time.Duration(u.InPlaceUpdateStrategy.GracePeriodSeconds) * time.Second
}
