package main

import (
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// TestFaultsOf checks for each kind of fault how it changes the body of a function.
func TestFaultsOf(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, body string
		want      []string
	}{
		"Comparison": {
			why: "The boundary moves, or all turns round.", body: "return a < b",
			want: []string{"return a <= b", "return a >= b"},
		},
		"Equality": {why: "Turned round.", body: "return a == b", want: []string{"return a != b"}},
		"And": {
			why: "The operator is mixed up, or an operand forgotten.", body: "return a && b",
			want: []string{"return b", "return a", "return a || b"},
		},
		"Condition": {
			why: "A guard is forgotten or turned round.", body: "if a { return b }; return c",
			want: []string{"; return c", "if !a { return b }; return c"},
		},
		"Comparison in a condition": {
			why: "To negate it would be the same fault again.", body: "if a == b { f() } else { g() }",
			want: []string{"if a != b { f() } else { g() }", "if a == b {  } else { g() }", "if a == b { f() } else {  }"},
		},
		"Not":         {why: "Negated twice is not negated.", body: "return !a", want: []string{"return a"}},
		"Arithmetic":  {why: "The other way.", body: "return a*b - c", want: []string{"return a/b - c", "return a*b + c"}},
		"Assignment":  {why: "The other way, or forgotten.", body: "a += b", want: []string{"", "a -= b"}},
		"Increment":   {why: "The other way, or forgotten.", body: "a++", want: []string{"", "a--"}},
		"Number":      {why: "One off, on either side.", body: "return 7", want: []string{"return 6", "return 8"}},
		"Zero":        {why: "Sizes have nothing below.", body: "return 0", want: []string{"return 1"}},
		"Boolean":     {why: "The other one.", body: "return true", want: []string{"return false"}},
		"Text":        {why: "A name that is empty.", body: `return "a"`, want: []string{`return ""`}},
		"Error":       {why: "A swallowed error.", body: "return a, err", want: []string{"return a, nil"}},
		"Call":        {why: "A forgotten call.", body: "f(a)", want: []string{""}},
		"Declaration": {why: "What uses it would not compile.", body: "a := b", want: nil},
		"Extremes":    {why: "Easily mixed up.", body: "return min(a, b)", want: []string{"return max(a, b)"}},
		"Loop": {
			why: "Ended too early or too late.", body: "for { continue }",
			want: []string{"for {  }", "for { break }"},
		},
		"Label": {why: "The other one may not exist there.", body: "break a", want: []string{""}},
		"Switch": {
			why: "A forgotten case, or a part of one.", body: "switch a { case b, c: f() }",
			want: []string{"switch a {  }", "switch a { case c: f() }", "switch a { case b: f() }", "switch a { case b, c:  }"},
		},
		"SwitchElse": {
			why: "What keeps a value from the default does something.", body: "switch a { case b: default: f() }",
			want: []string{"switch a {  default: f() }", "switch a { case b:  }", "switch a { case b: default:  }"},
		},
		"SwitchNothing": {why: "A case that does nothing, and no other would do.", body: "switch a { case b, c: }", want: nil},
		"TypeSwitch":    {why: "As any other.", body: "switch a.(type) { case b: f() }", want: []string{"switch a.(type) {  }", "switch a.(type) { case b:  }"}},
		"Capacity":      {why: "Named for what it is for.", body: "const listCapacity = 5", want: nil},
		"Constant":      {why: "It means something.", body: "const limit = 5", want: []string{"const limit = 6", "const limit = 4"}},
		"Literal": {
			why: "A forgotten element.", body: "return x{a: b, c: d}",
			want: []string{"return x{c: d}", "return x{a: b}"},
		},
		"Size":    {why: "A capacity changes nothing.", body: "return make([]int, 0, 5)", want: nil},
		"Message": {why: "Its text is no behavior.", body: `return fmt.Errorf("%d", a+1)`, want: nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := bodies(t, c.body)
			want := slices.Clone(c.want)
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s\n%s becomes\n%q, want\n%q", c.why, c.body, got, want)
			}
		})
	}
}

// bodies returns the bodies of a function with each fault.
func bodies(t *testing.T, body string) []string {
	t.Helper()
	const before, after = "package p\n\nimport \"fmt\"\n\ntype field struct {\n\ta int `json:\"a\"`\n}\n\nconst (\n\tzero = iota + 1\n\tone\n)\n\nfunc f() {\n\t", "\n}\n"
	src := []byte(before + body + after)
	faults, err := faultsOf("p.go", src)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range faults {
		faulty := string(f.apply(src))
		rest, ok := strings.CutPrefix(faulty, before)
		rest, closed := strings.CutSuffix(rest, after)
		if !ok || !closed {
			t.Errorf("%s: what stands around the body has changed:\n%s", f, faulty)
		}
		if _, err := parser.ParseFile(token.NewFileSet(), "p.go", faulty, parser.SkipObjectResolution); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		if f.line != 15 {
			t.Errorf("%s: it stands in line 15", f)
		}
		out = append(out, rest)
	}
	return out
}

func TestFaultsOfNoGo(t *testing.T) {
	t.Parallel()
	if _, err := faultsOf("p.go", []byte("package")); err == nil || !strings.Contains(err.Error(), "p.go") {
		t.Errorf("the error is %v", err)
	}
}
