package differ

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	celenv "cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
)

const (
	// whenLength bounds a condition, in bytes. The longest built-in condition is far below.
	whenLength = 2048
	// whenCost bounds the evaluation of a condition, in CEL's units: about a millisecond. An API
	// server allows a hundred times as much for each policy.
	whenCost = 10_000
	// builtInCost bounds a built-in condition. Conditions that read the component's other objects
	// take long for a large component, and are written with their cost in mind.
	builtInCost = 50 * whenCost
	// whenDearest bounds the cost of one evaluation, as a multiple of its limit. The call that
	// exceeds the limit may cost as much as matchSteps allows. CEL counts more where a call was
	// refused.
	whenDearest = 10
	// matchSteps bounds one match of a regular expression: some milliseconds.
	matchSteps = 1_000_000
	// whenError bounds the text of an error or message, in bytes: the text may quote a value.
	whenError = 200
)

var (
	errWhenLength = errors.New("the condition is too long")
	errWhenType   = errors.New("the condition is no true or false")
	errTextType   = errors.New("the message is no string")
)

func typeError(wanted *cel.Type) error {
	if wanted.IsExactType(cel.StringType) {
		return errTextType
	}
	return errWhenType
}

// environment returns the variables and functions of conditions. It is made when the first
// condition is compiled: most comparisons need none.
type environment func() (*cel.Env, error)

// newEnvironment returns the environment of danger rules.
func newEnvironment() environment {
	return environmentOf("old", "new", "recorded", "object", "live", "status", "objects", "nodes")
}

// environmentOf returns an environment with the given variables, and cluster.
func environmentOf(variables ...string) environment {
	return sync.OnceValues(func() (*cel.Env, error) { return makeEnvironment(variables) })
}

func makeEnvironment(variables []string) (*cel.Env, error) {
	standard := celenv.NewLibrarySubset().AddExcludedFunctions(celenv.NewFunction(overloads.Matches))
	options := []cel.EnvOption{
		cel.StdLib(cel.StdLibSubset(standard)),
		cel.Variable("cluster", cel.MapType(cel.StringType, cel.DynType)),
		cel.Function("quantity", cel.Overload("quantity_dyn", []*cel.Type{cel.DynType}, cel.DoubleType, cel.UnaryBinding(amount))),
		cel.Function(
			overloads.Matches,
			cel.Overload(overloads.Matches, []*cel.Type{cel.StringType, cel.StringType}, cel.BoolType),
			cel.MemberOverload(overloads.MatchesString, []*cel.Type{cel.StringType, cel.StringType}, cel.BoolType),
			cel.SingletonBinaryBinding(matches),
		),
		nodesFunction(),
		cel.CrossTypeNumericComparisons(true),
		cel.OptionalTypes(),
		ext.Strings(),
	}
	for _, name := range variables {
		options = append(options, cel.Variable(name, cel.DynType))
	}
	made, err := cel.NewCustomEnv(options...)
	if err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	return made, nil
}

// multiplying returns functions whose result or work is the product of their arguments. CEL counts
// a call's cost after the call, and one replace of a text by itself can exhaust the memory.
// Conditions can use exists, all and in instead.
func multiplying() []string { return []string{"replace", "join", "format"} }

// altering returns functions that make another text of a part of a text. They are refused in a
// message: a part of a secret, or a secret in capitals, would not be recognised.
func altering() []string {
	return []string{"charAt", "lowerAscii", "reverse", "split", "substring", "trim", "upperAscii"}
}

// checkCalls returns an error if an expression calls a refused function.
func checkCalls(checked *cel.Ast, refused []string) error {
	var err error
	native := checked.NativeRep()
	ast.PreOrderVisit(native.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.CallKind && slices.Contains(refused, e.AsCall().FunctionName()) && err == nil {
			at := native.SourceInfo().GetStartLocation(e.ID())
			err = fmt.Errorf("line %d, column %d: there is no function %s here", at.Line(), at.Column()+1, e.AsCall().FunctionName())
		}
	}))
	return err
}

// matches replaces CEL's matches, and checks the cost before the match instead of after: a regular
// expression may be as long as the text of an object.
func matches(text, pattern ref.Val) ref.Val {
	t, ok := text.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(text)
	}
	p, ok := pattern.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(pattern)
	}
	if len(p) > whenLength {
		return types.NewErr("a regular expression of %d bytes: %d are allowed", len(p), whenLength)
	}
	parsed, err := syntax.Parse(string(p), syntax.Perl)
	if err != nil {
		return types.WrapErr(err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return types.WrapErr(err)
	}
	if steps := len(program.Inst) * len(t); steps > matchSteps {
		return types.NewErr("a regular expression takes up to %d steps on a text of %d bytes: %d are allowed", steps, len(t), matchSteps)
	}
	expression, err := regexp.Compile(string(p))
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Bool(expression.MatchString(string(t)))
}

