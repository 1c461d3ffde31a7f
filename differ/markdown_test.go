//go:build !race

package differ_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// marker is in every hostile text, so that a test can find the text again.
const marker = "MARK"

// hostile returns texts that would have an effect outside of code in Markdown.
func hostile() *rapid.Generator[string] {
	piece := rapid.SampledFrom([]string{
		"`", "``", "```", "````", "~~~", "\n", "\r\n", "\n\n", "\t", "    ", "\u2028", "\x1b[31m", "\u202e", "|", "\\", "\\`", "\\|", "$", "*", "_", "**", "~~", "@", "@team", "#1", "owner/repo#1", "![x](http://evil/x)",
		"[x](javascript:x)", "[x]: http://evil", "http://evil.example", "www.evil.example", "<img src=x onerror=y>", "<!--", "-->", "</details>", "<script>",
		"<http://evil>", "&lt;", "&#64;", "# ", "> ", "- ", "1. ", "---", "===", "- [ ] ", "[^1]", "/close", ":+1:", " ", "  ", "x", "diff", "+", "-", "é", "\xff",
	})
	return rapid.Custom(func(t *rapid.T) string {
		before, after := rapid.SliceOfN(piece, 0, 6).Draw(t, "before"), rapid.SliceOfN(piece, 0, 6).Draw(t, "after")
		return strings.Join(before, "") + marker + strings.Join(after, "")
	})
}

// hostileTexts parses Markdown as forges do. It returns nodes that Keelson does not write, and hostile
// texts outside of code.
func hostileTexts(source string) []string {
	data := []byte(source)
	doc := goldmark.New(goldmark.WithExtensions(extension.GFM, extension.Footnote)).Parser().Parse(text.NewReader(data))
	var out []string
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.CodeSpan:
			return ast.WalkSkipChildren, nil
		case *ast.FencedCodeBlock:
			if lang := string(n.Language(data)); lang != "diff" {
				out = append(out, "a block of "+lang)
			}
		case *ast.Text:
			if s := string(n.Segment.Value(data)); strings.Contains(s, marker) {
				out = append(out, "text "+s)
			}
		case *ast.Emphasis:
			if s := string(n.Text(data)); n.Level != 2 || strings.Contains(s, marker) { //nolint:staticcheck // the children of ours are plain text
				out = append(out, "emphasis "+s)
			}
		case *ast.Document, *ast.Heading, *ast.Paragraph, *ast.List, *ast.ListItem, *ast.TextBlock:
		default:
			out = append(out, n.Kind().String())
		}
		return ast.WalkContinue, nil
	})
	return out
}

// hostilePlan returns a plan in which every text that is not Keelson's is hostile.
func hostilePlan(s func(label string) string) differ.Plan {
	c := differ.Change{
		ID:         differ.ID{Group: s("group"), Kind: s("kind"), Namespace: s("namespace"), Name: s("name")},
		APIVersion: s("apiVersion"), Op: differ.OpUpdate, State: differ.StateHeld, Hash: s("hash"), Rule: s("rule"), Because: s("because"),
		Source: yamlfile.Position{File: s("file")}, Unpredicted: s("unpredicted"),
		Admission: []differ.Addition{{Path: s("path"), Live: s("live"), Predicted: s("predicted")}},
	}
	for action := differ.ActionSet; action <= differ.ActionAdopt; action++ {
		c.Fields = append(c.Fields, differ.Field{
			Path: s("path"), Live: s("live"), Target: s("target"), Action: action, Rule: s("rule"), Because: s("because"),
		}, differ.Field{
			Path: s("path"), Live: map[string]any{s("key"): s("live")}, Target: []any{s("a"), s("b"), s("c")}, Action: action,
		})
	}
	created := differ.Change{
		ID: differ.ID{Kind: s("kind"), Name: s("name")}, Op: differ.OpCreate, State: differ.StateChanged,
		Record: map[string]any{s("key"): s("value")}, Because: s("because"),
	}
	return differ.Plan{Changes: []differ.Change{c, created}}
}

