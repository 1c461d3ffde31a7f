package expr

// Conditions compiles conditions in CEL: with the functions and bounds of danger rules, but with
// their own variables, and cluster. It is safe for concurrent use.
type Conditions struct{ env Environment }

// NewConditions returns the compiler of conditions on one object of a cluster, which also read
// cluster.labels. CEL is set up at the first condition.
func NewConditions() Conditions { return ConditionsOver("object") }

// ConditionsOver returns the compiler of conditions on other variables; see [Condition.HoldsOver].
func ConditionsOver(variables ...string) Conditions {
	return Conditions{env: environmentOf(variables...)}
}

// Condition is a compiled condition. The zero Condition is no condition: see [Condition.Set].
type Condition struct{ is *Expression }

// Compile compiles the condition in a field of git. The error names the field, and a syntax error
// its line and column. An empty text gives the zero Condition.
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

// Holds evaluates the condition for an object on a cluster with labels. The object is not modified,
// and the condition does not see the data of a Secret. The error says in one line of at most a few
// hundred bytes why there is no result.
func (c Condition) Holds(object map[string]any, labels map[string]string) (bool, error) {
	if labels == nil {
		labels = map[string]string{}
	}
	return c.HoldsOver(map[string]any{
		"object": withoutData(object), "cluster": map[string]any{"labels": labels},
	})
}

// HoldsOver evaluates the condition for values of its variables, and of cluster: maps, lists,
// strings, numbers, booleans and nil. The error is like that of Holds.
func (c Condition) HoldsOver(facts map[string]any) (bool, error) {
	yes, _, err := c.is.Holds(facts)
	return yes, err
}

// withoutData removes the data of a Secret, which an error could quote.
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
