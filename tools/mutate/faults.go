package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// fault is one small mistake in a file: bytes that are replaced.
type fault struct {
	file         string
	line, column int
	start, end   int // byte offsets
	with         string
	what         string // a description
}

func (f fault) String() string { return fmt.Sprintf("%s:%d:%d: %s", f.file, f.line, f.column, f.what) }

// below returns the fault with its file relative to a folder.
func (f fault) below(dir string) fault {
	if rel, err := filepath.Rel(dir, f.file); err == nil {
		f.file = rel
	}
	return f
}

// apply returns the source with the fault.
func (f fault) apply(src []byte) []byte {
	return slices.Concat(src[:f.start], []byte(f.with), src[f.end:])
}

// faultsOf returns the possible faults of a Go file, in the order of the source. Some don't
// compile, which only the compiler can find out.
//
// It skips what a test of behavior can't detect: the arguments of make and values named …capacity,
// the texts and arguments of errors, numberings with iota, and empty cases of switches without a
// default.
func faultsOf(file string, src []byte) ([]fault, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", file, err)
	}
	f := &finder{file: file, src: src, fset: fset, seen: map[fault]bool{}}
	ast.Inspect(parsed, f.visit)
	slices.SortStableFunc(f.out, func(a, b fault) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end), strings.Compare(a.with, b.with))
	})
	return f.out, nil
}

type finder struct {
	file string
	src  []byte
	fset *token.FileSet
	seen map[fault]bool
	out  []fault
}

func (f *finder) offset(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *finder) text(n ast.Node) string { return string(f.src[f.offset(n.Pos()):f.offset(n.End())]) }

// add records a fault that replaces a range of the source.
func (f *finder) add(from, to token.Pos, with, what string) {
	at := f.fset.Position(from)
	one := fault{file: f.file, line: at.Line, column: at.Column, start: at.Offset, end: f.offset(to), with: with, what: what}
	if !f.seen[one] {
		f.seen[one] = true
		f.out = append(f.out, one)
	}
}

// replace records a fault that replaces a node by a text.
func (f *finder) replace(n ast.Node, with string) {
	f.add(n.Pos(), n.End(), with, fmt.Sprintf("%s becomes %s", short(f.text(n)), short(with)))
}

// operator records a fault that replaces the operator of an expression.
func (f *finder) operator(n ast.Node, at token.Pos, from, to token.Token) {
	f.add(at, at+token.Pos(len(from.String())), to.String(), fmt.Sprintf("%s becomes %s in %s", from, to, short(f.text(n))))
}

// drop records, for each element of a list, a fault that removes the element with its comma.
func drop[N ast.Node](f *finder, list []N) {
	for i, n := range list {
		from, to := n.Pos(), n.End()
		switch {
		case i+1 < len(list):
			to = list[i+1].Pos()
		case i > 0:
			from = list[i-1].End()
		}
		f.add(from, to, "", short(f.text(n))+" is left out")
	}
}

// short shortens source to one line of output.
func short(s string) string {
	const width = 70
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > width {
		s = string(r[:width]) + "…"
	}
	return "`" + s + "`"
}

// visit records the faults of one node, and reports whether to visit its children.
func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok != token.IMPORT && !bytes.Contains(f.src[f.offset(n.Pos()):f.offset(n.End())], []byte("iota"))
	case *ast.Field: // skips struct tags
		return false
	case *ast.CallExpr:
		return f.call(n)
	case *ast.IfStmt:
		f.condition(n.Cond)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			f.replace(n, f.text(n.X))
		}
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.Ident:
		switch n.Name {
		case "true":
			f.replace(n, "false")
		case "false":
			f.replace(n, "true")
		}
	case *ast.BasicLit:
		f.number(n)
	case *ast.ReturnStmt:
		f.result(n)
	case *ast.BranchStmt:
		f.branch(n)
	case *ast.IncDecStmt:
		f.operator(n, n.TokPos, n.Tok, map[token.Token]token.Token{token.INC: token.DEC, token.DEC: token.INC}[n.Tok])
	case *ast.AssignStmt:
		if to, ok := assignments()[n.Tok]; ok {
			f.operator(n, n.TokPos, n.Tok, to)
		}
	case *ast.BlockStmt:
		f.statements(n.List)
	case *ast.ValueSpec:
		return !strings.HasSuffix(strings.ToLower(n.Names[0].Name), "capacity")
	case *ast.SwitchStmt:
		f.cases(n.Body)
	case *ast.TypeSwitchStmt:
		f.cases(n.Body)
	case *ast.CaseClause:
		f.statements(n.Body)
	case *ast.CompositeLit:
		drop(f, n.Elts)
	}
	return true
}

