// Package expr compiles and evaluates the expressions in CEL that git has: the conditions and messages of
// danger rules, and conditions on objects.
//
// An expression is bounded before it is compiled and while it runs: by its length, by what it may build,
// and by the cost that CEL counts. Errors are one short line, and quote no part of a long value.
package expr

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	celenv "cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// whenLength bounds a condition, in bytes. The longest built-in condition is far below.
	whenLength = 2048
	// WhenCost bounds the evaluation of a condition, in CEL's units: about a millisecond. An API
	// server allows a hundred times as much for each policy.
	WhenCost = 10_000
	// BuiltInCost bounds a built-in condition. Conditions that read the component's other objects
	// take long for a large component, and are written with their cost in mind.
	BuiltInCost = 50 * WhenCost
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

// Environment returns the variables and functions of conditions. It is made when the first
// condition is compiled: most comparisons need none.
type Environment func() (*cel.Env, error)

// NewEnvironment returns the environment of danger rules.
func NewEnvironment() Environment {
	return environmentOf("old", "new", "recorded", "object", "live", "status", "objects", "nodes")
}

// environmentOf returns an environment with the given variables, and cluster.
func environmentOf(variables ...string) Environment {
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
			cel.SingletonBinaryBinding((&matcher{kept: map[string]parsedPattern{}}).matches),
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
		if slices.Contains(refused, e.AsCall().FunctionName()) && err == nil {
			at := native.SourceInfo().GetStartLocation(e.ID())
			err = fmt.Errorf("line %d, column %d: there is no function %s here", at.Line(), at.Column()+1, e.AsCall().FunctionName())
		}
	}))
	return err
}

// keptPatterns bounds how many regular expressions a matcher keeps, and keptInstructions the size of each.
const (
	keptPatterns     = 500
	keptInstructions = 500
)

// matcher replaces CEL's matches, and checks the cost before the match instead of after: a regular
// expression may be as long as the text of an object. It keeps the first expressions, most of which stand
// in rules. It is safe for concurrent use.
type matcher struct {
	mu   sync.RWMutex
	kept map[string]parsedPattern
}

// parsedPattern is a regular expression, and the number of instructions of its program.
type parsedPattern struct {
	expression   *regexp.Regexp
	instructions int
}

func (m *matcher) matches(text, pattern ref.Val) ref.Val {
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
	is, err := m.compile(string(p), len(t))
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Bool(is.MatchString(string(t)))
}

// compile returns a regular expression for a text of the given length, or an error if the match could
// take too long.
func (m *matcher) compile(pattern string, length int) (*regexp.Regexp, error) {
	m.mu.RLock()
	is, known := m.kept[pattern]
	m.mu.RUnlock()
	if !known {
		parsed, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			return nil, err //nolint:wrapcheck // it quotes the expression
		}
		program, err := syntax.Compile(parsed.Simplify())
		if err != nil {
			return nil, err //nolint:wrapcheck // as above
		}
		is.instructions = len(program.Inst)
	}
	if steps := is.instructions * length; steps > matchSteps {
		return nil, fmt.Errorf("a regular expression takes up to %d steps on a text of %d bytes: %d are allowed", steps, length, matchSteps)
	}
	if known {
		return is.expression, nil
	}
	var err error
	if is.expression, err = regexp.Compile(pattern); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.kept) < keptPatterns && is.instructions <= keptInstructions {
		m.kept[pattern] = is
	}
	return is.expression, nil
}

// amount returns a quantity as a number.
func amount(v ref.Val) ref.Val {
	switch v.(type) { // a list may be long, so it is not printed
	case types.String, types.Int, types.Uint, types.Double:
	default:
		return types.NewErr("a value of type %s is no quantity", v.Type().TypeName())
	}
	q, ok := Quantity(v.Value())
	if !ok {
		return types.NewErr("%v is no quantity", v.Value())
	}
	return types.Double(q.AsApproximateFloat64())
}

