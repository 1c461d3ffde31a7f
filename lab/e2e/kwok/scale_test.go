package kwok_test

import (
	"encoding/json"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"

	"github.com/keelson-io/keelson/lab/audit"
)

// A Kubernetes autoscaler keeps a CloneSet within its bounds, by the scale subresource. It has no
// metrics here, so only the bounds have an effect.
func TestAutoscaler(t *testing.T) {
	n := begin(t)
	n.Apply(cloneSet("replicas: 2", ""))
	n.Settled("web", 2, 2)
	mark, err := audit.End(n.log)
	n.Check(err)
	n.Do("autoscale", "clonesets.apps.kruise.io", "web", "--min=3", "--max=5")
	n.Settled("web", 3, 3)
	n.Do("scale", "clonesets/web", "--replicas=9")
	n.Settled("web", 5, 5)

	events, _, err := audit.Read(n.log, mark)
	n.Check(err)
	scaled := 0
	for _, e := range events {
		if e.Resource.Namespace == n.Namespace && e.Resource.Resource == "clonesets" && e.Resource.Subresource == "scale" && e.Write() &&
			e.User == "system:serviceaccount:kube-system:horizontal-pod-autoscaler" && e.Code == 200 {
			scaled++
		}
	}
	if scaled != 2 {
		t.Errorf("the autoscaler has scaled it %d times, and not twice", scaled)
	}
	// Check the values that the autoscaler reads.
	var scale autoscalingv1.Scale
	text := n.Do("get", "clonesets/web", "--subresource=scale", "-o", "json")
	if err := json.Unmarshal([]byte(text), &scale); err != nil || scale.Spec.Replicas != 5 || scale.Status.Replicas != 5 || scale.Status.Selector != "app=web" {
		t.Errorf("%v: %s", err, text)
	}
}
