package podclient_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/expectations"
	"github.com/keelson-io/keelson/controllers/workload/podclient"
	"github.com/keelson-io/keelson/controllers/workload/reload"
)

// reloading returns a ready pod that has a reload ahead, with the result so far.
func reloading(result string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-0", UID: "1", Labels: map[string]string{v1beta1.LabelLifecycle: string(v1beta1.LifecycleUpdating)},
			Annotations: map[string]string{
				v1beta1.AnnotationReload: `{"http": {"port": 8080}}`, v1beta1.AnnotationConfigurationVersion: "b",
				v1beta1.AnnotationReloadState: `{"version": "b", "since": "2026-01-01T12:00:00Z"` + result + `}`,
			},
		},
		Spec: corev1.PodSpec{NodeName: "n", ReadinessGates: []corev1.PodReadinessGate{{ConditionType: v1beta1.InPlaceUpdateReady}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))},
		}},
	}
}

// A hook learns of a complete update from the lifecycle state Updated. The new image runs when the gate opens,
// and its container has not said yet that it has read the configuration.
func TestUpdatedIsAfterTheReload(t *testing.T) {
	t.Parallel()
	pod := reloading("")
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: v1beta1.InPlaceUpdateReady, Status: corev1.ConditionFalse})
	c := podclient.Client{
		API: fake.NewClientset(pod), Expect: expectations.New(time.Now), Reloads: reload.NewCaller(time.Now, nil), Events: &events.FakeRecorder{},
		Hooks: &v1beta1.Lifecycle{InPlaceUpdate: &v1beta1.LifecycleHook{LabelsHandler: map[string]string{"hook": "done"}}}, Now: time.Now(),
	}
	if _, _, err := c.Settle(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	got, err := c.API.CoreV1().Pods("shop").Get(t.Context(), "web-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if state := got.Labels[v1beta1.LabelLifecycle]; state != string(v1beta1.LifecycleUpdating) {
		t.Errorf("the lifecycle state is %s before the reload", state)
	}
}

// A pod serves while it reloads, so it is ready for long. minReadySeconds is how long an update waits for a
// configuration that breaks a pod a little later: it counts from the reload.
func TestAvailableAfterReload(t *testing.T) {
	t.Parallel()
	pod := reloading(`, "result": "Reloaded", "finished": "2026-01-01T12:00:05Z"`)
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: v1beta1.InPlaceUpdateReady, Status: corev1.ConditionTrue})
	delete(pod.Labels, v1beta1.LabelLifecycle)
	done := time.Date(2026, 1, 1, 12, 0, 5, 0, time.UTC)
	for after, want := range map[time.Duration]time.Duration{time.Second: 29 * time.Second, 30 * time.Second: 0} {
		available, left := (podclient.Client{Now: done.Add(after)}).Available(pod, 30)
		if available != (want == 0) || left != want {
			t.Errorf("%s after the reload: available %t, %s left", after, available, left)
		}
	}
	if available, _ := (podclient.Client{Now: done}).Available(pod, 0); !available {
		t.Error("without minReadySeconds, the pod is not available at once")
	}
}
