package deployment

import (
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
)

// observation is what a reconcile knows of a Deployment.
type observation struct {
	deployment *appsv1.Deployment
	// sets and pods are those of the Deployment. They are known only while known is true.
	sets  []*appsv1.ReplicaSet
	pods  []*corev1.Pod
	known bool
	now   time.Time
}

// plan is what a reconcile writes.
type plan struct {
	// fields are those of the spec, and kept is what is kept of the user's. status is how far the update is.
	// Both nil: the annotations go.
	fields fields
	kept   *v1beta1.DeploymentUpdateBefore
	status *v1beta1.DeploymentUpdateStatus
	// waits: nothing is written before the Deployment controller has seen the spec.
	waits bool
	// needs: the ReplicaSets and pods must be known first. Nothing is written.
	needs bool
	// busy: the ReplicaSets and pods have to be followed.
	busy bool
	// after is when to decide again without a change; 0 means never.
	after time.Duration
}

// newPlan decides what a reconcile writes.
func newPlan(o observation) plan {
	d := o.deployment
	moving := d.Spec.MinReadySeconds == neverAvailable
	kept := Before(d)
	lost := isLost(d)
	if (moving || lost) && !o.known {
		return plan{needs: true, busy: true}
	}
	if moving || lost {
		kept = recoverKept(d, o.sets)
	}
	if _, has := d.Annotations[v1beta1.AnnotationUpdateStrategy]; !has {
		return handBack(d, kept)
	}
	live := fieldsOf(d)
	if kept == nil {
		kept = &v1beta1.DeploymentUpdateBefore{Before: live, Wrote: live}
	}
	kept.Before = wishes(kept, live)
	status := Status(d)
	strategy, err := Strategy(d)
	switch {
	case err != nil:
		status.Refused = abridged(err.Error())
		return o.write(kept, waiting(live, kept.Before, o.countsIfRefused(kept)), status)
	case !live.Paused && !moving: // nothing is decided while the Deployment controller goes on by itself
		status.Refused = ""
		return o.write(kept, steer(live, kept.Before, counts{}, limits{}), status)
	case isQuiet(d, status) && !moving:
		status.Refused = ""
		c := counts{replicas: wanted(d), fresh: wanted(d), active: 1, observed: true}
		return o.write(kept, waiting(live, kept.Before, c), status)
	case !o.known && d.Status.ObservedGeneration < d.Generation && isDone(status):
		return plan{waits: true}
	case !o.known:
		return plan{needs: true, busy: true}
	}
	return o.update(kept, strategy, status)
}

// countsIfRefused returns the counts by which the pods of a refused Deployment stay as they are. What is not
// known counts as an update under way.
func (o observation) countsIfRefused(kept *v1beta1.DeploymentUpdateBefore) counts {
	if !o.known {
		return counts{active: 2}
	}
	c := o.facts(kept, nil).counts
	c.active = max(c.active, 2)
	return c
}

// handBack returns the user's fields.
func handBack(d *appsv1.Deployment, kept *v1beta1.DeploymentUpdateBefore) plan {
	p := plan{fields: fieldsOf(d)}
	if kept != nil {
		p.fields = valid(wishes(kept, p.fields))
	}
	return p
}

// isQuiet reports whether all pods have the template, and no batch waits.
func isQuiet(d *appsv1.Deployment, s v1beta1.DeploymentUpdateStatus) bool {
	replicas := d.Status.Replicas
	return d.Status.ObservedGeneration >= d.Generation && int(replicas) == wanted(d) && d.Status.UpdatedReplicas == replicas && isDone(s)
}

// isDone reports whether no update is under way.
func isDone(s v1beta1.DeploymentUpdateStatus) bool {
	return s.Batches == nil || s.Batches.Reason == v1beta1.BatchDone
}

func wanted(d *appsv1.Deployment) int {
	if d.Spec.Replicas == nil {
		return 1
	}
	return int(*d.Spec.Replicas)
}

// update decides the next step of an update.
func (o observation) update(kept *v1beta1.DeploymentUpdateBefore, strategy *v1beta1.DeploymentUpdateStrategy, status v1beta1.DeploymentUpdateStatus) plan {
	d, live := o.deployment, fieldsOf(o.deployment)
	f := o.facts(kept, status.Batches)
	stay, _ := partition(strategy.Partition, f.counts.replicas) // Strategy has checked it
	paused := strategy.Paused || kept.Before.Paused
	f.pods.Old = f.counts.surplus(f.pods.Old, stay)
	b := batch.Decide(batchesOf(strategy), status.Batches, batch.Update{
		Revision: f.revision, Before: f.before, Partition: stay, Paused: paused, Released: d.Annotations[v1beta1.AnnotationNextBatch], Now: o.now,
	}, f.pods)
	l := limits{end: f.counts.replicas - max(stay, b.Partition)}
	l.surge, l.unavailable = bounds(kept.Before, f.counts.replicas)
	l.move = b.Status != nil && b.Status.Reason == v1beta1.BatchUpdating && !b.Stopped && !paused
	status.Refused, status.Batches = "", b.Status
	to := steer(live, kept.Before, f.counts, l)
	none := len(o.sets) == 0 && d.Status.Replicas == 0 && (f.counts.observed || isOpen(live))
	if none && !kept.Before.Paused { // the first pods are no update, and a paused Deployment gets none
		to = step(live, false, f.counts.replicas, 0)
	}
	p := o.write(kept, to, status)
	p.busy, p.after = true, b.After
	if f.due > 0 && (p.after == 0 || f.due < p.after) {
		p.after = f.due
	}
	return p
}