// amount returns a quantity as a number.
func amount(v ref.Val) ref.Val {
	switch v.(type) { // a list may be long, so it is not printed
	case types.String, types.Int, types.Uint, types.Double:
	default:
		return types.NewErr("a value of type %s is no quantity", v.Type().TypeName())
	}
	q, ok := quantity(v.Value())
	if !ok {
		return types.NewErr("%v is no quantity", v.Value())
	}
	return types.Double(q.AsApproximateFloat64())
}

// condition is an expression of a rule: its when, which is true or false, or its message. A nil
// condition counts as true, and a nil message is empty.
type condition struct {
	field   string // for errors
	compile func() (compiled, error)
}

// compiled is an expression that was parsed and checked.
type compiled struct {
	program cel.Program
	limit   uint64 // of its cost
	reads   map[string]bool
}

// expression is the source of a condition.
type expression struct {
	field, text string
	is          *cel.Type
	limit       uint64 // of its cost
	// nodesLimit is the limit of an expression that reads nodes: a cluster may have thousands.
	nodesLimit uint64
}

// newCondition returns a condition that is compiled when it is first needed.
func newCondition(env environment, field, text string) *condition {
	return newExpression(env, expression{field: field, text: text, is: cel.BoolType, limit: whenCost, nodesLimit: whenCost})
}

// newWhen returns the condition of a danger rule.
func newWhen(env environment, text string, limit uint64) *condition {
	return newExpression(env, expression{field: "when", text: text, is: cel.BoolType, limit: limit, nodesLimit: builtInCost})
}

// newMessage returns the message of a danger rule.
func newMessage(env environment, text string) *condition {
	return newExpression(env, expression{field: "messageExpression", text: text, is: cel.StringType, limit: whenCost, nodesLimit: builtInCost})
}

func newExpression(env environment, e expression) *condition {
	if e.text == "" {
		return nil
	}
	return &condition{field: e.field, compile: sync.OnceValues(func() (compiled, error) {
		out, err := e.compile(env)
		if err != nil {
			return compiled{}, fmt.Errorf("%s: %w", e.field, err)
		}
		return out, nil
	})}
}

// compile compiles the expression. An error about its syntax or its calls names line and column.
func (e expression) compile(env environment) (compiled, error) {
	if len(e.text) > whenLength {
		return compiled{}, fmt.Errorf("%w: %d bytes, and %d are allowed", errWhenLength, len(e.text), whenLength)
	}
	set, err := env()
	if err != nil {
		return compiled{}, err
	}
	checked, issues := set.Compile(e.text)
	if issues != nil && issues.Err() != nil {
		first := issues.Errors()[0]
		return compiled{}, fmt.Errorf("line %d, column %d: %s", first.Location.Line(), first.Location.Column()+1, first.Message)
	}
	if t := checked.OutputType(); !t.IsExactType(e.is) && !t.IsExactType(cel.DynType) {
		return compiled{}, fmt.Errorf("%w: it is of type %s", typeError(e.is), t)
	}
	refused := multiplying()
	if e.is.IsExactType(cel.StringType) {
		refused = append(refused, altering()...)
	}
	if err := checkCalls(checked, refused); err != nil {
		return compiled{}, err
	}
	if err := checkGrowth(checked); err != nil {
		return compiled{}, err
	}
	out := compiled{limit: e.limit, reads: namesIn(checked)}
	if out.reads["nodes"] {
		out.limit = e.nodesLimit
	}
	out.program, err = set.Program(checked, cel.CostLimit(out.limit), cel.CostTracking(nodesCost{}))
	if err != nil {
		return compiled{}, fmt.Errorf("set up CEL: %w", err)
	}
	return out, nil
}

// namesIn returns the identifiers in an expression: variables, and names that the expression
// declares.
func namesIn(checked *cel.Ast) map[string]bool {
	out := map[string]bool{}
	ast.PreOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.IdentKind {
			out[e.AsIdent()] = true
		}
	}))
	return out
}

// reads reports whether the expression reads a variable. An expression that can't be compiled reads
// no variable: its evaluation is an error.
func (c *condition) reads(variable string) bool {
	if c == nil {
		return false
	}
	is, err := c.compile()
	return err == nil && is.reads[variable]
}

// readsAny reports whether the expression reads any of some variables.
func (c *condition) readsAny(variables ...string) bool {
	return slices.ContainsFunc(variables, c.reads)
}

// holds evaluates the condition, and returns the cost of this. The facts are not modified.
func (c *condition) holds(facts map[string]any) (yes bool, cost uint64, _ error) {
	out, cost, err := c.evaluate(facts)
	if err != nil {
		return false, cost, err
	}
	yes, ok := out.Value().(bool)
	if !ok {
		return false, cost, fmt.Errorf("%s: %w: it is of type %s", c.field, errWhenType, out.Type().TypeName())
	}
	return yes, cost, nil
}