// Expression is an expression of a rule: its when, which is true or false, or its message. A nil
// condition counts as true, and a nil message is empty.
type Expression struct {
	field   string // for errors
	compile func() (compiled, error)
}

// Compile returns the error of an expression that can't be compiled.
func (c *Expression) Compile() error {
	_, err := c.compile()
	return err
}

// compiled is an expression that was parsed and checked.
type compiled struct {
	program cel.Program
	limit   uint64 // of its cost
	reads   map[string]bool
}

// source is the text of an expression, with its type and bounds.
type source struct {
	field, text string
	is          *cel.Type
	limit       uint64 // of its cost
	// nodesLimit is the limit of an expression that reads nodes: a cluster may have thousands.
	nodesLimit uint64
}

// newCondition returns a condition that is compiled when it is first needed.
func newCondition(env Environment, field, text string) *Expression {
	return newExpression(env, source{field: field, text: text, is: cel.BoolType, limit: WhenCost, nodesLimit: WhenCost})
}

// NewWhen returns the condition of a danger rule.
func NewWhen(env Environment, text string, limit uint64) *Expression {
	return newExpression(env, source{field: "when", text: text, is: cel.BoolType, limit: limit, nodesLimit: BuiltInCost})
}

// NewMessage returns the message of a danger rule.
func NewMessage(env Environment, text string) *Expression {
	return newExpression(env, source{field: "messageExpression", text: text, is: cel.StringType, limit: WhenCost, nodesLimit: BuiltInCost})
}

func newExpression(env Environment, e source) *Expression {
	if e.text == "" {
		return nil
	}
	return &Expression{field: e.field, compile: sync.OnceValues(func() (compiled, error) {
		out, err := e.compile(env)
		if err != nil {
			return compiled{}, fmt.Errorf("%s: %w", e.field, err)
		}
		return out, nil
	})}
}

// compile compiles the expression. An error about its syntax or its calls names line and column.
func (e source) compile(env Environment) (compiled, error) {
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

// Reads reports whether the expression reads a variable. An expression that can't be compiled reads
// no variable: its evaluation is an error.
func (c *Expression) Reads(variable string) bool {
	if c == nil {
		return false
	}
	is, err := c.compile()
	return err == nil && is.reads[variable]
}

// ReadsAny reports whether the expression reads any of some variables.
func (c *Expression) ReadsAny(variables ...string) bool {
	return slices.ContainsFunc(variables, c.Reads)
}

// Holds evaluates the condition, and returns the cost of this. The facts are not modified.
func (c *Expression) Holds(facts map[string]any) (yes bool, cost uint64, _ error) {
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
func (c *Expression) evaluate(facts map[string]any) (out ref.Val, cost uint64, _ error) {
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

// Text evaluates a message. The result is empty if the message has no value, is too long, or has
// white space other than single spaces between words. A message is never cut or put on one line,
// because a secret in it would then not be recognised.
func (c *Expression) Text(facts map[string]any) (string, uint64) {
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

// Quantity reads a quantity of Kubernetes: a text, or a number. It is not ok if the value is none, or
// takes long to read.
func Quantity(v any) (resource.Quantity, bool) {
	switch v := v.(type) {
	case string:
		return parseQuantity(v)
	case int64:
		return *resource.NewQuantity(v, resource.DecimalSI), true
	case float64:
		return parseQuantity(strconv.FormatFloat(v, 'g', -1, 64))
	}
	return resource.Quantity{}, false
}

// parseQuantity refuses values for which resource.ParseQuantity would take seconds or forever: it
// computes every digit of 1e1000000000.
func parseQuantity(s string) (resource.Quantity, bool) {
	const digits, exponent = 64, 3
	if len(s) > digits {
		return resource.Quantity{}, false
	}
	if i := strings.LastIndexAny(s, "eE"); i >= 0 && len(strings.TrimLeft(s[i+1:], "+-0")) > exponent {
		return resource.Quantity{}, false
	}
	q, err := resource.ParseQuantity(s)
	return q, err == nil
}
