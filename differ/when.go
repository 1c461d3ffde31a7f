package differ

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
)

const (
	// whenLength bounds a condition, in bytes: the longest built-in one is far
	// below.
	whenLength = 2048
	// whenCost bounds the evaluation of a condition, in CEL's units: about a
	// millisecond. An API server allows a hundred times as much a policy.
	whenCost = 10_000
)

var (
	errWhenLength = errors.New("the condition is too long")
	errWhenType   = errors.New("the condition is no true or false")
)

// environment is what conditions may speak of. It is made when the first
// condition is compiled: most comparisons need none.
type environment func() (*cel.Env, error)

func newEnvironment() environment { return sync.OnceValues(makeEnvironment) }

func makeEnvironment() (*cel.Env, error) {
	env, err := cel.NewEnv(
		cel.Variable("old", cel.DynType),
		cel.Variable("new", cel.DynType),
		cel.Variable("recorded", cel.DynType),
		cel.Variable("object", cel.DynType),
		cel.Variable("live", cel.DynType),
		cel.Variable("cluster", cel.MapType(cel.StringType, cel.DynType)),
		cel.Function("quantity", cel.Overload("quantity_dyn", []*cel.Type{cel.DynType}, cel.DoubleType, cel.UnaryBinding(amount))),
		cel.CrossTypeNumericComparisons(true),
		cel.OptionalTypes(),
		ext.Strings(),
		ext.Sets(),
	)
	if err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	return env, nil
}

// amount is a quantity as a number.
func amount(v ref.Val) ref.Val {
	q, ok := quantity(v.Value())
	if !ok {
		return types.NewErr("%v is no quantity", v.Value())
	}
	return types.Double(q.AsApproximateFloat64())
}

// condition is the when of a rule; nil is always true.
type condition struct {
	compile func() (cel.Program, error)
}

// newCondition reads a condition when it is first needed.
func newCondition(env environment, when string) *condition {
	if when == "" {
		return nil
	}
	return &condition{compile: sync.OnceValues(func() (cel.Program, error) { return compileWhen(env, when) })}
}

// compileWhen returns an error that tells line and column.
func compileWhen(env environment, when string) (cel.Program, error) {
	if len(when) > whenLength {
		return nil, fmt.Errorf("when: %w: %d bytes, and %d are allowed", errWhenLength, len(when), whenLength)
	}
	e, err := env()
	if err != nil {
		return nil, err
	}
	ast, issues := e.Compile(when)
	if issues != nil && issues.Err() != nil {
		first := issues.Errors()[0]
		return nil, fmt.Errorf("when: line %d, column %d: %s", first.Location.Line(), first.Location.Column()+1, first.Message)
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("when: %w: it is of type %s", errWhenType, t)
	}
	program, err := e.Program(ast, cel.CostLimit(whenCost))
	if err != nil {
		return nil, fmt.Errorf("when: %w", err)
	}
	return program, nil
}

// holds evaluates the condition. What it reads is not modified.
func (c *condition) holds(facts map[string]any) (bool, error) {
	if c == nil {
		return true, nil
	}
	program, err := c.compile()
	if err != nil {
		return false, err
	}
	out, _, err := program.Eval(facts)
	if err != nil {
		return false, fmt.Errorf("when: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	yes, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("when: %w: it is of type %s", errWhenType, out.Type().TypeName())
	}
	return yes, nil
}

// values are those that a condition is asked about, nil where absent.
type values struct{ recorded, old, target any }

// facts are the variables of a condition for one change.
func (c *comparison) facts(v values) map[string]any {
	if c.known == nil {
		live, object := c.mask.of(c.live), c.mask.of(c.target)
		if object == nil {
			object = live
		}
		labels := c.policy.Cluster
		if labels == nil {
			labels = map[string]string{}
		}
		c.known = map[string]any{
			"object": orNull(object), "live": orNull(live), "cluster": map[string]any{"labels": labels},
		}
	}
	facts := make(map[string]any, len(c.known)+3)
	maps.Copy(facts, c.known)
	facts["recorded"], facts["old"], facts["new"] = v.recorded, v.old, v.target
	return facts
}

// orNull keeps a nil map from passing for an empty one.
func orNull(object map[string]any) any {
	if object == nil {
		return nil
	}
	return object
}

// changes are the values that a rule's condition is asked about. Where the path
// lies inside a value that only changes as a whole, what is new there has no old
// value, and what is gone no new one: items of such a list have no identity.
func changes(w *row, inside pattern) []values {
	if len(inside) == 0 {
		return []values{{recorded: w.r.value, old: w.l.value, target: w.t.value}}
	}
	var out []values
	live, target := inside.collect(w.l.value), inside.collect(w.t.value)
	for _, v := range notIn(live, target) {
		out = append(out, values{target: v})
	}
	for _, v := range notIn(target, live) {
		out = append(out, values{old: v})
	}
	return out
}

// notIn returns the values of a list that another one does not have.
func notIn(other, list []any) []any {
	has := make(map[string]bool, len(other))
	for _, v := range other {
		has[string(appendKey(nil, v))] = true
	}
	var out []any
	for _, v := range list {
		if !has[string(appendKey(nil, v))] {
			out = append(out, v)
		}
	}
	return out
}
