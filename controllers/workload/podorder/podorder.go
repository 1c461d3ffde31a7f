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

// ForDeletion sorts pods: the first is deleted first. The keys are those of ReplicaSets,
// in which pods of the same rank keep their order.
func ForDeletion(pods []*corev1.Pod, o Options) {
	ranked := rank(pods, o)
	slices.SortStableFunc(ranked, func(a, b ranks) int {
		for _, key := range keys() {
			if c := key(a, b); c != 0 {
				return c
			}
		}
		return 0
	})
	for i, r := range ranked {
		pods[i] = r.pod
	}
}

// keys are what pods are sorted by, the most important first.
func keys() []func(a, b ranks) int {
	return []func(a, b ranks) int{
		func(a, b ranks) int { return falseFirst(a.assigned, b.assigned) },   // it never ran
		func(a, b ranks) int { return cmp.Compare(a.phase, b.phase) },        // Pending, Unknown, Running
		func(a, b ranks) int { return falseFirst(a.available, b.available) }, // it serves nobody
		func(a, b ranks) int { return cmp.Compare(a.cost, b.cost) },          // its owner said so
		func(a, b ranks) int { return cmp.Compare(b.crowd, a.crowd) },        // others stand in its place
		func(a, b ranks) int { return newestFirst(a.ready, b.ready) },        // it has the least to lose: caches, sessions
		func(a, b ranks) int { return cmp.Compare(b.restarts, a.restarts) },  // it has trouble
		func(a, b ranks) int { return newestFirst(a.created, b.created) },    // the youngest
	}
}

// ranks are a pod's values of the keys.
type ranks struct {
	pod                 *corev1.Pod
	assigned, available bool
	phase, crowd        int
	cost                int32
	restarts            int32
	ready, created      time.Time
}

func rank(pods []*corev1.Pod, o Options) []ranks {
	crowd := o.Crowd
	if crowd == nil {
		crowd = onNode(pods)
	}
	out := make([]ranks, len(pods))
	for i, p := range pods {
		since, _ := ReadySince(p)
		out[i] = ranks{
			pod: p, assigned: p.Spec.NodeName != "", available: Available(p, o.MinReadySeconds, o.Now),
			phase: phases(p.Status.Phase), crowd: crowd(p), cost: cost(p), restarts: restarts(p), ready: since, created: p.CreationTimestamp.Time,
		}
	}
	return out
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