// surplus returns how many old pods there are for an update that leaves a number of pods as they are. Pods
// that are updated beyond that take the places of old ones. If no pod may be updated, no step can remove
// old pods that are too many, so the update does not wait for that.
func (c counts) surplus(old, stay int) int {
	if stay >= c.replicas && c.fresh == 0 {
		return min(old, c.replicas)
	}
	return old + max(c.fresh-(c.replicas-stay), 0)
}

// facts are what the ReplicaSets and pods say.
type facts struct {
	counts           counts
	pods             batch.Pods
	revision, before string
	due              time.Duration // until the next pod is ready for long enough; 0: none waits for that
}

// facts counts the pods. was is the status of the update so far.
func (o observation) facts(kept *v1beta1.DeploymentUpdateBefore, was *v1beta1.BatchStatus) facts {
	d := o.deployment
	f := facts{revision: revisionOf(d, &d.Spec.Template)}
	f.counts = counts{replicas: wanted(d), observed: d.Status.ObservedGeneration >= d.Generation}
	fresh := newest(d, o.sets)
	largest := 0
	for _, s := range o.sets {
		n := replicasOf(s)
		if n > 0 {
			f.counts.active++
		}
		if s == fresh {
			f.counts.fresh = n
			continue
		}
		f.counts.old += n
		if n > largest {
			largest, f.before = n, revisionOf(d, &s.Spec.Template)
		}
	}
	f.count(o, fresh, kept.Before.MinReadySeconds, was)
	f.counts.available = f.pods.Available
	f.counts.bounded = isBounded(d, fresh, kept.Token)
	f.pods.Wanted, f.pods.Reached, f.pods.Old = f.counts.replicas, max(f.counts.fresh, f.pods.Updated), max(f.counts.old, f.pods.Old)
	return f
}

// count counts the pods that have not ended.
func (f *facts) count(o observation, fresh *appsv1.ReplicaSet, minReadySeconds int32, was *v1beta1.BatchStatus) {
	for _, p := range o.pods {
		owner := metav1.GetControllerOfNoCopy(p)
		if !podclient.Active(p) || owner == nil || !slices.ContainsFunc(o.sets, func(s *appsv1.ReplicaSet) bool { return s.UID == owner.UID }) {
			continue
		}
		if fresh == nil || owner.UID != fresh.UID {
			f.pods.Old++
			continue
		}
		f.pods.Updated++
		since, ready := podorder.ReadySince(p)
		available := ready && podorder.Available(p, minReadySeconds, o.now)
		if available {
			f.pods.Available++
		} else if left := since.Add(time.Duration(minReadySeconds) * time.Second).Sub(o.now); ready && left > 0 && (f.due == 0 || left < f.due) {
			f.due = left
		}
		if batch.Failed(p, available, f.revision, was) {
			f.pods.Failed = append(f.pods.Failed, p.Name)
		}
	}
	slices.Sort(f.pods.Failed)
}

// newest returns the ReplicaSet with the template of a Deployment, as the Deployment controller finds it
// (FindNewReplicaSet); nil: there is none yet.
func newest(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) *appsv1.ReplicaSet {
	t := template(&d.Spec.Template)
	for _, s := range slices.SortedFunc(slices.Values(sets), byAge) {
		if equality.Semantic.DeepEqual(t, template(&s.Spec.Template)) {
			return s
		}
	}
	return nil
}

func replicasOf(s *appsv1.ReplicaSet) int {
	if s.Spec.Replicas == nil {
		return 1
	}
	return int(*s.Spec.Replicas)
}

// isBounded reports whether no pod of the newest ReplicaSet can count as available for the Deployment
// controller.
//
// The Deployment controller acts by the status of the ReplicaSet that it has read, which may be an old one.
// But each step has another token, and first the Deployment controller copies the token to the ReplicaSet,
// with the resourceVersion that it has read. So it has read at least the status that is seen here.
func isBounded(d *appsv1.Deployment, fresh *appsv1.ReplicaSet, token string) bool {
	if fresh == nil {
		return d.Status.UpdatedReplicas == 0
	}
	s := &fresh.Status
	if replicasOf(fresh) == 0 && s.Replicas == 0 && d.Status.UpdatedReplicas == 0 {
		return s.AvailableReplicas == 0
	}
	kept := Before(fresh)
	return d.Spec.MinReadySeconds == neverAvailable && fresh.Spec.MinReadySeconds == neverAvailable && kept != nil && kept.Token == token &&
		s.ObservedGeneration >= fresh.Generation && s.AvailableReplicas == 0
}

// nextToken returns a token that is newer than all others, also after a clock went back. Otherwise the copy
// of an older write would count, and the fields of a step would become the user's.
func (o observation) nextToken(kept *v1beta1.DeploymentUpdateBefore) string {
	next := max(o.now.UnixNano(), number(kept.Token)+1)
	for _, s := range o.sets {
		if k := Before(s); k != nil {
			next = max(next, number(k.Token)+1)
		}
	}
	return strconv.FormatInt(next, 10)
}

// write returns the plan that writes fields and a status.
func (o observation) write(kept *v1beta1.DeploymentUpdateBefore, to fields, status v1beta1.DeploymentUpdateStatus) plan {
	d := o.deployment
	kept.Wrote = to
	if kept.Token == "" || !equal(fieldsOf(d), to) {
		kept.Token = o.nextToken(kept)
	}
	status.ObservedGeneration = d.Generation
	p := plan{fields: to, kept: kept, status: &status}
	if change, _, err := p.change(d); err == nil && change != nil {
		status.ObservedGeneration++ // a Deployment's annotations count for its generation, too
	}
	return p
}
