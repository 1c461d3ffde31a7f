package cloneset

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

// want is the desired state of a CloneSet, in numbers of pods.
type want struct {
	replicas int
	// partition is how many pods stay at the current revision, or go back to it.
	partition                int
	maxUnavailable, maxSurge int
	// toCreate is how many pods may be unavailable while pods are created.
	toCreate int
	// alone: the current revision is the update revision, so no pod can go back, whatever the
	// partition.
	alone bool
	// paused keeps every pod at its revision, and so does onDelete: only a user's deletion brings the
	// update revision.
	paused, onDelete bool
	// stopped keeps every pod at its revision, too: too many pods of a batch have failed. divided: the
	// update goes in batches.
	stopped, divided bool
	// excludePreparing does not count pods whose deletion a hook blocks.
	excludePreparing bool
}

// newWant parses a spec with the rules of OpenKruise: KRUISE.md, "CloneSet". It returns an error
// for an invalid number or percentage.
func newWant(s *v1beta1.CloneSetSpec) (want, error) {
	w := want{replicas: 1, excludePreparing: s.ScaleStrategy.ExcludePreparingDelete}
	if s.Replicas != nil {
		w.replicas = int(*s.Replicas)
	}
	u := s.UpdateStrategy.RollingUpdate
	if u == nil {
		u = &v1beta1.CloneSetRollingUpdateStrategy{}
	}
	w.paused, w.onDelete = u.Paused, s.UpdateStrategy.Type == v1beta1.CloneSetOnDelete
	var err error
	read := func(field string, value *intstr.IntOrString, otherwise intstr.IntOrString, up bool) int {
		if value == nil {
			value = &otherwise
		}
		n, e := intstr.GetScaledValueFromIntOrPercent(value, w.replicas, up)
		if e != nil && err == nil {
			err = fmt.Errorf("spec.%s: %w", field, e)
		}
		return max(n, 0)
	}
	zero := intstr.FromInt32(0)
	w.maxSurge = read("updateStrategy.rollingUpdate.maxSurge", u.MaxSurge, zero, true)
	w.maxUnavailable = read("updateStrategy.rollingUpdate.maxUnavailable", u.MaxUnavailable, intstr.FromString("20%"), w.maxSurge == 0)
	if w.maxUnavailable == 0 && w.maxSurge == 0 {
		w.maxUnavailable = 1 // otherwise nothing would ever change
	}
	w.partition = min(read("updateStrategy.rollingUpdate.partition", u.Partition, zero, true), w.replicas)
	if p := u.Partition; p != nil && p.Type == intstr.String && p.StrVal != "100%" && w.partition == w.replicas && w.replicas > 0 {
		w.partition-- // a percentage below 100% must not be rounded up to all pods
	}
	w.toCreate = w.replicas
	if m := s.ScaleStrategy.MaxUnavailable; m != nil {
		w.toCreate = read("scaleStrategy.maxUnavailable", m, zero, true)
	}
	return w, err
}

// divide returns what is wanted within the limits of a batch, and the decision about it. It leaves at
// most as many pods at their revision as have another one: those that are updated would go back.
func (w want) divide(b *v1beta1.UpdateBatches, was *v1beta1.BatchStatus, u batch.Update, p batch.Pods) (want, batch.Decision) {
	u.Partition, u.Paused, p.Wanted = w.partition, w.paused, w.replicas
	d := batch.Decide(b, was, u, p)
	w.partition = max(w.partition, min(d.Partition, w.replicas-p.Updated))
	w.stopped, w.divided = d.Stopped, d.Status != nil
	return w, d
}

// tally counts the active pods of one revision: not ended, and not being deleted.
type tally struct {
	available, unavailable int
	// Marked pods are to be replaced, by a label or the spec.
	markedAvailable, markedUnavailable int
	// preparingUpdate are those of an old revision that count as updated when pods are created and when
	// there are too many.
	preparingUpdate int
	// preparing are marked or surplus pods whose deletion a hook blocks. They will be deleted,
	// and do not count as replicas.
	preparing int
}

func (t tally) total() int  { return t.available + t.unavailable }
func (t tally) marked() int { return t.markedAvailable + t.markedUnavailable }