// cases removes a case, or one of its values.
func (f *finder) cases(body *ast.BlockStmt) {
	otherwise := slices.ContainsFunc(body.List, func(s ast.Stmt) bool { return s.(*ast.CaseClause).List == nil })
	for _, s := range body.List {
		c := s.(*ast.CaseClause)
		if len(c.Body) == 0 && !otherwise {
			continue
		}
		f.add(c.Pos(), c.End(), "", short(f.text(c))+" is left out")
		if len(c.List) > 1 {
			drop(f, c.List)
		}
	}
}

// call swaps min and max. It skips the arguments of calls that don't affect behavior.
func (f *finder) call(n *ast.CallExpr) bool {
	switch name := f.text(n.Fun); name {
	case "make", "fmt.Errorf", "errors.New":
		return false
	case "min":
		f.replace(n.Fun, "max")
	case "max":
		f.replace(n.Fun, "min")
	}
	return true
}

// condition negates conditions, except comparisons and negations, which have other faults.
func (f *finder) condition(n ast.Expr) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if n.Op == token.LAND || n.Op == token.LOR {
			f.replace(n, "!("+f.text(n)+")")
		}
	case *ast.UnaryExpr:
	default:
		f.replace(n, "!"+f.text(n))
	}
}

func (f *finder) binary(n *ast.BinaryExpr) {
	for _, to := range operators()[n.Op] {
		f.operator(n, n.OpPos, n.Op, to)
	}
	if n.Op == token.LAND || n.Op == token.LOR {
		f.add(n.Pos(), n.Y.Pos(), "", short(f.text(n.X))+" is left out of "+short(f.text(n)))
		f.add(n.X.End(), n.End(), "", short(f.text(n.Y))+" is left out of "+short(f.text(n)))
	}
}

func operators() map[token.Token][]token.Token {
	return map[token.Token][]token.Token{
		token.LAND: {token.LOR}, token.LOR: {token.LAND},
		token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
		token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
		token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
		token.ADD: {token.SUB}, token.SUB: {token.ADD},
		token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
		token.AND: {token.OR}, token.OR: {token.AND},
	}
}

func assignments() map[token.Token]token.Token {
	return map[token.Token]token.Token{
		token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
		token.MUL_ASSIGN: token.QUO_ASSIGN, token.QUO_ASSIGN: token.MUL_ASSIGN,
		token.AND_ASSIGN: token.OR_ASSIGN, token.OR_ASSIGN: token.AND_ASSIGN,
	}
}

// number increases and decreases integers by one.
func (f *finder) number(n *ast.BasicLit) {
	i, err := strconv.ParseInt(n.Value, 0, 64)
	if n.Kind != token.INT || err != nil {
		return
	}
	f.replace(n, strconv.FormatInt(i+1, 10))
	if i > 0 {
		f.replace(n, strconv.FormatInt(i-1, 10))
	}
}

// result empties a returned text, and replaces a returned err by nil.
func (f *finder) result(n *ast.ReturnStmt) {
	for i, r := range n.Results {
		switch r := r.(type) {
		case *ast.BasicLit:
			if r.Kind == token.STRING && r.Value != `""` {
				f.replace(r, `""`)
			}
		case *ast.Ident:
			if r.Name == "err" && i == len(n.Results)-1 {
				f.replace(r, "nil")
			}
		}
	}
}

func (f *finder) branch(n *ast.BranchStmt) {
	switch {
	case n.Label != nil:
	case n.Tok == token.BREAK:
		f.replace(n, "continue")
	case n.Tok == token.CONTINUE:
		f.replace(n, "break")
	}
}

// statements removes statements that could have been forgotten.
func (f *finder) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.IfStmt:
			if s.Else != nil {
				continue
			}
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.BranchStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt:
		default:
			continue
		}
		f.add(s.Pos(), s.End(), "", short(f.text(s))+" is left out")
	}
}
