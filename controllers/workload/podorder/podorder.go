// Package podorder says which pods a workload misses least: in which order they are
// deleted where there are too many.
package podorder

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Options are what the order depends on beside the pods.
type Options struct {
	Now time.Time
	// MinReadySeconds is how long a pod has to be ready to be available.
	MinReadySeconds int32
	// Crowd is how many pods of the workload a pod shares its place with: the higher,
	// the less it is missed. nil: those on its node.
	Crowd func(*corev1.Pod) int
}

// ForDeletion sorts pods: the first is deleted first. Those of the same rank keep their
// order.
func ForDeletion(pods []*corev1.Pod, o Options) {
	crowd := o.Crowd
	if crowd == nil {
		crowd = onNode(pods)
	}
	type ranked struct {
		pod  *corev1.Pod
		rank Rank
	}
	all := make([]ranked, len(pods))
	for i, p := range pods {
		all[i] = ranked{p, RankOf(p, o)}
		all[i].rank.Crowd = crowd(p)
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return a.rank.Compare(b.rank) })
	for i, r := range all {
		pods[i] = r.pod
	}
}

// Rank is how little a pod is missed, by the keys of ReplicaSets.
type Rank struct {
	// Crowd is how many pods it shares its place with, itself among them.
	Crowd int

	assigned, available bool
	phase               int
	cost, restarts      int32
	ready, created      time.Time
}

// RankOf is the rank of a pod that is alone in its place.
func RankOf(p *corev1.Pod, o Options) Rank {
	since, _ := ReadySince(p)
	return Rank{
		Crowd: 1, assigned: p.Spec.NodeName != "", available: Available(p, o.MinReadySeconds, o.Now), phase: phases(p.Status.Phase),
		cost: cost(p), restarts: restarts(p), ready: since, created: p.CreationTimestamp.Time,
	}
}

// Compare is less than 0 where a pod is missed less than one of another rank: by the
// most important key in which they differ.
func (r Rank) Compare(o Rank) int {
	return cmp.Or(
		falseFirst(r.assigned, o.assigned),   // it never ran
		cmp.Compare(r.phase, o.phase),        // Pending, Unknown, Running
		falseFirst(r.available, o.available), // it serves nobody
		cmp.Compare(r.cost, o.cost),          // its owner said so
		cmp.Compare(o.Crowd, r.Crowd),        // others stand in its place
		newestFirst(r.ready, o.ready),        // it has the least to lose: caches, sessions
		cmp.Compare(o.restarts, r.restarts),  // it has trouble
		newestFirst(r.created, o.created),    // the youngest
	)
}

// ReadySince is since when a pod is ready; false: it isn't.
func ReadySince(p *corev1.Pod) (time.Time, bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

// Available reports whether a pod has been ready for long enough.
func Available(p *corev1.Pod, minReadySeconds int32, now time.Time) bool {
	since, ready := ReadySince(p)
	if !ready {
		return false
	}
	return minReadySeconds == 0 || !since.IsZero() && !now.Before(since.Add(time.Duration(minReadySeconds)*time.Second))
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// newestFirst sorts by time; none comes before any.
func newestFirst(a, b time.Time) int {
	if c := falseFirst(!a.IsZero(), !b.IsZero()); c != 0 {
		return c
	}
	return b.Compare(a)
}

func phases(p corev1.PodPhase) int {
	return slices.Index([]corev1.PodPhase{corev1.PodPending, corev1.PodUnknown, corev1.PodRunning}, p)
}

// cost is what the owner of a pod says that its deletion costs; 0 where that is no
// number, as in Kubernetes.
func cost(p *corev1.Pod) int32 {
	n, err := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

func restarts(p *corev1.Pod) int32 {
	var most int32
	for _, s := range p.Status.ContainerStatuses {
		most = max(most, s.RestartCount)
	}
	return most
}

// onNode counts the pods of each node.
func onNode(pods []*corev1.Pod) func(*corev1.Pod) int {
	crowds := map[string]int{}
	for _, p := range pods {
		if p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
			crowds[p.Spec.NodeName]++
		}
	}
	return func(p *corev1.Pod) int { return crowds[p.Spec.NodeName] }
}
