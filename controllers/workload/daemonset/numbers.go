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
	// progressive leaves as many nodes without a pod as the partition says.
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
func (w want) decide(places []place) plan {
	var p plan
	skip := 0 // nodes that stay without a pod
	if w.progressive {
		skip = w.partition
	}
	running, filled, olds := 0, 0, 0
	for i := range places {
		at := &places[i]
		if at.old != "" {
			olds++
		}
		if at.runs {
			running++
		}
		if at.runs && (at.old != "" || at.updated != "") {
			filled++
		}
	}
	for i := range places {
		at := &places[i]
		p.remove = append(p.remove, at.surplus...)
		switch {
		case !at.stays:
			p.remove = append(p.remove, present(at.old, at.updated)...)
		case at.runs && at.old == "" && at.updated == "" && !at.occupied && len(at.surplus) == 0 && filled < running-skip:
			filled++
			p.create = append(p.create, at.node)
		case at.old != "" && at.updated != "" && (at.updatedAvailable || !at.oldAvailable):
			p.remove = append(p.remove, at.old) // its replacement is there, or it serves nobody
		}
	}
	if w.moves && olds > 0 {
		w.move(places, w.reach(places), &p)
	}
	p.create, p.remove, p.update = p.create[:min(len(p.create), w.burst)], p.remove[:min(len(p.remove), w.burst)], p.update[:min(len(p.update), w.burst)]
	return p
}

func present(pods ...string) []string {
	return slices.DeleteFunc(pods, func(p string) bool { return p == "" })
}

// reach are the nodes that come to the new revision: those that need a pod and are
// selected, without the last ones, as many as the partition says. Those that have come
// there already count first, and then those whose pod isn't available.
func (w want) reach(places []place) map[string]bool {
	var order []place
	nodes := 0
	for _, at := range places {
		if at.runs {
			nodes++
		}
		if at.runs && at.selected {
			order = append(order, at)
		}
	}
	rank := func(at place) int {
		switch {
		case at.updated != "":
			return 0
		case !at.oldAvailable:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(order, func(a, b place) int { return rank(a) - rank(b) })
	out := map[string]bool{}
	for _, at := range order[:min(len(order), max(nodes-w.partition, 0))] {
		out[at.node] = true
	}
	return out
}

// serves reports whether a node has an available pod.
func (p *place) serves() bool { return p.oldAvailable || p.updatedAvailable }

// move brings pods to the new revision: those that aren't available in any case, and
// others as far as not too many nodes are without an available pod, or run two.
func (w want) move(places []place, reach map[string]bool, p *plan) {
	spare, surge := w.room(places)
	for _, at := range places {
		if !reach[at.node] || at.old == "" || at.updated != "" {
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
func (w want) room(places []place) (spare, surge int) {
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
func (p *plan) renew(at place) {
	if at.inPlace {
		p.update = append(p.update, at.old)
		return
	}
	p.remove = append(p.remove, at.old)
}
