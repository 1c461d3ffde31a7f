package differ

import (
	"fmt"
	"maps"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
)

// copiesMost bounds how often a condition puts a value into one that it makes. Built-in
// conditions put five lists behind one another.
const copiesMost = 32

// checkGrowth refuses a condition that makes lists of lists of what it reads, which double at
// each step: `[[1]].map(a, a + a).map(a, a + a)` and so on is of a few hundred bytes and a
// list that no memory holds. CEL counts the cost of a call when it is done, and a
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

// growth finds where a condition makes too much of a value.
type growth struct{ at int64 } // the ID of the expression; 0: nowhere

// copies is how often any one value that the condition reads may be in what an expression
// makes; bound says that of its variables.
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
		n = copiesMost + 1 // and no more, so that no sum overflows
	}
	return n
}

// ofElement is how often a value may be in one element of a list, or in a key or value of a map.
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

// ofCall adds up what is put behind one another. All other calls give one of their arguments
// or a part of it, or something small.
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

// ofComprehension is what a macro makes: map and filter begin with an empty list, and put what
// one step makes behind it, once for each element.
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
