package differ

// Conditions compiles conditions in CEL: the functions and the bounds of danger
// rules, over variables of their own and cluster. It is safe for concurrent use.
type Conditions struct{ env environment }

// NewConditions makes the language of conditions that are about one object of a
// cluster, of which they read cluster.labels; it is set up at the first condition.
func NewConditions() Conditions { return ConditionsOver("object") }

// ConditionsOver makes that of conditions over other variables; see
// [Condition.HoldsOver].
func ConditionsOver(variables ...string) Conditions {
	return Conditions{env: environmentOf(variables...)}
}

// Condition is one of them. The zero Condition is no condition: see [Condition.Set].
type Condition struct{ is *condition }

// Compile reads a condition that stands in a field of git. The error names the
// field, line and column. Of an empty text comes the zero Condition.
func (c Conditions) Compile(field, text string) (Condition, error) {
	out := Condition{is: newCondition(c.env, field, text)}
	if out.is == nil {
		return out, nil
	}
	_, err := out.is.compile()
	return out, err
}

// Set reports whether there is a condition.
func (c Condition) Set() bool { return c.is != nil }

// Holds asks the condition about an object, which is not modified, on a cluster
// with labels. The error says in a line of at most a few hundred bytes why it
// has no answer. Of a Secret it sees no data.
func (c Condition) Holds(object map[string]any, labels map[string]string) (bool, error) {
	if labels == nil {
		labels = map[string]string{}
	}
	return c.HoldsOver(map[string]any{
		"object": withoutData(object), "cluster": map[string]any{"labels": labels},
	})
}

// HoldsOver asks the condition about values of its variables, and of cluster: maps,
// lists, strings, numbers, booleans and nil. The error is as that of Holds.
func (c Condition) HoldsOver(facts map[string]any) (bool, error) {
	yes, _, err := c.is.holds(facts)
	return yes, err
}

// withoutData keeps the data of a Secret from what shows in an error.
func withoutData(object map[string]any) map[string]any {
	if object["kind"] != "Secret" || object["apiVersion"] != "v1" {
		return object
	}
	out := make(map[string]any, len(object))
	for name, value := range object {
		if name != "data" && name != "stringData" {
			out[name] = value
		}
	}
	return out
}
