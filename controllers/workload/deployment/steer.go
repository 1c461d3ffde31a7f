package deployment

import (
	"math"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/base"
)

const (
	// neverAvailable is a minReadySeconds that no pod reaches. With it, the Deployment controller counts
	// no new pod as available, and stops after maxUnavailable old ones.
	neverAvailable = base.NeverAvailable
	// noDeadline is the progressDeadlineSeconds that means none. It is the only one above neverAvailable.
	noDeadline = math.MaxInt32
)

// fields are the fields of a Deployment that the controller changes.
type fields = v1beta1.DeploymentUpdateFields

// counts are the numbers of pods of a Deployment by which it is steered.
type counts struct {
	// replicas is how many pods are wanted.
	replicas int
	// fresh is how many pods the newest ReplicaSet is to have, and old how many all others. active
	// counts the ReplicaSets that are to have pods.
	fresh, old, active int
	// available is how many pods of the newest ReplicaSet are available by the user's minReadySeconds.
	available int
	// observed: the Deployment controller has seen the spec.
	observed bool
	// bounded: the Deployment controller can't count a pod of the newest ReplicaSet as available. There is
	// no such pod, or its ReplicaSet says so since the last write.
	bounded bool
}

// limits bound how many pods are updated, and how many are out of service meanwhile.
type limits struct {
	// unavailable and surge are those of the user. end is how many pods are to be updated now.
	unavailable, surge, end int
	// move: pods may be updated.
	move bool
}

// isOpen reports whether the Deployment controller may update pods as far as the fields of a step allow.
func isOpen(f fields) bool { return !f.Paused && f.MinReadySeconds == neverAvailable }

// bounds returns maxSurge and maxUnavailable as numbers of pods, by the rules of the Deployment
// controller (ResolveFenceposts).
func bounds(f fields, replicas int) (surge, unavailable int) {
	surge, _ = intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(f.MaxSurge, intstr.FromInt32(0)), replicas, true)
	unavailable, _ = intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(f.MaxUnavailable, intstr.FromInt32(0)), replicas, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, replicas)
}

// steer returns the fields that a Deployment is to have now: live, or others for the next step. before are
// those of the user.
//
// A step is open for as long as the Deployment controller takes to scale its ReplicaSets. Otherwise the
// Deployment is paused, so a template that changes has no effect before the next step.
func steer(live, before fields, c counts, l limits) fields {
	if !live.Paused && !isOpen(live) {
		live.Paused = true
		return valid(live)
	}
	unavailable, surge, moves := l.next(c)
	switch {
	case !l.move:
		return waiting(live, before, c)
	case isOpen(live) && !l.allow(live, c, unavailable):
		live.Paused = true // the template, or the number of pods, is another one meanwhile
		return live
	case isOpen(live) && !c.reached(live):
		return live
	case moves && (isOpen(live) || c.settled(live) && c.bounded):
		return step(live, false, unavailable, surge)
	case isOpen(live) && c.fresh < c.replicas:
		return waiting(live, before, c)
	case isOpen(live): // with the user's minReadySeconds, the Deployment controller would end the update by itself
		live.Paused = true // maxSurge stays: the Deployment controller removes no pod then
		return live
	case moves && c.settled(live) && live.MinReadySeconds != neverAvailable:
		live.MinReadySeconds, live.ProgressDeadlineSeconds = neverAvailable, new(int32(noDeadline))
		return valid(live)
	}
	return live
}

// next returns the maxUnavailable and maxSurge of the next step, and whether it changes anything.
//
// With them the Deployment controller keeps at least replicas - unavailable old pods, and makes at most
// unavailable + surge new ones: no new pod is available to it.
func (l limits) next(c counts) (unavailable, surge int, moves bool) {
	end := max(min(l.end, c.replicas), c.fresh)
	unavailable = max(min(c.available+l.unavailable, end), c.replicas-c.old)
	if unavailable > end || end == 0 {
		return 0, 0, false
	}
	surge = min(l.surge, end-unavailable)
	return unavailable, surge, c.old > c.replicas-unavailable || c.fresh < unavailable+surge
}

// allow reports whether an open step goes no further than the next one may. unavailable is that of the next
// one. Users can write percentages into an open step, so the numbers are those of the Deployment controller.
func (l limits) allow(live fields, c counts, unavailable int) bool {
	surge, most := bounds(live, c.replicas)
	return most <= unavailable && most+surge <= max(l.end, c.fresh)
}

// reached reports whether the Deployment controller has carried an open step out.
func (c counts) reached(live fields) bool {
	surge, unavailable := bounds(live, c.replicas)
	return c.observed && c.old <= c.replicas-unavailable && (c.fresh >= c.replicas || c.fresh+c.old >= c.replicas+surge)
}

// settled reports whether the Deployment controller leaves the ReplicaSets of a paused Deployment as they
// are.
func (c counts) settled(live fields) bool {
	surge, _ := bounds(live, c.replicas)
	if c.active <= 1 {
		surge = 0
	}
	return c.observed && c.fresh+c.old == c.replicas+surge
}

// getsAll reports whether the newest ReplicaSet has all pods, or may get them by a step that the Deployment
// controller may still be carrying out.
func (c counts) getsAll(live fields) bool {
	surge, unavailable := bounds(live, c.replicas)
	return c.fresh >= c.replicas || (isOpen(live) || !c.observed) && unavailable+surge >= c.replicas
}

// step returns the fields of a step.
func step(live fields, paused bool, unavailable, surge int) fields {
	live.Paused, live.MinReadySeconds, live.ProgressDeadlineSeconds = paused, neverAvailable, new(int32(noDeadline))
	live.MaxUnavailable, live.MaxSurge = new(intstr.FromInt(unavailable)), new(intstr.FromInt(surge))
	return valid(live)
}

// waiting returns the fields of a Deployment whose pods stay as they are. The status of the Deployment
// counts available pods by the user's minReadySeconds then.
//
// If the newest ReplicaSet has all pods and old ones are left, that would end the update: the Deployment
// controller removes the old ones, also of a paused Deployment (IsSaturated). So minReadySeconds stays then.
func waiting(live, before fields, c counts) fields {
	if live.MinReadySeconds == neverAvailable && c.old > 0 && c.getsAll(live) {
		live.Paused = true
		return live
	}
	now := before
	now.Paused = true
	if atRest := c.active <= 1 && c.fresh+c.old == c.replicas && (c.old == 0 || live.Paused && c.observed); !atRest {
		now.MaxSurge = live.MaxSurge // the Deployment controller keeps as many pods more, or adds them
	}
	return valid(now)
}

// valid returns fields that the API server accepts. Users can write values that fit those of a step, and
// don't fit each other.
func valid(f fields) fields {
	if f.ProgressDeadlineSeconds != nil && *f.ProgressDeadlineSeconds <= f.MinReadySeconds {
		f.ProgressDeadlineSeconds = new(f.MinReadySeconds + 1)
	}
	if isZero(f.MaxSurge) && isZero(f.MaxUnavailable) {
		f.MaxUnavailable = new(intstr.FromInt32(1))
	}
	return f
}

func isZero(v *v1beta1.IntOrString) bool {
	return v != nil && (v.String() == "0" || v.String() == "0%")
}
