package daemonset

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1alpha1"
	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

// want is the desired state of a DaemonSet, in numbers of nodes.
type want struct {
	maxUnavailable, maxSurge int
	// partition is how many nodes stay at the old revision.
	partition int
	// maxPodsPerReconcile bounds how many pods one reconcile creates, deletes or updates.
	maxPodsPerReconcile int
	// moves is false if pods change revision only after their deletion (OnDelete), or updates
	// are paused.
	moves bool
	// progressive applies the partition to creation as well: that many nodes get no pod of the
	// newest revision.
	progressive bool
	// divided: the update goes in batches.
	divided bool
}

// newWant parses a DaemonSet for a number of nodes that should run a pod. It returns an error
// for an invalid number or percentage.
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
	if s.ScaleStrategy == nil { // manifests of v1alpha1 use an annotation, and may have been sent as v1beta1
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
		w.maxUnavailable = 1 // otherwise nothing would ever change
	}
	w.partition = min(read("updateStrategy.rollingUpdate.partition", u.Partition, 0), nodes)
	w.maxPodsPerReconcile = max(read("burstReplicas", s.BurstReplicas, 250), 1)
	return w, err
}

// divide returns what is wanted within the limits of a batch, and the decision about it. A batch has
// nodes that the selector chooses.
func (w want) divide(b *v1beta1.UpdateBatches, was *v1beta1.BatchStatus, u batch.Update, s *sums, failed []string) (want, batch.Decision) {
	wanted := min(s.reachable, s.running)
	u.Partition = wanted - w.reachable(s)
	d := batch.Decide(b, was, u, batch.Pods{Wanted: wanted, Reached: s.renewed, Updated: s.renewed, Available: s.renewedAvailable, Old: s.behind, Failed: failed})
	if w.divided = d.Status != nil; w.divided {
		w.partition = max(w.partition, s.running-(wanted-d.Partition))
	}
	w.moves = w.moves && !d.Stopped
	return w, d
}

// place is a node with its pods of a DaemonSet, by name; "" means none.
type place struct {
	node string
	// runs: the node should run a pod. stays: an existing pod may stay.
	runs, stays bool
	// selected: the pod may move to the new revision.
	selected bool
	// old is a pod of another revision, updated one of the newest revision.
	old, updated                   string
	oldAvailable, updatedAvailable bool
	// surplus are further pods, and ended ones.
	surplus []string
	// occupied: a pod is being deleted, or has failed and stays for its backoff. No pod is
	// created beside it, because two agents may conflict over the node.
	occupied bool
	// inPlace: the old pod can move to the new revision without replacement.
	inPlace bool
}

// plan is what to do now. create has names of nodes; remove and update have names of pods.
type plan struct {
	create         []string
	remove, update []string
}

// decide returns what to do with places, which must be sorted by name.
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
	p.create, p.remove, p.update = p.create[:min(len(p.create), w.maxPodsPerReconcile)], p.remove[:min(len(p.remove), w.maxPodsPerReconcile)], p.update[:min(len(p.update), w.maxPodsPerReconcile)]
	return p
}

// fills reports whether one more node gets a pod. updated of the running nodes have a pod of the
// newest revision. If creation is progressive, the partition is how many nodes have an old pod
// or none, as in OpenKruise.
func (w want) fills(running, updated int) bool {
	return !w.progressive || updated < running-w.partition
}

// idle reports, by sums alone, whether decide would do nothing.
func (w want) idle(s *sums) bool {
	creates := s.empty > 0 && w.fills(s.running, s.updated)
	room := s.poor > 0 || w.maxUnavailable > s.running-s.available || w.maxSurge > s.surging
	moves := w.moves && s.olds > 0 && room && s.renewed < w.reachable(s)
	return s.crowded == 0 && !creates && !moves
}

// reachable returns how many nodes move to the new revision: see reach.
func (w want) reachable(s *sums) int { return max(min(s.reachable, s.running-w.partition), 0) }

// fillable reports whether a pod can be created on a node.
func (p *place) fillable() bool {
	return p.runs && p.old == "" && p.updated == "" && !p.occupied && len(p.surplus) == 0
}

// leaving returns the pods that are deleted whatever the strategy.
func (p *place) leaving() []string {
	switch {
	case !p.stays:
		return slices.Concat(p.surplus, present(p.old, p.updated))
	case p.old != "" && p.updated != "" && (p.updatedAvailable || !p.oldAvailable):
		return slices.Concat(p.surplus, present(p.old)) // its replacement is available, or the old pod is not
	}
	return p.surplus
}

func present(pods ...string) []string {
	return slices.DeleteFunc(pods, func(p string) bool { return p == "" })
}

// reach returns the selected nodes that move to the new revision, without the last ones, as many
// as the partition says. Nodes that have the revision come first. Then come nodes without a pod,
// which get a new one, and then nodes whose pod is not available.
func (w want) reach(places []*place) []*place {
	var order [5][]*place
	nodes := 0
	for _, at := range places {
		if at.runs {
			nodes++
		}
		if at.runs && at.selected {
			rank := at.rank()
			if w.divided && at.occupied && rank > 0 {
				rank = 4 // its node may be dead, and a batch of dead nodes would never end
			}
			order[rank] = append(order[rank], at)
		}
	}
	all := slices.Concat(order[:]...)
	return all[:min(len(all), max(nodes-w.partition, 0))]
}

// rank returns the update order of a node; a lower rank comes first.
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

// move moves pods to the new revision. Unavailable pods always move. Available ones move within
// the limits of nodes without an available pod, and of nodes with two pods.
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

// room returns how many more nodes may be without an available pod, and how many more may run
// two pods.
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

// renew moves the old pod of a place to the new revision: in place if possible, otherwise by
// deletion.
func (p *plan) renew(at *place) {
	if at.inPlace {
		p.update = append(p.update, at.old)
		return
	}
	p.remove = append(p.remove, at.old)
}
