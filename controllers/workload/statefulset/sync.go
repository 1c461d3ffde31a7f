package statefulset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
	"github.com/keelson-io/keelson/controllers/workload/ordinal"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// syncContext is one reconcile of a StatefulSet: the observed and desired state, and the results.
type syncContext struct {
	*Reconciler
	set                       *v1beta1.StatefulSet
	want                      want
	rolling                   *v1beta1.StatefulSetRollingUpdateStrategy
	minReady                  int32
	policy                    v1beta1.PodUpdatePolicy
	selector                  labels.Selector
	at                        time.Time
	keptOwner, condemnedOwner claimOwner // who owns the claims of kept and of condemned pods

	history          revision.History
	current, updated *appsv1.ControllerRevision

	roster *roster
	batch  batch.Decision
	plans  *inplace.Plans

	client podclient.Client
	base.Timer

	mu sync.Mutex
	// changed are the changes of the counts by what this reconcile has written. The informer shows
	// these pods later.
	changed counts
	// failedCreate and failedUpdate are the errors that last.
	failedCreate, failedUpdate error
}

func (r *Reconciler) newSyncContext(ctx context.Context, set *v1beta1.StatefulSet) (*syncContext, error) {
	set = set.DeepCopy()
	l := &syncContext{
		Reconciler: r, set: set, at: r.now(), roster: r.rosters.Of(set), plans: inplace.NewPlans(r.options.InPlace),
		rolling: rolling(&set.Spec), minReady: minReadySeconds(&set.Spec),
	}
	l.want, _ = newWant(&set.Spec) // check has validated it
	l.policy = cmp.Or(l.rolling.PodUpdatePolicy, v1beta1.PodUpdateRecreate)
	l.keptOwner, l.condemnedOwner = claimOwners(set.Spec.PersistentVolumeClaimRetentionPolicy)
	l.client = podclient.Client{API: r.API, Expect: r.Expect, Owner: set.UID, Hooks: cmp.Or(set.Spec.Lifecycle, &v1beta1.Lifecycle{}), Reloads: r.Reloads, Events: r.Events, Now: l.at}
	var err error
	if l.selector, err = metav1.LabelSelectorAsSelector(set.Spec.Selector); err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	if err := l.readRevisions(ctx); err != nil {
		return nil, err
	}
	l.readPods(ctx)
	return l, nil
}

// readPods reads the changes of the pods and their claims, and decides how far the batches go. Facts
// depend on the partition, and a batch on the facts: if it moves the partition, all is read again.
func (l *syncContext) readPods(ctx context.Context) {
	b := basis{generation: l.set.Generation, specs: l.Specs.Changes(l.set), current: l.current.Name, updated: l.updated.Name}
	for _, r := range l.history.Revisions {
		b.history += r.Name + " "
	}
	d := divider{want: l.want, batches: l.rolling.Batches, was: l.set.Status.Batches, before: l.before, update: batch.Update{
		Revision: l.updated.Name, Partition: l.want.partition, Paused: l.want.paused, Released: l.set.Annotations[v1beta1.AnnotationNextBatch], Now: l.at,
	}}
	l.want, l.batch = d.divide(func(w want) (sums, []string) {
		l.want = w
		b.partition, b.ahead = w.partition, fmt.Sprint(w.ahead)
		l.RequeueAfter(l.roster.sync(rosterInput{
			basis: b, want: w, now: l.at, claimed: l.claims.take(client.ObjectKeyFromObject(l.set)),
			judge: func(p *corev1.Pod) facts { return l.judge(ctx, p) },
			since: func(m *podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod] { return l.Owned.Since(m, l.set) },
		}))
		return l.roster.sums, l.roster.failedPods()
	}, l.roster.members)
	l.RequeueAfter(l.batch.After)
}

// before returns the revision that pods have beside the update revision, as far as the status tells. If
// it tells nothing, that is the newest one that pods had at the last reconcile of this process, or have.
func (l *syncContext) before() string {
	if l.current.Name != l.updated.Name {
		return l.current.Name
	}
	return l.history.Before(func(hash string) bool { return l.roster.revisions[hash] > 0 })
}

// readRevisions finds the revision of the template, and creates it if it is missing.
func (l *syncContext) readRevisions(ctx context.Context) error {
	owner := revision.Owner{Object: l.set, Kind: v1beta1.GroupVersion.WithKind(kind), Labels: l.set.Spec.Selector.MatchLabels, Collisions: l.set.Status.CollisionCount}
	owner.Confirm = func(ctx context.Context) error { return base.CheckCurrent(ctx, l.live, owner.Kind, l.set) }
	var err error
	if l.history, err = l.Revisions.Sync(ctx, owner, &l.set.Spec.Template); err != nil {
		return err
	}
	l.updated, l.current = l.history.Updated, l.history.Named(l.set.Status.CurrentRevision)
	if l.current == nil {
		l.current = l.updated // the revision that pods in the partition get
	}
	return nil
}

