// Command sizes lists the largest types, packages and folders of a Go tree, and fails
// where one is larger than the limits of its flags.
//
// Test files don't count, and neither do folders that the go command ignores.
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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	rows := flag.Int("n", 10, "`ROWS` of each table")
	var most limits
	flag.IntVar(&most.methods, "methods", 40, "`METHODS` that a type may have")
	flag.IntVar(&most.fields, "fields", 25, "`FIELDS` that a struct may have")
	flag.IntVar(&most.files, "files", 35, "`FILES` that a package may have")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: sizes [FLAGS] [FOLDER]\n\nLists the largest types, packages and folders of a Go tree.\nExit codes: 0 all are within the limits, 1 one is not, or a file can't be read.")
		flag.PrintDefaults()
	}
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	if err := run(os.Stdout, root, *rows, most); err != nil {
		fmt.Fprintln(os.Stderr, "sizes:", err)
		os.Exit(1)
	}
}

type limits struct{ methods, fields, files int }

// goType names a type by its package's folder.
type goType struct{ folder, name string }

func (t goType) String() string { return t.folder + " " + t.name }

// tree holds what was counted, without test files.
type tree struct {
	methods map[goType]int
	fields  map[goType]int // of structs; an embedded field counts once
	files   map[string]int // by folder
	lines   map[string]int // by the first element of the path, test files too
}

// run writes the tables of the tree at root to out. It returns an error that names each
// type and package beyond a limit.
func run(out io.Writer, root string, rows int, most limits) error {
	t, err := read(root)
	if err != nil {
		return err
	}
	table(out, "methods of a type", t.methods, rows, goType.String)
	table(out, "fields of a struct", t.fields, rows, goType.String)
	same := func(s string) string { return s }
	table(out, "files of a package", t.files, rows, same)
	table(out, "lines of a folder, with tests", t.lines, rows, same)
	return errors.Join(
		beyond(t.methods, most.methods, "methods", goType.String),
		beyond(t.fields, most.fields, "fields", goType.String),
		beyond(t.files, most.files, "files", same))
}

func read(root string) (tree, error) {
	t := tree{methods: map[goType]int{}, fields: map[goType]int{}, files: map[string]int{}, lines: map[string]int{}}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != root && ignored(entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		path, err := filepath.Rel(root, name)
		if err != nil {
			return fmt.Errorf("path below %s: %w", root, err)
		}
		return t.readFile(name, filepath.ToSlash(path))
	})
	if err != nil {
		return tree{}, fmt.Errorf("read %s: %w", root, err)
	}
	return t, nil
}

// ignored tells whether the go command ignores a folder of this name ("go help packages").
func ignored(folder string) bool {
	return folder == "testdata" || folder == "vendor" || strings.HasPrefix(folder, ".") || strings.HasPrefix(folder, "_")
}

func (t tree) readFile(name, path string) error {
	content, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("file: %w", err)
	}
	top, _, nested := strings.Cut(path, "/")
	if !nested {
		top = "."
	}
	t.lines[top] += strings.Count(string(content), "\n")
	if strings.HasSuffix(path, "_test.go") {
		return nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	folder := filepath.ToSlash(filepath.Dir(path))
	t.files[folder]++
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				t.methods[goType{folder, receiver(d.Recv.List[0].Type)}]++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if s, isType := spec.(*ast.TypeSpec); isType {
					t.countFields(goType{folder, s.Name.Name}, s.Type)
				}
			}
		}
	}
	return nil
}

func (t tree) countFields(of goType, expression ast.Expr) {
	structure, isStruct := expression.(*ast.StructType)
	if !isStruct {
		return
	}
	for _, field := range structure.Fields.List {
		t.fields[of] += max(1, len(field.Names))
	}
}

// receiver returns the name of a method's type, without pointer and type parameters.
func receiver(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// descending returns the keys of counts, the largest count first, equal ones by name.
func descending[K comparable](counts map[K]int, name func(K) string) []K {
	keys := make([]K, 0, len(counts))
	for key := range counts {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b K) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(name(a), name(b)))
	})
	return keys
}

func table[K comparable](out io.Writer, title string, counts map[K]int, rows int, name func(K) string) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	keys := descending(counts, name)
	_, _ = fmt.Fprintf(out, "The %d most %s\n", min(rows, len(keys)), title)
	for _, key := range keys[:min(rows, len(keys))] {
		_, _ = fmt.Fprintf(w, "%d\t  %s\n", counts[key], name(key))
	}
	_ = w.Flush() // an error of out shows in the next write, and tables are for people
	_, _ = fmt.Fprintln(out)
}

func beyond[K comparable](counts map[K]int, most int, what string, name func(K) string) error {
	var errs []error
	for _, key := range descending(counts, name) {
		if counts[key] > most {
			errs = append(errs, fmt.Errorf("%s has %d %s, more than %d", name(key), counts[key], what, most))
		}
	}
	return errors.Join(errs...)
}
