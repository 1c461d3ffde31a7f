package rollout_test

import (
	"strings"
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
)

// TestConditions: what a check reads of cluster and Delivery, and that what has no
// answer is neither yes nor no.
func TestConditions(t *testing.T) {
	t.Parallel()
	cluster := &registry.Cluster{Name: "prod-eu-01", Spec: v1alpha1.Cluster{Labels: map[string]string{"region": "eu"}}}
	facts := rollout.DeliveryFacts{Version: "v1.12.1", Sync: "Synced", Health: "Healthy", Message: "all well"}
	conditions := rollout.NewConditions()
	for name, c := range map[string]struct {
		why, text string
		holds     bool
		wrong     string // in the error
	}{
		"Delivery": {why: "Every field is there.", holds: true, text: `delivery.version == "v1.12.1" && delivery.sync == "Synced" && delivery.health == "Healthy" && delivery.message.contains("well")`},
		"Cluster":  {why: "So are name and labels.", holds: true, text: `cluster.name.startsWith("prod-") && cluster.labels.region == "eu"`},
		"No":       {why: "A condition may say no.", text: `cluster.labels.region == "us"`},
		"NoLabel":  {why: "A label that is not there is no answer.", text: `cluster.labels.zone == "a"`, wrong: "zone"},
		"Syntax":   {why: "What is no CEL is found when it is compiled.", text: `delivery.health = "Healthy"`, wrong: "line 1, column 17"},
		"NoBool":   {why: "A text is no answer.", text: `"yes"`, wrong: "string"},
		"Object":   {why: "There is no object here.", text: `object.kind == "Pod"`, wrong: "object"},
	} {
		condition, err := conditions.Compile(c.text)
		holds := false
		if err == nil {
			holds, err = condition.Holds(cluster, facts)
		}
		switch {
		case holds != c.holds, (err != nil) != (c.wrong != ""):
			t.Errorf("%s: %s It holds: %t, %v", name, c.why, holds, err)
		case err != nil && !strings.Contains(err.Error(), c.wrong):
			t.Errorf("%s: %v does not say %q", name, err, c.wrong)
		}
	}
}
