package daemonset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// tolerated returns the tolerations of a pod of a DaemonSet: those of the spec, and those of
// Kubernetes. Such pods run or monitor a node, and must stay on an unhealthy one.
// https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations
func tolerated(spec *corev1.PodSpec) []corev1.Toleration {
	taints := []corev1.Taint{
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodePIDPressure, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
	}
	if spec.HostNetwork {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule})
	}
	out := slices.Clone(spec.Tolerations)
	for _, t := range taints {
		add := corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists, Effect: t.Effect}
		if !slices.Contains(out, add) {
			out = append(out, add)
		}
	}
	return out
}

// fit decides which nodes a template is for.
type fit struct {
	node        string // the only node; "" means any
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
}

func newFit(template *corev1.PodTemplateSpec) fit {
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: template.Spec.NodeSelector, Affinity: template.Spec.Affinity}}
	return fit{template.Spec.NodeName, nodeaffinity.GetRequiredNodeAffinity(pod), tolerated(&template.Spec)}
}

// eligible reports whether a node should run a pod, and whether an existing pod may stay. A
// taint NoSchedule excludes new pods, but existing ones stay.
func (f fit) eligible(node *corev1.Node) (runs, stays bool) {
	if f.node != "" && f.node != node.Name {
		return false, false
	}
	if fits, err := f.affinity.Match(node); err != nil || !fits {
		return false, false
	}
	untolerated := func(effects ...corev1.TaintEffect) bool {
		_, found := schedulingcorev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, f.tolerations, func(t *corev1.Taint) bool { return slices.Contains(effects, t.Effect) }, false)
		return found
	}
	stays = !untolerated(corev1.TaintEffectNoExecute)
	return stays && !untolerated(corev1.TaintEffectNoSchedule), stays
}

// bound returns an affinity that allows only one node. The scheduler still checks for room, and
// kubelets see no pod that is not scheduled.
func bound(affinity *corev1.Affinity, node string) *corev1.Affinity {
	only := corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
	out := affinity.DeepCopy()
	if out == nil {
		out = &corev1.Affinity{}
	}
	if out.NodeAffinity == nil {
		out.NodeAffinity = &corev1.NodeAffinity{}
	}
	// eligible has checked the node affinity of the template already, and here the node is
	// selected by name.
	out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{only}}},
	}
	return out
}

// nodeOf returns the node that a pod is on, or bound to by its affinity; "" if there is none.
func nodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, r := range term.MatchFields {
			if r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 {
				return r.Values[0]
			}
		}
	}
	return ""
}