// judge returns the facts about a pod.
func (l *syncContext) judge(ctx context.Context, p *corev1.Pod) facts {
	f := facts{pod: p, revision: revision.Hash(p.Labels[revision.Label]), started: p.Status.Phase != ""}
	n, named := ordinal.Of(l.set.Name, p.Name)
	f.stranger = !named || !l.selector.Matches(labels.Set(p.Labels))
	f.current = revision.Has(p, l.current.Name)
	f.member = member{
		name: p.Name, ordinal: n, terminating: p.DeletionTimestamp != nil, ended: podclient.Ended(p), updated: revision.Has(p, l.updated.Name),
		ready: p.Status.Phase == corev1.PodRunning && podclient.Ready(p), marked: l.marked(p),
		preparing: lifecycle.StateOf(p) == v1beta1.LifecyclePreparingDelete,
		begun:     lifecycle.StateOf(p) == v1beta1.LifecyclePreparingUpdate || !inplace.Open(p),
	}
	f.position, f.kept = l.want.ordinals.Position(n)
	serves, left := l.client.Available(p, l.minReady)
	f.serving = serves && f.ready && f.live()
	if since, ready := podorder.ReadySince(p); ready && !podorder.Available(p, l.minReady, l.at) {
		f.due = since.Add(time.Duration(l.minReady) * time.Second)
	}
	if left > 0 {
		f.due = l.at.Add(left)
	}
	f.inPlace = !f.updated && l.plan(p) != nil
	l.judgeClaims(ctx, &f)
	f.available = f.serving && !f.resizing
	f.failed = f.updated && !f.terminating && batch.Failed(p, f.available, l.updated.Name, l.set.Status.Batches)
	return f
}

// marked reports whether a user wants a pod to be replaced, or its deletion has begun and cannot be
// called off.
func (l *syncContext) marked(p *corev1.Pod) bool {
	_, labelled := p.Labels[v1beta1.LabelSpecifiedDelete]
	return labelled || lifecycle.StateOf(p) == v1beta1.LifecyclePreparingDelete &&
		lifecycle.Judge(p, l.client.Hooks, lifecycle.Keep, false).State == v1beta1.LifecyclePreparingDelete
}

// plan returns the plan to update a pod in place to the update revision; nil if that is not possible.
func (l *syncContext) plan(p *corev1.Pod) *inplace.Plan {
	if l.policy == v1beta1.PodUpdateRecreate {
		return nil
	}
	return l.plans.Between(l.history.Of(p), l.updated) // the revision of the pod may be unknown: nil
}

// grace returns how long a pod is out of its Services before an update in place.
func (l *syncContext) grace() time.Duration {
	if l.rolling.InPlaceUpdateStrategy == nil {
		return 0
	}
	return time.Duration(l.rolling.InPlaceUpdateStrategy.GracePeriodSeconds) * time.Second
}

// inOrder sorts pods for an update by priority: started updates first, and pods of the same priority
// as they were.
func (l *syncContext) inOrder(members []member) []member {
	var strategy *v1beta1.UpdatePriorityStrategy
	if u := l.rolling.UnorderedUpdate; u != nil {
		strategy = u.PriorityStrategy
	}
	priority, _ := podorder.NewPriority(strategy) // check has validated it
	pods, byName := make([]*corev1.Pod, len(members)), make(map[string]member, len(members))
	for i, m := range members {
		pods[i], byName[m.name] = l.roster.at(m.ordinal).pod, m
	}
	priority.Sort(pods)
	out := make([]member, len(pods))
	for i, p := range pods {
		out[i] = byName[p.Name]
	}
	slices.SortStableFunc(out, func(a, b member) int {
		switch {
		case a.begun == b.begun:
			return 0
		case a.begun:
			return -1
		}
		return 1
	})
	return out
}

// countWrite counts a write: the pod as it was, and as it is; nil: there was or is none. It may be called
// from several goroutines.
func (l *syncContext) countWrite(ctx context.Context, was, is *corev1.Pod) {
	for by, pod := range map[int32]*corev1.Pod{-1: was, 1: is} {
		if pod == nil {
			continue
		}
		f := l.judge(ctx, pod)
		l.mu.Lock()
		l.changed.add(&f, by)
		l.mu.Unlock()
	}
}

// adopt adopts pods that the selector finds and whose names have an ordinal, and releases others:
// see [base.Adopter].
func (l *syncContext) adopt(ctx context.Context) (int, error) {
	return base.Adopter{
		Reconciler: l.Reconciler.Reconciler, Set: l.set, Kind: v1beta1.GroupVersion.WithKind(kind), Client: l.client, Live: l.live,
		Owns: func(p *corev1.Pod) bool {
			_, named := ordinal.Of(l.set.Name, p.Name)
			return named && l.selector.Matches(labels.Set(p.Labels))
		},
	}.Adopt(ctx, l.roster.released())
}
