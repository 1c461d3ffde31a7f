package health

import (
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// TestUpdateStrategy has Deployments whose updates are divided.
func TestUpdateStrategy(t *testing.T) {
	const (
		counts = "availableReplicas: 6, replicas: 6, updatedReplicas: "
		status = "workloads.keelson.io/update-status: '"
	)
	for name, c := range map[string]struct {
		annotations, counts string
		want                v1alpha1.Health
		message             string
		waits               bool
	}{
		"no answer":       {"", counts + "6", v1alpha1.HealthProgressing, "'keelson workloads' has not seen the annotation workloads.keelson.io/update-strategy yet", false},
		"an old answer":   {status + `{"observedGeneration": 2}'`, counts + "6", v1alpha1.HealthProgressing, "'keelson workloads' has not seen generation 3 yet, but 2", false},
		"at rest":         {status + `{"observedGeneration": 3}'`, counts + "6", v1alpha1.HealthHealthy, "", false},
		"not begun":       {status + `{"observedGeneration": 3}'`, counts + "2", v1alpha1.HealthProgressing, "2 of 6 pods updated", false},
		"refused":         {status + `{"observedGeneration": 3, "refused": "sizes"}'`, counts + "6", v1alpha1.HealthDegraded, "SpecRefused: sizes", false},
		"updating":        {status + `{"observedGeneration": 3, "batches": {"batch": "1/2", "reason": "Updating", "message": "a"}}'`, counts + "2", v1alpha1.HealthProgressing, "batch 1/2: a", false},
		"waits":           {status + `{"observedGeneration": 3, "batches": {"batch": "1/2", "reason": "Approval", "message": "a"}}'`, counts + "2", v1alpha1.HealthProgressing, "batch 1/2: a", true},
		"waits, pods bad": {status + `{"observedGeneration": 3, "batches": {"batch": "1/2", "reason": "Approval", "message": "a"}}'`, "replicas: 6, availableReplicas: 5, updatedReplicas: 2", v1alpha1.HealthProgressing, "batch 1/2: a", false},
		"paused":          {status + `{"observedGeneration": 3, "batches": {"batch": "1/1", "reason": "Paused", "message": "a"}}'`, counts + "0", v1alpha1.HealthProgressing, "a", true},
		"failed":          {status + `{"observedGeneration": 3, "batches": {"batch": "2/2", "reason": "Failed", "message": "a"}}'`, counts + "2", v1alpha1.HealthDegraded, "batch 2/2: a", false},
		"at a partition":  {status + `{"observedGeneration": 3, "batches": {"batch": "1/1", "reason": "Partition", "message": "a"}}'`, counts + "2", v1alpha1.HealthHealthy, "a", false},
		"done":            {status + `{"observedGeneration": 3, "batches": {"batch": "2/2", "reason": "Done", "message": "a"}}'`, counts + "6", v1alpha1.HealthHealthy, "", false},
		"done, pods bad":  {status + `{"observedGeneration": 3, "batches": {"batch": "2/2", "reason": "Done", "message": "a"}}'`, "replicas: 6, availableReplicas: 5, updatedReplicas: 6", v1alpha1.HealthProgressing, "5 of 6 pods are available", false},
		"a pod missing":   {status + `{"observedGeneration": 3}'`, "replicas: 5, availableReplicas: 5, updatedReplicas: 5", v1alpha1.HealthProgressing, "5 of 6 pods exist", false},
		"another reason":  {status + `{"observedGeneration": 3, "batches": {"batch": "1/2", "reason": "Elsewhere", "message": "a"}}'`, counts + "2", v1alpha1.HealthUnknown, "batch 1/2: a (reason Elsewhere is not known)", false},
	} {
		var live map[string]any
		text := "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, generation: 3, annotations: {workloads.keelson.io/update-strategy: '{}', " + c.annotations +
			"}}, spec: {replicas: 6, paused: true}, status: {observedGeneration: 3, " + c.counts + "}}"
		if err := yaml.Unmarshal([]byte(text), &live); err != nil {
			t.Fatal(err)
		}
		numbers(live)
		got := Rules{}.Of(differ.ID{Group: "apps", Kind: "Deployment", Namespace: "shop", Name: "web"}, live)
		if got.Health != c.want || got.Message != c.message || got.Waits != c.waits {
			t.Errorf("%s: %s %q, waits %t", name, got.Health, got.Message, got.Waits)
		}
	}
}

// numbers makes whole numbers of what YAML reads, as the API server's objects have.
func numbers(m map[string]any) {
	for k, v := range m {
		switch v := v.(type) {
		case float64:
			m[k] = int64(v)
		case map[string]any:
			numbers(v)
		}
	}
}
