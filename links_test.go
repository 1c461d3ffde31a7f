package main_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// TestLinks: each relative link of a Markdown file leads to a file or folder of the repository, and
// each anchor to a heading or an <a id> of a Markdown file, or to a line. Links to other servers
// are not requested.
func TestLinks(t *testing.T) {
	t.Parallel()
	broken, links, err := brokenLinks(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range broken {
		t.Error(problem)
	}
	if links < 200 {
		t.Errorf("only %d links were checked", links)
	}
}

// TestLinksCatches: the test above finds what it is about.
func TestLinksCatches(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"docs/README.md": {Data: []byte("# Title: of `it`, a_b & C\n\n# Twice\n\n# Twice\n\n<a id=\"here\"></a>\n")},
		"main.go":        {Data: []byte("package main\n\nfunc main() {}\n")},
	}
	for link, want := range map[string]string{
		"docs/README.md":                    "",
		"docs/README.md#title-of-it-a_b--c": "",
		"docs#twice-1":                      "",
		"docs/README.md#here":               "",
		"#top":                              "",
		"main.go#L3":                        "",
		"https://example.com/x#y":           "",
		"mailto:a@example.com":              "",
		"docs/READ.md":                      "docs/READ.md does not exist",
		"docs/README.md#Twice":              "docs/README.md has no anchor #Twice",
		"docs/README.md#twice-2":            "docs/README.md has no anchor #twice-2",
		"#bottom":                           "page.md has no anchor #bottom",
		"main.go#L4":                        "main.go has no anchor #L4",
		"../other/README.md":                "leads out of the repository",
		"/docs/README.md":                   "is an absolute path",
		"file:///docs/README.md":            "is of scheme file",
		"docs/R%EADME.md%":                  "can't be read",
	} {
		files["page.md"] = &fstest.MapFile{Data: []byte("# Top\n\nA [text](" + link + ").\n")}
		broken, _, err := brokenLinks(files)
		if err != nil {
			t.Fatal(err)
		}
		if len(broken) > 1 || (want == "") != (len(broken) == 0) || want != "" && !strings.Contains(broken[0], want) {
			t.Errorf("%s: %q, want %q", link, broken, want)
		}
	}
	files["page.md"] = &fstest.MapFile{Data: []byte("# Top\n\n![image](a.png) and [one][ref] and <a href=\"b.md\">b</a>\n\n```\n[code](c.md)\n```\n\n[ref]: d.md\n")}
	broken, links, err := brokenLinks(files)
	want := []string{"page.md:3: a.png: a.png does not exist", "page.md:3: b.md: b.md does not exist", "page.md:3: d.md: d.md does not exist"}
	if diff := cmp.Diff(want, broken); diff != "" || links != 3 || err != nil {
		t.Errorf("%d links, error %v; -want +got:\n%s", links, err, diff)
	}
}

// markdown is what is known of one Markdown file.
type markdown struct {
	links   []markdownLink
	anchors map[string]bool
}

type markdownLink struct {
	line   int // of its paragraph, heading or table row
	target string
}

// brokenLinks returns the problems of all links in the Markdown files of a tree, in order, and the
// number of links.
func brokenLinks(tree fs.FS) (broken []string, links int, err error) {
	pages := map[string]markdown{}
	err = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "dist", "node_modules", "testdata"}, entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		data, err := fs.ReadFile(tree, name)
		if err == nil {
			pages[name] = readMarkdown(data)
		}
		return err
	})
	for name, page := range pages {
		for _, link := range page.links {
			links++
			if problem := brokenLink(tree, pages, name, link.target); problem != "" {
				broken = append(broken, fmt.Sprintf("%s:%d: %s: %s", name, link.line, link.target, problem))
			}
		}
	}
	slices.Sort(broken)
	return broken, links, err
}

