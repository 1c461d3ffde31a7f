package lifecycle_test

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/lifecycle"
)

const (
	preparingNormal = v1beta1.LifecyclePreparingNormal
	normal          = v1beta1.LifecycleNormal
	preparingUpdate = v1beta1.LifecyclePreparingUpdate
	updating        = v1beta1.LifecycleUpdating
	updated         = v1beta1.LifecycleUpdated
	preparingDelete = v1beta1.LifecyclePreparingDelete
)

// pod with a state, and the hook by label and finalizer as far as it is on it.
func pod(state v1beta1.LifecycleState, label, finalizer bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", Labels: map[string]string{}}, Spec: corev1.PodSpec{NodeName: "n"}}
	if state != "" {
		p.Labels[v1beta1.LabelLifecycle] = string(state)
	}
	if label {
		p.Labels["example.com/block"] = "true"
	}
	if finalizer {
		p.Finalizers = []string{"example.com/held", "example.com/other"}
	}
	return p
}

// unscheduledIn is a pod in a state and without a node.
func unscheduledIn(state v1beta1.LifecycleState) *corev1.Pod {
	p := pod(state, false, false)
	p.Spec.NodeName = ""
	return p
}

// A pod goes on when its hooks let it: each row is a pod that is to be kept, updated or
// deleted, and what becomes of it.
func TestJudge(t *testing.T) {
	t.Parallel()
	hook := func(notReady bool) *v1beta1.LifecycleHook {
		return &v1beta1.LifecycleHook{LabelsHandler: map[string]string{"example.com/block": "true"}, FinalizersHandler: []string{"example.com/held"}, MarkPodNotReady: notReady}
	}
	update, remove, birth := &v1beta1.Lifecycle{InPlaceUpdate: hook(true)}, &v1beta1.Lifecycle{PreDelete: hook(false)}, &v1beta1.Lifecycle{PreNormal: hook(false)}
	final := &v1beta1.Lifecycle{PreDelete: hook(true)}
	for name, c := range map[string]struct {
		why    string
		pod    *corev1.Pod
		hooks  *v1beta1.Lifecycle
		intent lifecycle.Action
		done   bool // the update in place
		want   lifecycle.Verdict
	}{
		"NoHooks":         {"Without hooks the pod gets no state.", pod("", false, false), nil, lifecycle.Keep, false, lifecycle.Verdict{}},
		"NoHooksUpdate":   {"Without hooks the update needs no consent.", pod("", false, false), nil, lifecycle.Update, false, lifecycle.Verdict{Go: true}},
		"NoHooksDelete":   {"Without hooks the deletion needs no consent.", pod("", true, true), nil, lifecycle.Delete, false, lifecycle.Verdict{Go: true}},
		"EachHasState":    {"The workload gives each of its pods a state.", pod("", false, false), &v1beta1.Lifecycle{}, lifecycle.Keep, false, lifecycle.Verdict{State: normal}},
		"UnscheduledBack": {"Nor is one whose deletion is called back.", unscheduledIn(preparingDelete), &v1beta1.Lifecycle{}, lifecycle.Keep, false, lifecycle.Verdict{State: preparingNormal}},
		"BornNormal":      {"A pod of a DaemonSet is Normal from birth.", unscheduledIn(normal), remove, lifecycle.Keep, false, lifecycle.Verdict{State: normal}},
		"Unscheduled":     {"A pod without a node is not normal yet.", unscheduledIn(preparingNormal), &v1beta1.Lifecycle{}, lifecycle.Keep, false, lifecycle.Verdict{State: preparingNormal}},
		"HooksRemoved":    {"The hook that the pod waited for was removed.", pod(preparingNormal, false, false), nil, lifecycle.Keep, false, lifecycle.Verdict{State: normal}},
		"ServedBefore":    {"A hook that comes later takes no pod out of service.", pod("", false, false), birth, lifecycle.Keep, false, lifecycle.Verdict{State: normal}},
		"Unborn":          {"The pod has only one of the two handlers of the hook.", pod(preparingNormal, true, false), birth, lifecycle.Keep, false, lifecycle.Verdict{State: preparingNormal}},
		"Born":            {"The pod has all handlers of the hook.", pod(preparingNormal, true, true), birth, lifecycle.Keep, false, lifecycle.Verdict{State: normal}},
		"UnbornUpdate":    {"The pod does not serve yet.", pod(preparingNormal, false, false), birth, lifecycle.Update, false, lifecycle.Verdict{State: preparingNormal, Go: true}},
		"Held":            {"One label holds the update back.", pod(normal, true, false), update, lifecycle.Update, false, lifecycle.Verdict{State: preparingUpdate, NotReady: true}},
		"HeldByOther":     {"A finalizer holds the update back too.", pod(preparingUpdate, false, true), update, lifecycle.Update, false, lifecycle.Verdict{State: preparingUpdate, NotReady: true}},
		"LetGo":           {"The label and the finalizer are both removed.", pod(preparingUpdate, false, false), update, lifecycle.Update, false, lifecycle.Verdict{State: updating, Go: true, NotReady: true}},
		"HookedAgain":     {"An update that has begun continues.", pod(updating, true, true), update, lifecycle.Update, false, lifecycle.Verdict{State: updating, Go: true, NotReady: true}},
		"NoUpdateHook":    {"Only the deletion has a hook.", pod(normal, true, true), remove, lifecycle.Update, false, lifecycle.Verdict{State: normal, Go: true}},
		"NotItsTurn":      {"The pod is no longer to be updated.", pod(preparingUpdate, true, true), update, lifecycle.Keep, false, lifecycle.Verdict{State: normal}},
		"Updating":        {"The containers don't run the new version yet.", pod(updating, false, false), update, lifecycle.Keep, false, lifecycle.Verdict{State: updating, NotReady: true}},
		"Updated":         {"The handlers of the hook have to be restored first.", pod(updating, false, true), update, lifecycle.Keep, true, lifecycle.Verdict{State: updated}},
		"StillUpdated":    {"The handlers are not restored yet.", pod(updated, false, false), update, lifecycle.Keep, true, lifecycle.Verdict{State: updated}},
		"BackAtOnce":      {"The handlers were never removed.", pod(updating, true, true), update, lifecycle.Keep, true, lifecycle.Verdict{State: normal}},
		"Back":            {"The handlers are restored.", pod(updated, true, true), update, lifecycle.Keep, true, lifecycle.Verdict{State: normal}},
		"DeleteHeld":      {"One label holds the deletion back.", pod(normal, true, false), remove, lifecycle.Delete, false, lifecycle.Verdict{State: preparingDelete}},
		"DeleteLetGo":     {"No handler holds the deletion back.", pod(preparingDelete, false, false), remove, lifecycle.Delete, false, lifecycle.Verdict{State: preparingDelete, Go: true}},
		"OtherValue":      {"A label with another value is another label.", func() *corev1.Pod { p := pod(normal, false, false); p.Labels["example.com/block"] = "false"; return p }(), remove, lifecycle.Delete, false, lifecycle.Verdict{State: normal, Go: true}},
		"DeleteNotReady":  {"The pod is taken out of its Services first.", pod(normal, true, false), final, lifecycle.Delete, false, lifecycle.Verdict{State: preparingDelete, NotReady: true}},
		"CalledBack":      {"The pod is wanted again.", pod(preparingDelete, true, true), remove, lifecycle.Keep, false, lifecycle.Verdict{State: normal}},
		"NotCalledBack":   {"The pod is already out of its Services.", pod(preparingDelete, true, true), final, lifecycle.Keep, false, lifecycle.Verdict{State: preparingDelete, NotReady: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := lifecycle.Judge(c.pod, c.hooks, c.intent, c.done); got != c.want {
				t.Errorf("%s %+v, want %+v", c.why, got, c.want)
			}
		})
	}
}

// Only a pod in state Normal, or without a state, may serve.
func TestNormal(t *testing.T) {
	t.Parallel()
	for state, want := range map[v1beta1.LifecycleState]bool{
		"": true, normal: true, preparingNormal: false, preparingUpdate: false, updating: false, updated: false, preparingDelete: false,
	} {
		if lifecycle.Normal(pod(state, false, false)) != want {
			t.Errorf("%q is normal: %v", state, !want)
		}
	}
}

// The state is noted with its time, and for this pod alone: one of the same name that
// came after it is refused by its uid.
func TestPatch(t *testing.T) {
	t.Parallel()
	patch, err := lifecycle.Patch(pod(normal, false, false), updating, time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)))
	var got corev1.Pod
	if err != nil || json.Unmarshal(patch, &got) != nil {
		t.Fatalf("%s, %v", patch, err)
	}
	if got.UID != "u" || got.Labels[v1beta1.LabelLifecycle] != "Updating" || got.Annotations[v1beta1.AnnotationLifecycleSince] != "2026-01-02T02:04:05Z" {
		t.Errorf("%s", patch)
	}
}
