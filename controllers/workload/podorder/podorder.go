// Package podorder sorts the pods of a workload: for deletion, those whose loss matters least
// first, and for updates.
package podorder

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Options are the inputs of the order, apart from the pods.
type Options struct {
	Now time.Time
	// MinReadySeconds is how long a pod has to be ready to be available.
	MinReadySeconds int32
	// Crowd returns how many pods of the workload are in the same place as a pod. A higher
	// number makes its deletion more likely. nil counts the pods on its node that are not being
	// deleted.
	Crowd func(*corev1.Pod) int
}

// ForDeletion sorts pods in place: the first is deleted first. Pods of equal rank keep their
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

// Rank orders pods for deletion, by the keys of ReplicaSets.
type Rank struct {
	// Crowd is how many pods are in its place, including itself.
	Crowd int

	assigned, available bool
	phase               int
	cost, restarts      int32
	ready, created      time.Time
}

// RankOf returns the rank of a pod, with a Crowd of 1.
func RankOf(p *corev1.Pod, o Options) Rank {
	since, _ := ReadySince(p)
	return Rank{
		Crowd: 1, assigned: p.Spec.NodeName != "", available: Available(p, o.MinReadySeconds, o.Now), phase: phases(p.Status.Phase),
		cost: cost(p), restarts: restarts(p), ready: since, created: p.CreationTimestamp.Time,
	}
}

// Compare returns less than 0 if a pod of rank r is deleted before a pod of rank o. The first
// key that differs decides.
func (r Rank) Compare(o Rank) int {
	return cmp.Or(
		falseFirst(r.assigned, o.assigned),   // not scheduled first
		cmp.Compare(r.phase, o.phase),        // Pending, Unknown, Running
		falseFirst(r.available, o.available), // not available first
		cmp.Compare(r.cost, o.cost),          // lower deletion cost first
		cmp.Compare(o.Crowd, r.Crowd),        // more pods in the same place first
		newestFirst(r.ready, o.ready),        // shortest ready first: fewest caches and sessions
		cmp.Compare(o.restarts, r.restarts),  // more restarts first
		newestFirst(r.created, o.created),    // newest first
	)
}

// ReadySince returns since when a pod is ready; false if it is not ready.
func ReadySince(p *corev1.Pod) (time.Time, bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

// Available reports whether a pod has been ready for at least minReadySeconds.
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

// newestFirst sorts by time, newest first. A zero time comes before all others.
func newestFirst(a, b time.Time) int {
	if c := falseFirst(!a.IsZero(), !b.IsZero()); c != 0 {
		return c
	}
	return b.Compare(a)
}

func phases(p corev1.PodPhase) int {
	return slices.Index([]corev1.PodPhase{corev1.PodPending, corev1.PodUnknown, corev1.PodRunning}, p)
}

// cost returns the deletion cost in the annotation of a pod; 0 if it is not a number, as in
// Kubernetes.
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

// onNode counts the pods of each node that are not being deleted.
func onNode(pods []*corev1.Pod) func(*corev1.Pod) int {
	crowds := map[string]int{}
	for _, p := range pods {
		if p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
			crowds[p.Spec.NodeName]++
		}
	}
	return func(p *corev1.Pod) int { return crowds[p.Spec.NodeName] }
}
