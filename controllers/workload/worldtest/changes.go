package worldtest

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/controllers/workload/podclient"
)

// Changes simulates the pods of a workload and their changes, in place of [podclient.OwnedIndex].
type Changes struct {
	Pods map[types.UID]*corev1.Pod
	// Void makes the next Since return all pods.
	Void    bool
	changed map[types.UID]bool
}

// NewChanges returns Changes without pods.
func NewChanges() *Changes {
	return &Changes{Pods: map[types.UID]*corev1.Pod{}, changed: map[types.UID]bool{}}
}

// Is records an added or changed pod.
func (c *Changes) Is(p *corev1.Pod) { c.Pods[p.UID], c.changed[p.UID] = p, true }

// Gone records a deleted pod.
func (c *Changes) Gone(p *corev1.Pod) {
	delete(c.Pods, p.UID)
	c.changed[p.UID] = true
}

// Some draws a copy of a pod, which may be changed and passed to Is. It skips the case if there
// is no pod.
func (c *Changes) Some(rt *rapid.T) *corev1.Pod {
	if len(c.Pods) == 0 {
		rt.Skip("there is no pod")
	}
	return c.Pods[rapid.SampledFrom(slices.Sorted(maps.Keys(c.Pods))).Draw(rt, "pod")].DeepCopy()
}

// Since returns the changes since the last call. It ignores the mark.
func (c *Changes) Since(*podclient.Mark[*corev1.Pod]) podclient.Changes[*corev1.Pod] {
	defer func() { c.changed, c.Void = map[types.UID]bool{}, false }()
	if c.Void || len(c.Pods) == 0 {
		return podclient.Changes[*corev1.Pod]{Anew: true, Are: slices.Collect(maps.Values(c.Pods))}
	}
	var out podclient.Changes[*corev1.Pod]
	for uid := range c.changed {
		if p := c.Pods[uid]; p != nil {
			out.Are = append(out.Are, p)
		} else {
			out.Gone = append(out.Gone, uid)
		}
	}
	return out
}