// evaluate returns the value of an expression, and the cost of the evaluation.
func (c *condition) evaluate(facts map[string]any) (out ref.Val, cost uint64, _ error) {
	is, err := c.compile()
	if err != nil {
		return nil, 0, err
	}
	out, details, err := is.program.Eval(facts)
	cost = whenDearest * is.limit // the cost if CEL returns none
	if details != nil && details.ActualCost() != nil {
		cost = min(cost, *details.ActualCost())
	}
	if err != nil {
		return nil, cost, fmt.Errorf("%s: %s", c.field, inShort(err))
	}
	return out, cost, nil
}

// text evaluates a message. The result is empty if the message has no value, is too long, or has
// white space other than single spaces between words. A message is never cut or put on one line,
// because a secret in it would then not be recognised.
func (c *condition) text(facts map[string]any) (string, uint64) {
	out, cost, err := c.evaluate(facts)
	if err != nil {
		return "", cost
	}
	text, ok := out.Value().(string)
	if !ok || len(text) > whenError || text != strings.Join(strings.Fields(text), " ") {
		return "", cost
	}
	return text, cost
}

// inShort returns an error's text in one line. The text may quote a secret, and a part of a secret
// would not be recognised. So an error that is too long is omitted, and not cut.
func inShort(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > whenError {
		return fmt.Sprintf("the error is longer than %d bytes, and left out", whenError)
	}
	return text
}

// values are the values of one change for a condition, nil if absent.
type values struct{ recorded, old, target any }

// Among returns the policy for a comparison of some of the given objects: conditions of its rules
// then read the targets of all given objects. Without Among, conditions read only the compared
// objects.
func (p Policy) Among(states []State) Policy {
	p.targets = targetsOf(states, p.MaskKey)
	return p
}

// targetsOf returns the component's target objects by kind, in the order of states, with the data
// of Secrets masked. They are made when the first condition reads them, once for all objects of a
// comparison.
func targetsOf(states []State, maskKey []byte) func() map[string]any {
	return sync.OnceValue(func() map[string]any {
		lists := map[string][]any{}
		for i := range states {
			s := &states[i]
			if s.Target == nil {
				continue
			}
			object := maskFor(s.ID, maskKey).apply(canonical(s.Target.Content))
			lists[s.ID.Kind] = append(lists[s.ID.Kind], storedOf(s.ID.Group, orNull(object)))
		}
		out := make(map[string]any, len(lists))
		for kind, list := range lists {
			out[kind] = list
		}
		return out
	})
}

// storedOf returns a value without the fields that are null: the API server stores no nulls for its
// own kinds, and conditions would fail on them. A custom resource may have fields that can be null.
func storedOf(group string, v any) any {
	if strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") {
		return v
	}
	out, _ := withoutNulls(v)
	return out
}

// withoutNulls returns a value without the fields of its maps that are null, and whether it had any.
// The value is not modified, and is returned itself if it had none.
func withoutNulls(v any) (out any, had bool) {
	switch v := v.(type) {
	case map[string]any:
		return mapWithoutNulls(v)
	case []any:
		var left []any
		for i, child := range v {
			kept, had := withoutNulls(child)
			if !had {
				continue
			}
			if left == nil {
				left = slices.Clone(v)
			}
			left[i] = kept
		}
		if left != nil {
			return left, true
		}
	}
	return v, false
}

func mapWithoutNulls(v map[string]any) (out any, had bool) {
	var left map[string]any
	for name, child := range v {
		kept, had := withoutNulls(child)
		if child != nil && !had {
			continue
		}
		if left == nil {
			left = maps.Clone(v)
		}
		if left[name] = kept; child == nil {
			delete(left, name)
		}
	}
	if left == nil {
		return v, false
	}
	return left, true
}

// orNull returns an untyped nil for a nil map, which would otherwise be an empty map.
func orNull(object map[string]any) any {
	if object == nil {
		return nil
	}
	return object
}

// changes returns the values for which a rule's condition is evaluated. The path may lie inside a
// value that only changes as a whole. Then a new value there has no old value, and a removed value
// has no new value, because items of such a list have no identity.
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

// notIn returns the values of list that other lacks, or has less often: a second container that is
// privileged counts as new.
func notIn(other, list []any) []any {
	has := make(map[string]int, len(other))
	for _, v := range other {
		has[string(appendKey(nil, v))]++
	}
	var out []any
	for _, v := range list {
		if key := string(appendKey(nil, v)); has[key] > 0 {
			has[key]--
		} else {
			out = append(out, v)
		}
	}
	return out
}
