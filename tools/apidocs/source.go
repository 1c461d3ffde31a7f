package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// apiPackage holds the types and string constants of one package of the API.
type apiPackage struct {
	types     map[string]*apiType
	order     []string // the names of types, as in the source
	constants []apiConstant
}

// apiType is a struct, or a string with a few values.
type apiType struct {
	name, doc string
	markers   []string // those of kubebuilder, without the plus sign
	fields    []apiField
	values    []apiConstant
	isStruct  bool
}

// apiField is a field of a struct as JSON and YAML have it.
type apiField struct {
	name     string // in Go
	key      string // in YAML; empty: the fields of an embedded struct
	doc      string
	of       ast.Expr
	required bool
}

// apiConstant is a string constant.
type apiConstant struct{ name, value, doc string }

// fileKind is a kind of file, with its path in a fleet repository.
type fileKind struct{ name, path string }

// readPackage reads the Go files of a folder, without tests and generated ones.
func readPackage(folder string) (*apiPackage, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no Go files in %s: %w", folder, err)
	}
	p := &apiPackage{types: map[string]*apiType{}}
	for _, file := range files {
		if base := filepath.Base(file); strings.HasSuffix(base, "_test.go") || strings.HasPrefix(base, "zz_generated") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse: %w", err)
		}
		p.read(parsed)
	}
	for _, c := range p.constants {
		if of, _, typed := strings.Cut(c.name, " "); typed && p.types[of] != nil {
			c.name = strings.TrimPrefix(c.name, of+" ")
			p.types[of].values = append(p.types[of].values, c)
		}
	}
	for i := range p.constants {
		if _, name, typed := strings.Cut(p.constants[i].name, " "); typed {
			p.constants[i].name = name
		}
	}
	return p, nil
}

func (p *apiPackage) read(file *ast.File) {
	for _, declaration := range file.Decls {
		d, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				doc, markers := comment(s.Doc, d.Doc)
				t := &apiType{name: s.Name.Name, doc: doc, markers: markers}
				if structure, is := s.Type.(*ast.StructType); is {
					t.isStruct, t.fields = true, fieldsOf(structure)
				}
				p.types[t.name] = t
				p.order = append(p.order, t.name)
			case *ast.ValueSpec:
				p.readConstant(s, d)
			}
		}
	}
}

// readConstant adds a string constant. While reading, the name of a typed one begins with its type.
func (p *apiPackage) readConstant(s *ast.ValueSpec, d *ast.GenDecl) {
	if len(s.Values) != 1 || d.Tok != token.CONST {
		return
	}
	c := apiConstant{name: s.Names[0].Name, value: p.valueOf(s.Values[0])}
	docs := []*ast.CommentGroup{s.Doc, s.Comment}
	if !d.Lparen.IsValid() {
		docs = append(docs, d.Doc)
	}
	c.doc, _ = comment(docs...)
	if of, is := s.Type.(*ast.Ident); is {
		c.name = of.Name + " " + c.name
	}
	if c.value != "" {
		p.constants = append(p.constants, c)
	}
}

// valueOf returns the value of an expression of strings; "" if it is something else.
func (p *apiPackage) valueOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		value, err := strconv.Unquote(e.Value)
		if err != nil || e.Kind != token.STRING {
			return ""
		}
		return value
	case *ast.Ident:
		i := slices.IndexFunc(p.constants, func(c apiConstant) bool { return c.name == e.Name })
		if i >= 0 {
			return p.constants[i].value
		}
	case *ast.BinaryExpr:
		return p.valueOf(e.X) + p.valueOf(e.Y)
	}
	return ""
}

func fieldsOf(structure *ast.StructType) []apiField {
	var out []apiField
	for _, f := range structure.Fields.List {
		tag := ""
		if f.Tag != nil {
			quoted, _ := strconv.Unquote(f.Tag.Value) // the parser has read it
			_, tag, _ = strings.Cut(quoted, `json:"`)
			tag, _, _ = strings.Cut(tag, `"`)
		}
		key, options, _ := strings.Cut(tag, ",")
		doc, _ := comment(f.Doc, f.Comment)
		one := apiField{key: key, doc: doc, of: f.Type, required: !strings.Contains(options, "omitempty")}
		if len(f.Names) > 0 {
			one.name = f.Names[0].Name
		}
		out = append(out, one)
	}
	return out
}

// comment returns the text of the first comment that there is, in paragraphs of one line, and the
// markers in it.
func comment(groups ...*ast.CommentGroup) (text string, markers []string) {
	for _, group := range groups {
		if group == nil {
			continue
		}
		var lines []string
		for line := range strings.SplitSeq(group.Text(), "\n") {
			if marker, is := strings.CutPrefix(line, "+"); is {
				markers = append(markers, marker)
				continue
			}
			lines = append(lines, strings.TrimSpace(line))
		}
		text = strings.TrimSpace(strings.Join(lines, "\n"))
		paragraphs := strings.Split(text, "\n\n")
		for i, paragraph := range paragraphs {
			paragraphs[i] = strings.Join(strings.Fields(paragraph), " ")
		}
		return strings.Join(paragraphs, "\n\n"), markers
	}
	return "", nil
}

// fileKinds returns the kinds of files: constants KindX whose comment is the file's path.
func (p *apiPackage) fileKinds() []fileKind {
	var out []fileKind
	for _, c := range p.constants {
		if strings.HasPrefix(c.name, "Kind") && c.doc != "" {
			out = append(out, fileKind{c.value, c.doc})
		}
	}
	return out
}

// rootKinds returns the kinds of custom resources, without lists.
func (p *apiPackage) rootKinds() []string {
	var out []string
	for _, name := range p.order {
		t := p.types[name]
		if slices.Contains(t.markers, "kubebuilder:object:root=true") && !strings.HasSuffix(name, "List") {
			out = append(out, name)
		}
	}
	return out
}
