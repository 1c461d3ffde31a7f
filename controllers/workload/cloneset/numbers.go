package cloneset

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// want is what a CloneSet wants, in numbers of pods.
type want struct {
	replicas int
	// partition of them stay at the current revision, or go back to it.
	partition                int
	maxUnavailable, maxSurge int
	// toCreate is how many pods may be unavailable while others are created.
	toCreate int
	// alone: the current revision is the update revision, so that nobody can go back,
	// whatever the partition.
	alone bool
	// paused leaves every pod at its revision.
	paused bool
	// excludePreparing doesn't count pods whose deletion a hook holds back.
	excludePreparing bool
}

// newWant reads a spec as OpenKruise does: KRUISE.md, "CloneSet".
func newWant(s *v1beta1.CloneSetSpec) (want, error) {
	w := want{replicas: 1, excludePreparing: s.ScaleStrategy.ExcludePreparingDelete}
	if s.Replicas != nil {
		w.replicas = int(*s.Replicas)
	}
	u := s.UpdateStrategy.RollingUpdate
	if u == nil {
		u = &v1beta1.CloneSetRollingUpdateStrategy{}
	}
	w.paused = u.Paused
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
		w.maxUnavailable = 1 // or nothing would ever change
	}
	w.partition = min(read("updateStrategy.rollingUpdate.partition", u.Partition, zero, true), w.replicas)
	if p := u.Partition; p != nil && p.Type == intstr.String && p.StrVal != "100%" && w.partition == w.replicas && w.replicas > 0 {
		w.partition-- // less than all of them is not all of them
	}
	w.toCreate = w.replicas
	if m := s.ScaleStrategy.MaxUnavailable; m != nil {
		w.toCreate = read("scaleStrategy.maxUnavailable", m, zero, true)
	}
	return w, err
}

// tally counts the pods of one revision that aren't on their way out.
type tally struct {
	available, unavailable int
	// marked ones are to be replaced, since somebody said so.
	markedAvailable, markedUnavailable int
	// preparing are marked or surplus, and a hook holds back their deletion: they go, and
	// stand in for nobody.
	preparing int
}

func (t tally) kept() int   { return t.available + t.unavailable }
func (t tally) marked() int { return t.markedAvailable + t.markedUnavailable }

// counts are what to do now.
type counts struct {
	createOld, createNew int
	// remove is how many pods there are too many. Of each revision as many as it has
	// beyond its share; where that would take available ones that are needed, those that
	// a surge allows stay until others serve, and beyond, any that isn't available goes.
	remove, removeOld, removeUpdated, beyond int
	// replace is how many available ones of those that are marked can go. Those that
	// aren't available can go in any case.
	replace int
	// forward pods come to the update revision, and back ones to the current one: those
	// that aren't available in any case, and available ones as far as room goes: spare
	// in place, and mark by being marked.
	forward, back, spare, mark int
}

// chooses reports whether pods may have to go, or to change. Where it is false, none are
// doomed and none are moved, whichever they are.
func (c counts) chooses(old, updated tally) bool {
	room := c.spare+c.mark > 0
	forward := c.forward > 0 && (room || old.unavailable > 0)
	back := c.back > 0 && (room || updated.unavailable > 0)
	return forward || back || old.preparing+updated.preparing+old.marked()+updated.marked()+c.remove > 0
}

// decide says what to do. old are the pods that don't have the update revision.
func (w want) decide(old, updated tally) counts {
	var c counts
	if w.alone {
		w.partition = min(w.partition, old.kept())
	}
	stay := old.kept() + old.marked() + updated.kept() + updated.marked()
	total := stay
	if !w.excludePreparing {
		total += old.preparing + updated.preparing
	}
	available := old.available + old.markedAvailable + updated.available + updated.markedAvailable
	unavailable := old.unavailable + updated.unavailable
	marked := old.marked() + updated.marked()

	// Whatever we do leaves so many available.
	c.spare = max(available-(w.replicas-w.maxUnavailable), 0)
	c.replace = min(old.markedAvailable+updated.markedAvailable, c.spare)
	c.spare -= c.replace

	if !w.paused {
		c.forward = max(old.kept()-w.partition, 0)
		c.back = min(max(updated.kept()-(w.replicas-w.partition), 0), max(w.partition-old.kept(), 0))
	}
	missing := max(w.replicas-stay, 0)
	c.mark = max(w.maxUnavailable+w.maxSurge-marked-unavailable-missing, 0)

	target := w.replicas + w.surge(marked, unavailable, c.forward+c.back)
	switch gone := c.replace + old.markedUnavailable + updated.markedUnavailable; {
	case total < target:
		c.create(w, target-total, old)
		if limit := max(w.toCreate-unavailable, 0); c.createOld+c.createNew > limit {
			c.createOld = min(c.createOld, limit)
			c.createNew = limit - c.createOld
		}
	case stay-gone > target:
		c.remove = stay - gone - target
		c.removeOld = max(old.kept()-w.partition, 0)
		c.removeUpdated = max(updated.kept()-(w.replicas-w.partition), 0)
		c.beyond = max(stay-gone-w.replicas-w.maxSurge, 0)
	}
	return c
}

// surge is how many pods there are to be above replicas: as many as have to be replaced
// before they go, and where no pod may be missing one to update others beside it.
func (w want) surge(marked, unavailable, moves int) int {
	n := min(max(unavailable+marked-w.maxUnavailable, 0), marked)
	if w.maxUnavailable == 0 {
		n += moves
	}
	return min(n, w.maxSurge)
}

// create shares new pods out: the partition is filled first.
func (c *counts) create(w want, n int, old tally) {
	c.createOld = min(n, max(w.partition-old.kept(), 0))
	c.createNew = n - c.createOld
}