// brokenLink returns what is wrong with a link of a page; "": nothing.
func brokenLink(tree fs.FS, pages map[string]markdown, page, target string) string {
	to, err := url.Parse(target)
	switch {
	case err != nil:
		return "can't be read: " + err.Error()
	case slices.Contains([]string{"http", "https", "mailto"}, to.Scheme):
		return ""
	case to.Scheme != "":
		return "is of scheme " + to.Scheme
	case path.IsAbs(to.Path):
		return "is an absolute path: write it from this file"
	}
	file := page
	if to.Path != "" {
		file = path.Join(path.Dir(page), to.Path)
	}
	if file == ".." || strings.HasPrefix(file, "../") {
		return "leads out of the repository"
	}
	info, err := fs.Stat(tree, file)
	if err != nil {
		return file + " does not exist"
	}
	if to.Fragment == "" {
		return ""
	}
	if info.IsDir() {
		file = path.Join(file, "README.md")
	}
	if pages[file].anchors[to.Fragment] || hasLine(tree, file, to.Fragment) {
		return ""
	}
	return file + " has no anchor #" + to.Fragment
}

var lineAnchor = regexp.MustCompile(`^L(\d+)(?:-L(\d+))?$`)

// hasLine reports whether an anchor such as L10 or L10-L20 is in a file.
func hasLine(tree fs.FS, file, anchor string) bool {
	m := lineAnchor.FindStringSubmatch(anchor)
	if m == nil {
		return false
	}
	data, err := fs.ReadFile(tree, file)
	if err != nil {
		return false
	}
	lines := bytes.Count(data, []byte("\n"))
	for _, number := range m[1:] {
		if n, err := strconv.Atoi(number); number != "" && (err != nil || n < 1 || n > lines) {
			return false
		}
	}
	return true
}

var (
	htmlAnchor = regexp.MustCompile(`<a\s[^>]*\b(?:id|name)="([^"]+)"`)
	htmlLink   = regexp.MustCompile(`<(?:a|img)\s[^>]*\b(?:href|src)="([^"]+)"`)
)

// readMarkdown returns the links and anchors of a Markdown file, as a forge shows it.
func readMarkdown(data []byte) markdown {
	page := markdown{anchors: map[string]bool{}}
	same := map[string]int{}
	add := func(n ast.Node, target string) {
		page.links = append(page.links, markdownLink{lineOf(n, data), target})
	}
	raw := func(n ast.Node, html []byte) {
		for _, m := range htmlAnchor.FindAllSubmatch(html, -1) {
			page.anchors[string(m[1])] = true
		}
		for _, m := range htmlLink.FindAllSubmatch(html, -1) {
			add(n, string(m[1]))
		}
	}
	doc := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(data))
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function below returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			anchor := headingAnchor(plainText(n, data))
			if same[anchor]++; same[anchor] > 1 {
				anchor += "-" + strconv.Itoa(same[anchor]-1)
			}
			page.anchors[anchor] = true
		case *ast.Link:
			add(n, string(n.Destination))
		case *ast.Image:
			add(n, string(n.Destination))
		case *ast.RawHTML:
			raw(n, n.Segments.Value(data))
		case *ast.HTMLBlock:
			raw(n, n.Lines().Value(data))
		}
		return ast.WalkContinue, nil
	})
	return page
}

// lineOf returns the line of the innermost block around a node.
func lineOf(n ast.Node, data []byte) int {
	for ; n != nil; n = n.Parent() {
		if n.Type() == ast.TypeBlock && n.Lines() != nil && n.Lines().Len() > 0 {
			return 1 + bytes.Count(data[:n.Lines().At(0).Start], []byte("\n"))
		}
	}
	return 1
}

// plainText returns the text below a node without its markup.
func plainText(n ast.Node, data []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function below returns no error
		if one, isText := n.(*ast.Text); isText && entering {
			b.Write(one.Segment.Value(data))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// headingAnchor returns the anchor that GitHub gives a heading: lower case, without punctuation,
// and with a hyphen for each space.
func headingAnchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r), unicode.IsMark(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}