// counts are the numbers of changes to make now.
type counts struct {
	createOld, createNew int
	// remove is how many pods there are too many. Each revision loses the pods beyond its share:
	// removeOld and removeUpdated. If that would delete needed available pods, surplus pods
	// within the surge stay until other pods serve. beyond is the number above the surge: of
	// these, unavailable pods of any revision are deleted first.
	remove, removeOld, removeUpdated, beyond int
	// replace is how many marked available pods can be deleted. Marked unavailable pods can
	// always be deleted.
	replace int
	// forward is how many pods move to the update revision, and back how many move to the
	// current one. Unavailable pods always may. Available pods are limited: by spare in place,
	// and by mark for replacement.
	forward, back, spare, mark int
}

// chooses reports whether pods may have to be deleted or changed. If it returns false, doomed
// and moved choose no pods.
func (c counts) chooses(old, updated tally) bool {
	room := c.spare+c.mark > 0
	forward := c.forward > 0 && (room || old.unavailable > 0)
	back := c.back > 0 && (room || updated.unavailable > 0)
	return forward || back || old.preparing+updated.preparing+old.marked()+updated.marked()+c.remove > 0
}

// decide returns what to do. old counts the pods without the update revision.
func (w want) decide(old, updated tally) counts {
	var c counts
	if w.alone {
		w.partition = min(w.partition, old.total())
	}
	stay := old.total() + old.marked() + updated.total() + updated.marked()
	total := stay
	if !w.excludePreparing {
		total += old.preparing + updated.preparing
	}
	available := old.available + old.markedAvailable + updated.available + updated.markedAvailable
	unavailable := old.unavailable + updated.unavailable
	marked := old.marked() + updated.marked()

	// Every change keeps at least replicas - maxUnavailable pods available.
	c.spare = max(available-(w.replicas-w.maxUnavailable), 0)
	c.replace = min(old.markedAvailable+updated.markedAvailable, c.spare)
	c.spare -= c.replace

	if !w.paused && !w.onDelete && !w.stopped {
		// Pods that count as updated go on, although the old pods that take their place are not there yet.
		room := w.replicas - w.partition - updated.total()
		c.forward = max(old.total()-w.partition, min(old.preparingUpdate, room), 0)
		if w.divided { // broken pods before missing ones, which may wait for the broken ones
			c.forward = max(c.forward, min(old.unavailable, room))
		}
		c.back = min(max(updated.total()-(w.replicas-w.partition), 0), max(w.partition-old.total(), 0))
	}
	missing := max(w.replicas-stay, 0)
	c.mark = max(w.maxUnavailable+w.maxSurge-marked-unavailable-missing, 0)

	keepsOld, getsUpdated := old.total()-old.preparingUpdate, updated.total()+old.preparingUpdate
	target := w.replicas + w.surge(marked, unavailable, c.forward+c.back)
	switch gone := c.replace + old.markedUnavailable + updated.markedUnavailable; {
	case total < target:
		c.create(w, target-total, keepsOld, getsUpdated)
		if limit := max(w.toCreate-unavailable, 0); c.createOld+c.createNew > limit {
			c.createOld = min(c.createOld, limit)
			c.createNew = limit - c.createOld
		}
	case stay-gone > target:
		c.remove = stay - gone - target
		c.removeOld = max(keepsOld-w.partition, 0)
		c.removeUpdated = max(getsUpdated-(w.replicas-w.partition), 0)
		c.beyond = max(stay-gone-w.replicas-w.maxSurge, 0)
	}
	return c
}

// surge returns how many pods to run above replicas: replacements that must come before their
// pods go. If no pod may be unavailable, pods to update count as well.
func (w want) surge(marked, unavailable, moves int) int {
	n := min(max(unavailable+marked-w.maxUnavailable, 0), marked)
	if w.maxUnavailable == 0 {
		n += moves
	}
	return min(n, w.maxSurge)
}

// create divides new pods between the revisions: the partition is filled first. In batches the batch is
// filled first, since pods that are missing may be missing because of the old revision. There are old and
// updated ones of them.
func (c *counts) create(w want, n, old, updated int) {
	c.createOld = min(n, max(w.partition-old, 0))
	switch {
	case w.stopped: // what can't run spreads no further
		c.createOld = n
	case w.divided:
		c.createOld = n - min(n, max(w.replicas-w.partition-updated, 0))
	}
	c.createNew = n - c.createOld
}
