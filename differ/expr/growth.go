package expr

import (
	"fmt"
	"maps"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
)

// copiesMost bounds how often a condition copies a value into a list or map that it builds.
// Built-in conditions concatenate five lists.
const copiesMost = 32

// checkGrowth refuses a condition that builds lists of lists of the values that it reads. Such
// lists can double at each step: `[[1]].map(a, a + a).map(a, a + a)` and so on has a few hundred
// bytes, and builds a list that fits no memory. CEL counts the cost of a call after the call, and a
// comparison of two such lists is one call.
func checkGrowth(checked *cel.Ast) error {
	g := growth{}
	native := checked.NativeRep()
	g.copies(native.Expr(), map[string]int{})
	if g.at == 0 {
		return nil
	}
	at := native.SourceInfo().GetStartLocation(g.at)
	return fmt.Errorf("line %d, column %d: it puts a value more than %d times into lists of lists", at.Line(), at.Column()+1, copiesMost)
}

// growth finds the place where a condition copies a value too often.
type growth struct{ at int64 } // the ID of the expression; 0: nowhere

// copies returns how often the result of an expression may contain any one value that the condition
// reads. bound has the same number for each variable of the expression.
func (g *growth) copies(e ast.Expr, bound map[string]int) int {
	n := 1
	switch e.Kind() {
	case ast.IdentKind:
		if of, ok := bound[e.AsIdent()]; ok {
			n = of
		}
	case ast.SelectKind:
		n = g.copies(e.AsSelect().Operand(), bound)
	case ast.ListKind:
		n = 0
		for _, element := range e.AsList().Elements() {
			n += g.copies(element, bound)
		}
	case ast.MapKind:
		n = 0
		for _, entry := range e.AsMap().Entries() {
			n += g.copies(entry.AsMapEntry().Key(), bound) + g.copies(entry.AsMapEntry().Value(), bound)
		}
	case ast.StructKind:
		n = 0
		for _, field := range e.AsStruct().Fields() {
			n += g.copies(field.AsStructField().Value(), bound)
		}
	case ast.CallKind:
		n = g.ofCall(e.AsCall(), bound)
	case ast.ComprehensionKind:
		n = g.ofComprehension(e.AsComprehension(), bound)
	case ast.LiteralKind, ast.UnspecifiedExprKind:
	}
	if n > copiesMost {
		if g.at == 0 {
			g.at = e.ID()
		}
		n = copiesMost + 1 // bounded, so that no sum overflows
	}
	return n
}

// ofElement returns how often one element of a list, or a key or value of a map, may contain a
// value.
func (g *growth) ofElement(list ast.Expr, bound map[string]int) int {
	all := g.copies(list, bound)
	if list.Kind() != ast.ListKind {
		return all
	}
	most := 1
	for _, element := range list.AsList().Elements() {
		most = max(most, g.copies(element, bound))
	}
	return most
}

// ofCall returns the sum over the arguments of a concatenation. All other calls return one of their
// arguments, a part of one, or something small.
func (g *growth) ofCall(call ast.CallExpr, bound map[string]int) int {
	args := slices.Clone(call.Args())
	if call.IsMemberFunction() {
		args = append(args, call.Target())
	}
	sum, most := 0, 1
	for _, arg := range args {
		n := g.copies(arg, bound)
		sum, most = sum+n, max(most, n)
	}
	if call.FunctionName() == operators.Add {
		return sum
	}
	return most
}

// ofComprehension returns the number for a macro. map and filter begin with an empty list, and
// append the result of one step for each element.
func (g *growth) ofComprehension(c ast.ComprehensionExpr, bound map[string]int) int {
	inside := maps.Clone(bound)
	inside[c.IterVar()] = g.ofElement(c.IterRange(), bound)
	if c.HasIterVar2() {
		inside[c.IterVar2()] = inside[c.IterVar()]
	}
	inside[c.AccuVar()] = 0
	begin := g.copies(c.AccuInit(), bound)
	g.copies(c.LoopCondition(), inside)
	step := g.copies(c.LoopStep(), inside)
	inside[c.AccuVar()] = max(begin, step)
	return g.copies(c.Result(), inside)
}
