package lifecycle

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// holder is a component that keeps a pod from being ready. The message of the condition
// KruisePodReady is a JSON list of holders, in the format of OpenKruise.
type holder struct {
	UserAgent string `json:"userAgent"`
	Key       string `json:"key"`
}

// agent is the user agent of lifecycle hooks in the list. Other agents may keep a pod from being
// ready as well, also after no hook does.
const agent = "Lifecycle"

// AddGate adds the readiness gate KruisePodReady to the spec of a pod, if a hook has
// MarkPodNotReady. A pod cannot get a gate later, and an unneeded gate would cost a write.
func AddGate(spec *corev1.PodSpec, hooks *v1beta1.Lifecycle) {
	if hooks == nil || hasGate(spec) {
		return
	}
	for _, h := range []*v1beta1.LifecycleHook{hooks.PreDelete, hooks.InPlaceUpdate} {
		if h != nil && h.MarkPodNotReady {
			spec.ReadinessGates = append(spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: v1beta1.KruisePodReady})
			return
		}
	}
}

// Open reports whether the gate is open, or there is no gate. The kubelet may not have seen the
// condition yet.
func Open(pod *corev1.Pod) bool {
	c := gateOf(pod)
	return !hasGate(&pod.Spec) || c != nil && c.Status == corev1.ConditionTrue
}

// Gate returns the condition KruisePodReady that a verdict asks for. It returns nil if the
// condition needs no change, or the pod has no such gate.
func Gate(pod *corev1.Pod, v Verdict, now time.Time) *corev1.PodCondition {
	if !hasGate(&pod.Spec) {
		return nil
	}
	is := gateOf(pod)
	var holders []holder
	if is != nil && is.Message != "" && json.Unmarshal([]byte(is.Message), &holders) != nil {
		holders = []holder{{UserAgent: is.Message}} // another format: keep it as a holder
	}
	ours := func(h holder) bool { return h.UserAgent == agent }
	switch held := slices.ContainsFunc(holders, ours); {
	case v.NotReady && !held:
		holders = append(holders, holder{agent, string(v.State)})
	case !v.NotReady:
		holders = slices.DeleteFunc(holders, ours)
	}
	want := &corev1.PodCondition{Type: v1beta1.KruisePodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}
	if is != nil && is.Message != "" {
		want.Message = "[]" // a patch without a message would keep the old one
	}
	if len(holders) > 0 {
		text, _ := json.Marshal(holders) // it has only strings, so it never fails
		want.Status, want.Message = corev1.ConditionFalse, string(text)
	}
	if is != nil && is.Status == want.Status {
		if want.LastTransitionTime = is.LastTransitionTime; len(holders) == 0 || is.Message == want.Message {
			return nil
		}
	}
	return want
}

func hasGate(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == v1beta1.KruisePodReady })
}

func gateOf(pod *corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1beta1.KruisePodReady })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}
