// Command sentences draws sentences at random from the comments and messages of a Go tree,
// for a reader who judges how plain they are. It also counts the sentences that are too long.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// minWords is the shortest text that counts as a sentence, in words. Shorter ones are names,
// keys and formats.
const minWords = 5

func main() {
	var o options
	flag.IntVar(&o.draw, "n", 20, "`SENTENCES` to draw")
	flag.Uint64Var(&o.seed, "seed", 1, "`SEED` of the draw: the same seed and tree give the same sentences")
	flag.IntVar(&o.most, "words", 25, "`WORDS` that a sentence may have")
	flag.BoolVar(&o.long, "long", false, "list the sentences that are too long instead")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: sentences [FLAGS] [FOLDER]\n\nDraws sentences from comments, help and messages of Go files that are not tests.")
		flag.PrintDefaults()
	}
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	if err := run(os.Stdout, root, o); err != nil {
		fmt.Fprintln(os.Stderr, "sentences:", err)
		os.Exit(1)
	}
}

type options struct {
	draw, most int
	seed       uint64
	long       bool
}

// sentence is a sentence of a file. Messages are string literals.
type sentence struct {
	file    string
	line    int
	message bool
	text    string
}

func (s sentence) words() int { return len(strings.Fields(s.text)) }

func (s sentence) String() string {
	kind := "comment"
	if s.message {
		kind = "message"
	}
	return fmt.Sprintf("%s:%d (%s, %d words) %s", s.file, s.line, kind, s.words(), s.text)
}

func run(out io.Writer, root string, o options) error {
	all, err := read(root)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("no sentence was found in " + root)
	}
	long := slices.DeleteFunc(slices.Clone(all), func(s sentence) bool { return s.words() <= o.most })
	shown := long
	if o.long {
		slices.SortStableFunc(shown, func(a, b sentence) int { return cmp.Compare(b.words(), a.words()) })
	} else {
		shown = drawn(all, o)
	}
	for _, s := range shown {
		_, _ = fmt.Fprintln(out, s)
	}
	_, _ = fmt.Fprintf(out, "%d sentences, %d of more than %d words (%.1f %%)\n",
		len(all), len(long), o.most, 100*float64(len(long))/float64(len(all)))
	return nil
}

// drawn returns random sentences, in the order of the tree.
func drawn(all []sentence, o options) []sentence {
	random := rand.New(rand.NewPCG(o.seed, 0)) //nolint:gosec // a draw that can be repeated
	chosen := random.Perm(len(all))[:min(o.draw, len(all))]
	slices.Sort(chosen)
	out := make([]sentence, len(chosen))
	for i, index := range chosen {
		out[i] = all[index]
	}
	return out
}

func read(root string) ([]sentence, error) {
	var all []sentence
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case entry.IsDir(), filepath.Ext(name) != ".go", strings.HasSuffix(name, "_test.go"), strings.HasPrefix(entry.Name(), "zz_generated"):
			return nil
		}
		path, err := filepath.Rel(root, name)
		if err != nil {
			return fmt.Errorf("path below %s: %w", root, err)
		}
		found, err := readFile(name, filepath.ToSlash(path))
		all = append(all, found...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", root, err)
	}
	return all, nil
}

func readFile(name, path string) ([]sentence, error) {
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	var found []sentence
	add := func(at token.Pos, message bool, text string) {
		for _, one := range split(text) {
			found = append(found, sentence{path, positions.Position(at).Line, message, one})
		}
	}
	for _, group := range file.Comments {
		add(group.Pos(), false, group.Text()) // without directives such as //nolint
	}
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		if text, err := strconv.Unquote(literal.Value); err == nil && isProse(text) {
			add(literal.Pos(), true, text)
		}
		return true
	})
	return found, nil
}

// code matches what shows that a literal is no prose: a regular expression, YAML, JSON or CEL.
var code = regexp.MustCompile(`\\[wdsSb]|[{}]\s*\n|^\s*[{\[(]|^---|==|&&|\|\||\bapiVersion:`)

func isProse(text string) bool { return !code.MatchString(text) }

// end matches the end of a sentence, or of a paragraph or list item.
var end = regexp.MustCompile(`[.!?:][)"']?(\s+|$)|\n\s*\n|\n\s*[-*•] `)

// split returns the sentences of a text, in one line each.
func split(text string) []string {
	var out []string
	for _, part := range end.Split(text, -1) {
		fields := strings.Fields(strings.TrimLeft(part, "-*• \t\n"))
		if len(fields) >= minWords {
			out = append(out, strings.Join(fields, " "))
		}
	}
	return out
}