// Text from a cluster, a chart or a rule stays inside its code.
func TestMarkdownIsInert(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := hostile()
		var b bytes.Buffer
		if err := hostilePlan(func(label string) string { return text.Draw(t, label) }).WriteMarkdown(&b); err != nil {
			t.Fatal(err)
		}
		if found := hostileTexts(b.String()); len(found) > 0 {
			t.Fatalf("it makes %q of\n%s", found, b.String())
		}
		if !strings.Contains(b.String(), marker) {
			t.Fatal("nothing was shown")
		}
	})
}

// The check itself must find hostile text.
func TestUntrustedText(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		marker, "[x](http://evil)", "http://evil.example", "<b>x</b>", "<!-- x", "```sh\nx\n```", "*x*", "> x", "    x", "| a |\n|---|\n| b |", "![x](y)", "~~x~~", "- [ ] x", "---",
		"```diff\n" + "```\n" + marker + "\n```\n",
	} {
		if len(hostileTexts(bad)) == 0 {
			t.Errorf("nothing is wrong with %q", bad)
		}
	}
	if found := hostileTexts("## ok\n\n- **HELD** `" + marker + "`: ``a`b``\n  - x\n\n````diff\n```\n@" + marker + "\n````\n"); len(found) > 0 {
		t.Errorf("it finds %q", found)
	}
}

// FuzzMarkdown is the same for any text.
func FuzzMarkdown(f *testing.F) {
	for _, s := range []string{"`", "a\n```\n@x", "|", "\\", "$`x`$", " ` ", "\t`", strings.Repeat("`", 700), strings.Repeat("é", 400)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var b bytes.Buffer
		if err := hostilePlan(func(string) string { return s + marker + s }).WriteMarkdown(&b); err != nil {
			t.Fatal(err)
		}
		if found := hostileTexts(b.String()); len(found) > 0 {
			t.Errorf("it makes %q of\n%s", found, b.String())
		}
	})
}

// A code span shows its text whatever backticks are in the text.
func TestMarkdownCode(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"a": "`a`", "": "", "a`b": "``a`b``", "`a": "`` `a ``", "a```": "```` a``` ````", " a ": "`  a  `", " a": "` a`", "  ": "`  `", "a\nb\x00c": "`a\uFFFDb\uFFFDc`",
	} {
		if got := differ.MarkdownCode(s); got != want {
			t.Errorf("%q is %s, want %s", s, got, want)
		}
	}
}

// Long text is cut, with the size of the rest; the whole report fits a comment.
func TestMarkdownBounds(t *testing.T) {
	t.Parallel()
	var plan differ.Plan
	for i := range 200 {
		plan.Changes = append(plan.Changes, differ.Change{
			ID: differ.ID{Kind: "ConfigMap", Name: fmt.Sprintf("c%03d", i)}, Op: differ.OpUpdate, State: differ.StateChanged,
			Fields: []differ.Field{
				{Path: ".data.long", Action: differ.ActionSet, Target: strings.Repeat("é", 600)},
				{Path: ".data.lines", Action: differ.ActionSet, Target: strings.Repeat("x\n", 500)},
				{Path: ".data.held", Action: differ.ActionHold, Rule: "r", Because: strings.Repeat("y", 900), Live: "a", Target: "b"},
			},
		})
	}
	var b bytes.Buffer
	if err := plan.WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	for _, want := range []string{
		"200 to update", "… (702 bytes more)", "lines more\n", "(400 bytes more)", "- and 170 more\n", "### Without their diffs, for want of room",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%.4000s", want, got)
		}
	}
	if len(got) > 64<<10 || !strings.Contains(got, "`ConfigMap c000`") {
		t.Errorf("it has %d bytes", len(got))
	}
	if found := hostileTexts(got); len(found) > 0 {
		t.Errorf("it makes %q", found)
	}
}
