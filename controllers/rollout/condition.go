package rollout

import (
	"github.com/keelson-io/keelson/differ/expr"
	"github.com/keelson-io/keelson/registry"
)

// DeliveryFacts are the fields of a Delivery's status that conditions of checks can read.
type DeliveryFacts struct{ Version, Sync, Health, Message string }

// Conditions compiles the conditions of CEL checks. It is safe for concurrent use.
type Conditions struct{ language expr.Conditions }

// NewConditions returns a compiler. The CEL environment is built at the first condition.
func NewConditions() Conditions { return Conditions{expr.ConditionsOver("delivery")} }

// Condition is a compiled condition.
type Condition struct{ is expr.Condition }

// Compile compiles a condition. The error names line and column in the text.
func (c Conditions) Compile(text string) (Condition, error) {
	is, err := c.language.Compile("cel", text)
	return Condition{is}, err
}

// Holds evaluates the condition for a component on a cluster. The error says in one line why there
// is no result.
func (c Condition) Holds(cluster *registry.Cluster, d DeliveryFacts) (bool, error) {
	labels := cluster.Spec.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	return c.is.HoldsOver(map[string]any{
		"cluster":  map[string]any{"name": cluster.Name, "labels": labels},
		"delivery": map[string]any{"version": d.Version, "sync": d.Sync, "health": d.Health, "message": d.Message},
	})
}
