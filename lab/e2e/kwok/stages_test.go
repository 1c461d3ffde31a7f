package kwok_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
)

const gate corev1.PodConditionType = "example.com/gate"

// All other tests rely on this: kwok handles a changed image as a kubelet does. The container
// restarts, the other container does not, and the pod keeps its identity and node. Only the owner
// of a gate changes it.
func TestKubelet(t *testing.T) {
	n := begin(t)
	n.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  readinessGates: [{conditionType: %s}]
  containers: [{name: web, image: "registry.example:5000/web:v1"}, {name: beside, image: "beside:v1"}]
`, gate))
	r := n.follow()
	pod := func(now world) *corev1.Pod { return now[now.uids()["web"]] }
	condition := func(p *corev1.Pod, is corev1.PodConditionType) corev1.PodCondition {
		i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == is })
		if i < 0 {
			return corev1.PodCondition{}
		}
		return p.Status.Conditions[i]
	}
	turn := func(to corev1.ConditionStatus) {
		t.Helper()
		n.play("web", fmt.Sprintf(`{"conditions": [{"type": %q, "status": %q, "lastTransitionTime": "2020-01-02T03:04:05Z"}]}`, gate, to))
	}
	ready := func(is corev1.ConditionStatus) func(world) bool {
		return func(now world) bool {
			p := pod(now)
			return condition(p, corev1.PodReady).Status == is && condition(p, corev1.ContainersReady).Status == corev1.ConditionTrue
		}
	}

	r.until("running, with a readiness gate that is not set", ready(corev1.ConditionFalse))
	if c := condition(pod(r.last()), gate); c.Type != "" {
		t.Errorf("kwok has written the gate: %+v", c)
	}
	turn(corev1.ConditionTrue)
	r.until("ready, since its gate is open", ready(corev1.ConditionTrue))
	before := *pod(r.last())
	r.replay(func(world, watch.Event) {})

	n.Do("set", "image", "pod/web", "web=registry.example:5000/web:v2")
	r.until("running the new image", func(now world) bool {
		return ready(corev1.ConditionTrue)(now) && workloadtest.Containers(*pod(now))["web"].Image == "registry.example:5000/web:v2"
	})
	stopped := false
	r.replay(func(now world, _ watch.Event) {
		p := pod(now)
		if c := workloadtest.Containers(*p)["web"]; c.State.Waiting != nil {
			stopped = true
			if c.Ready || condition(p, corev1.PodReady).Status != corev1.ConditionFalse {
				t.Errorf("its container waits, and it is ready: %+v", p.Status.Conditions)
			}
		}
		if diff := cmp.Diff(condition(&before, gate), condition(p, gate)); diff != "" {
			t.Errorf("the gate: -before +after:\n%s", diff)
		}
	})
	if !stopped {
		t.Error("its container never stopped")
	}
	after := *pod(r.last())
	if after.UID != before.UID || after.Spec.NodeName != before.Spec.NodeName || after.Status.PodIP != before.Status.PodIP || after.Status.PodIP == "" {
		t.Errorf("%s on %s with %s; it was %s on %s with %s", after.UID, after.Spec.NodeName, after.Status.PodIP, before.UID, before.Spec.NodeName, before.Status.PodIP)
	}
	was, is := workloadtest.Containers(before), workloadtest.Containers(after)
	if diff := cmp.Diff(was["beside"], is["beside"]); diff != "" {
		t.Errorf("the container beside it: -before +after:\n%s", diff)
	}
	if c := is["web"]; c.RestartCount != was["web"].RestartCount+1 || c.ImageID == was["web"].ImageID || c.ContainerID == was["web"].ContainerID || !c.Ready ||
		c.LastTerminationState.Terminated == nil || c.LastTerminationState.Terminated.ContainerID != was["web"].ContainerID {
		t.Errorf("%+v; it was %+v", c, was["web"])
	}

	turn(corev1.ConditionFalse)
	r.until("not ready, since its gate is closed", ready(corev1.ConditionFalse))
	n.Do("set", "image", "pod/web", "web=registry.example:5000/web:v3")
	r.until("running, but not ready, since its gate stays closed", func(now world) bool {
		return ready(corev1.ConditionFalse)(now) && workloadtest.Containers(*pod(now))["web"].Image == "registry.example:5000/web:v3"
	})
	if c := condition(pod(r.last()), gate); c.Status != corev1.ConditionFalse {
		t.Errorf("kwok has opened the gate: %+v", c)
	}
	is = workloadtest.Containers(*pod(r.last()))
	turn(corev1.ConditionTrue)
	r.until("ready", ready(corev1.ConditionTrue))
	n.Do("annotate", "pod/web", "lab.keelson.io/ready=false")
	r.until("not ready, since its readiness probe fails", func(now world) bool {
		return condition(pod(now), corev1.ContainersReady).Status == corev1.ConditionFalse && condition(pod(now), corev1.PodReady).Status == corev1.ConditionFalse
	})
	n.Do("annotate", "pod/web", "lab.keelson.io/ready-")
	r.until("ready again", ready(corev1.ConditionTrue))
	if c := workloadtest.Containers(*pod(r.last()))["web"]; c.RestartCount != is["web"].RestartCount || c.ContainerID != is["web"].ContainerID {
		t.Errorf("a readiness probe that failed restarted it: %+v", c)
	}
}

// A pod of a completed Job is not ready.
func TestCompleted(t *testing.T) {
	n := begin(t)
	n.Apply(`
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    metadata: {labels: {app: once}}
    spec:
      restartPolicy: Never
      containers: [{name: once, image: "once:v1"}]
`)
	n.Do("wait", "job/once", "--for=condition=Complete", "--timeout=3m")
	for _, p := range n.Pods("once") {
		if c := workloadtest.Containers(p)["once"]; c.Ready || *c.Started || c.State.Terminated == nil || p.Status.Phase != corev1.PodSucceeded {
			t.Errorf("%+v", p.Status)
		}
	}
}
