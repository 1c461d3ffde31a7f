package daemonset

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1alpha1"
	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// want is what a DaemonSet wants, in numbers of nodes.
type want struct {
	maxUnavailable, maxSurge int
	// partition is how many nodes stay at the old revision.
	partition int
	// burst bounds how many pods one look creates, deletes or updates.
	burst int
	// moves is false where pods come to a new revision when somebody deletes them, or
	// not at all for now.
	moves bool
	// progressive leaves nodes without a pod, as many as the partition says.
	progressive bool
}

// newWant reads a DaemonSet for so many nodes that should run a pod.
func newWant(set *v1beta1.DaemonSet, nodes int) (want, error) {
	s := &set.Spec
	u := s.UpdateStrategy.RollingUpdate
	if u == nil {
		u = &v1beta1.DaemonSetRollingUpdateStrategy{}
	}
	w := want{
		moves:       s.UpdateStrategy.Type != v1beta1.DaemonSetOnDelete && (u.Paused == nil || !*u.Paused),
		progressive: s.ScaleStrategy != nil && s.ScaleStrategy.PartitionedScaling,
	}
	if s.ScaleStrategy == nil { // manifests of v1alpha1 say it so, and may have been sent as v1beta1
		w.progressive = set.Annotations[v1alpha1.AnnotationProgressiveCreate] == "true"
	}
	var err error
	read := func(field string, value *intstr.IntOrString, otherwise int) int {
		if value == nil {
			return otherwise
		}
		n, e := intstr.GetScaledValueFromIntOrPercent(value, nodes, true)
		if e != nil && err == nil {
			err = fmt.Errorf("spec.%s: %w", field, e)
		}
		return max(n, 0)
	}
	w.maxSurge = read("updateStrategy.rollingUpdate.maxSurge", u.MaxSurge, 0)
	w.maxUnavailable = read("updateStrategy.rollingUpdate.maxUnavailable", u.MaxUnavailable, 1)
	if w.maxUnavailable == 0 && w.maxSurge == 0 {
		w.maxUnavailable = 1 // or nothing would ever change
	}
	w.partition = min(read("updateStrategy.rollingUpdate.partition", u.Partition, 0), nodes)
	w.burst = max(read("burstReplicas", s.BurstReplicas, 250), 1)
	return w, err
}

// place is a node with the pods that it has of a DaemonSet, by name; "": none.
type place struct {
	node string
	// runs: it should run a pod. stays: one that it has goes on.
	runs, stays bool
	// selected: its pod may come to the new revision.
	selected bool
	// old and updated are its pods of other revisions, and of the newest.
	old, updated                   string
	oldAvailable, updatedAvailable bool
	// surplus are others that it has, and failed ones.
	surplus []string
	// occupied: a pod is on its way out, or has failed and stays for a while. None is
	// created beside it: agents own what they watch.
	occupied bool
	// inPlace: the old pod can come to the new revision without being replaced.
	inPlace bool
}

// plan is what to do now, by node; remove and update are pods.
type plan struct {
	create         []string
	remove, update []string
}

// decide says what to do with places that are sorted by name.
func (w want) decide(places []*place) plan {
	var p plan
	running, updated, olds := 0, 0, 0
	for _, at := range places {
		if at.old != "" {
			olds++
		}
		if at.runs {
			running++
		}
		if at.runs && at.updated != "" {
			updated++
		}
	}
	for _, at := range places {
		p.remove = append(p.remove, at.leaving()...)
		if at.fillable() && w.fills(running, updated) {
			updated++
			p.create = append(p.create, at.node)
		}
	}
	if w.moves && olds > 0 {
		w.move(places, &p)
	}
	p.create, p.remove, p.update = p.create[:min(len(p.create), w.burst)], p.remove[:min(len(p.remove), w.burst)], p.update[:min(len(p.update), w.burst)]
	return p
}

// fills reports whether one more node gets a pod, where so many that should run one have
// one of the newest revision. Where creation is progressive, the partition is how many
// don't, be it that they have another or none: so is OpenKruise's.
func (w want) fills(running, updated int) bool {
	return !w.progressive || updated < running-w.partition
}

// idle reports whether there is nothing to decide, by sums alone: where it is so,
// decide would have nothing done.
func (w want) idle(s *sums) bool {
	creates := s.empty > 0 && w.fills(s.running, s.updated)
	room := s.poor > 0 || w.maxUnavailable > s.running-s.available || w.maxSurge > s.surging
	moves := w.moves && s.olds > 0 && room && s.renewed < w.reachable(s)
	return s.crowded == 0 && !creates && !moves
}

// reachable is how many nodes come to the new revision: see reach.
func (w want) reachable(s *sums) int { return max(min(s.reachable, s.running-w.partition), 0) }

// fillable reports whether a node can be given a pod.
func (p *place) fillable() bool {
	return p.runs && p.old == "" && p.updated == "" && !p.occupied && len(p.surplus) == 0
}

// leaving are the pods that go, whatever the strategy says.
func (p *place) leaving() []string {
	switch {
	case !p.stays:
		return slices.Concat(p.surplus, present(p.old, p.updated))
	case p.old != "" && p.updated != "" && (p.updatedAvailable || !p.oldAvailable):
		return slices.Concat(p.surplus, present(p.old)) // its replacement is there, or it serves nobody
	}
	return p.surplus
}

func present(pods ...string) []string {
	return slices.DeleteFunc(pods, func(p string) bool { return p == "" })
}

// reach are the nodes that come to the new revision: those that need a pod and are
// selected, without the last ones, as many as the partition says. Those that have come
// there already count first, then those that have no pod, which get a new one, and then
// those whose pod isn't available.
func (w want) reach(places []*place) []*place {
	var order [4][]*place
	nodes := 0
	for _, at := range places {
		if at.runs {
			nodes++
		}
		if at.runs && at.selected {
			order[at.rank()] = append(order[at.rank()], at)
		}
	}
	all := slices.Concat(order[:]...)
	return all[:min(len(all), max(nodes-w.partition, 0))]
}

// rank is lower for nodes whose turn comes sooner.
func (p *place) rank() int {
	switch {
	case p.updated != "":
		return 0
	case p.old == "":
		return 1
	case !p.oldAvailable:
		return 2
	}
	return 3
}

// serves reports whether a node has an available pod.
func (p *place) serves() bool { return p.oldAvailable || p.updatedAvailable }

// move brings pods to the new revision: those that aren't available in any case, and
// others as far as not too many nodes are without an available pod, or run two.
func (w want) move(places []*place, p *plan) {
	spare, surge := w.room(places)
	for _, at := range w.reach(places) {
		if at.old == "" || at.updated != "" {
			continue
		}
		switch {
		case at.oldAvailable && w.maxSurge > 0:
			if surge > 0 && !at.occupied {
				surge--
				p.create = append(p.create, at.node)
			}
		case at.oldAvailable && spare <= 0:
		default:
			if at.oldAvailable {
				spare--
			}
			p.renew(at)
		}
	}
}

// room is how many nodes more may be without an available pod, and how many run two.
func (w want) room(places []*place) (spare, surge int) {
	spare, surge = w.maxUnavailable, w.maxSurge
	for _, at := range places {
		if at.runs && !at.serves() {
			spare--
		}
		if at.old != "" && at.updated != "" {
			surge--
		}
	}
	return spare, surge
}

// renew brings the old pod of a place to the new revision, in place where it can be.
func (p *plan) renew(at *place) {
	if at.inPlace {
		p.update = append(p.update, at.old)
		return
	}
	p.remove = append(p.remove, at.old)
}
