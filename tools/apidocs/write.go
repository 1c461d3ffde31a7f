package main

import (
	"errors"
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// writer writes one page.
type writer struct {
	p        *apiPackage
	b        strings.Builder
	done     map[string]bool // types that are on the page
	required bool            // users write these types: tables say what is required
	problems []error
}

func newWriter(p *apiPackage, required bool) *writer {
	return &writer{p: p, done: map[string]bool{}, required: required}
}

func (w *writer) printf(format string, args ...any) { fmt.Fprintf(&w.b, format, args...) }

func (w *writer) text() (string, error) {
	return w.b.String(), errors.Join(w.problems...)
}

// kind writes the section of a kind, and below it those of the types that only it has needed so far.
func (w *writer) kind(name string) {
	t := w.p.types[name]
	if t == nil {
		w.problems = append(w.problems, fmt.Errorf("there is no type %s", name))
		return
	}
	w.section("##", t)
	w.columns(t)
	for below := w.below(t); len(below) > 0; {
		next := w.p.types[below[0]]
		below = below[1:]
		if w.done[next.name] {
			continue
		}
		w.section("###", next)
		below = append(w.below(next), below...)
	}
}

// section writes one type.
func (w *writer) section(level string, t *apiType) {
	w.done[t.name] = true
	if t.doc == "" {
		w.problems = append(w.problems, fmt.Errorf("%s: %w", t.name, errNoComment))
	}
	w.printf("\n%s %s\n\n", level, t.name)
	for paragraph := range strings.SplitSeq(t.doc, "\n\n") {
		w.printf("%s\n\n", wrap(w.prose(paragraph, t)))
	}
	if !t.isStruct {
		w.values(t)
		return
	}
	fields := w.flat(t)
	defaults := w.required || slices.ContainsFunc(fields, func(f documented) bool { return f.otherwise != "" })
	if defaults {
		w.printf("| Field | Type | Default | Meaning |\n|---|---|---|---|\n")
	} else {
		w.printf("| Field | Type | Meaning |\n|---|---|---|\n")
	}
	for _, f := range fields {
		w.printf("| `%s` | %s |", f.key, w.typeText(f.of))
		if defaults {
			otherwise := f.otherwise
			if w.required && f.required {
				otherwise = "**required**"
			}
			w.printf(" %s |", otherwise)
		}
		w.printf(" %s |\n", f.meaning)
	}
}

func (w *writer) values(t *apiType) {
	w.printf("| Value | Meaning |\n|---|---|\n")
	for _, v := range t.values {
		if v.doc == "" {
			w.problems = append(w.problems, fmt.Errorf("%s: %w", v.name, errNoComment))
		}
		w.printf("| `%s` | %s |\n", v.value, cell(w.prose(strings.TrimPrefix(v.doc, v.name+": "), t)))
	}
}

// documented is a field with its texts in Markdown.
type documented struct {
	apiField
	meaning, otherwise string
}

var (
	defaultSentence = regexp.MustCompile(`(?:^|\s)Default: (.+?)\.(?:\s|$)`)
	defaultClause   = regexp.MustCompile(`; default ([^.;]+)`)
)

// flat returns the fields of a struct with those of embedded ones. A field without a comment has
// the one before it, which has to name it.
func (w *writer) flat(t *apiType) []documented {
	var out []documented
	before := ""
	for _, f := range t.fields {
		if f.key == "" || f.key == "metadata" {
			before = ""
			if embedded, is := f.of.(*ast.Ident); is && f.key == "" && embedded.Name != "Header" {
				out = append(out, w.flat(w.p.types[embedded.Name])...)
			}
			continue
		}
		if f.doc == "" && regexp.MustCompile(`\b`+f.name+`\b`).MatchString(before) {
			f.doc = before
		}
		if f.doc == "" {
			w.problems = append(w.problems, fmt.Errorf("%s.%s: %w", t.name, f.name, errNoComment))
		}
		before = f.doc
		one, text := documented{apiField: f}, strings.ReplaceAll(f.doc, "\n\n", " ")
		for _, pattern := range []*regexp.Regexp{defaultSentence, defaultClause} {
			if m := pattern.FindStringSubmatch(text); m != nil {
				one.otherwise = cell(w.prose(m[1], t))
				text = strings.TrimSpace(strings.Replace(text, strings.TrimRight(m[0], " "), "", 1))
			}
		}
		one.meaning = cell(w.prose(text, t))
		out = append(out, one)
	}
	return out
}

// columns writes what kubectl get shows of a custom resource.
func (w *writer) columns(t *apiType) {
	value := func(marker, key string) string {
		m := regexp.MustCompile(`\b` + key + "=(?:\"([^\"]*)\"|`([^`]*)`|([^,]*))").FindStringSubmatch(marker)
		if m == nil {
			return ""
		}
		return m[1] + m[2] + m[3]
	}
	var rows []string
	for _, marker := range t.markers {
		if text, is := strings.CutPrefix(marker, "kubebuilder:resource:"); is {
			if short := value(text, "shortName"); short != "" {
				w.printf("\nShort name for kubectl: `%s`.\n", strings.ReplaceAll(short, ";", "`, `"))
			}
		}
		if text, is := strings.CutPrefix(marker, "kubebuilder:printcolumn:"); is {
			wide := ""
			if value(text, "priority") == "1" {
				wide = "`-o wide`"
			}
			rows = append(rows, fmt.Sprintf("| %s | `%s` | %s |\n", value(text, "name"), value(text, "JSONPath"), wide))
		}
	}
	if len(rows) > 0 {
		w.printf("\nColumns of `kubectl get`:\n\n| Column | Field | Only with |\n|---|---|---|\n%s", strings.Join(rows, ""))
	}
}

// constants writes a table of the string constants whose names have one of the prefixes.
func (w *writer) constants(title string, prefixes ...string) {
	w.printf("\n## %s\n\n| Name | Meaning |\n|---|---|\n", title)
	for _, c := range w.p.constants {
		if !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(c.name, prefix) }) {
			continue
		}
		if c.doc == "" {
			w.problems = append(w.problems, fmt.Errorf("%s: %w", c.name, errNoComment))
		}
		w.printf("| `%s` | %s |\n", c.value, cell(w.prose(c.doc, &apiType{})))
	}
}

// below returns the types of this package that the fields of a type have.
func (w *writer) below(t *apiType) []string {
	var out []string
	for _, f := range t.fields {
		ast.Inspect(f.of, func(n ast.Node) bool {
			if _, foreign := n.(*ast.SelectorExpr); foreign {
				return false
			}
			id, is := n.(*ast.Ident)
			if !is || w.p.types[id.Name] == nil || id.Name == "Header" {
				return true
			}
			if f.key == "" { // embedded: its fields are those of t
				out = append(out, w.below(w.p.types[id.Name])...)
			} else if !w.done[id.Name] && w.isShown(id.Name) {
				out = append(out, id.Name)
			}
			return true
		})
	}
	return out
}

// isShown reports whether a type has a section: an alias of another package's type has none.
func (w *writer) isShown(name string) bool {
	t := w.p.types[name]
	return t.isStruct || len(t.values) > 0
}

// foreign returns how types of other packages are called.
func foreign() map[string]string {
	const labels = "https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors"
	return map[string]string{
		"metav1.Duration": "duration", "metav1.Time": "time", "metav1.MicroTime": "time", "metav1.Condition": "condition",
		"metav1.LabelSelector": "[label selector](" + labels + ")", "intstr.IntOrString": "number or percentage",
	}
}

// typeText returns a type as users write it.
func (w *writer) typeText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return w.typeText(e.X)
	case *ast.ArrayType:
		return "list of " + w.typeText(e.Elt)
	case *ast.MapType:
		if w.typeText(e.Value) == "any" {
			return "map"
		}
		return "map of " + w.typeText(e.Value)
	case *ast.SelectorExpr:
		name := fmt.Sprint(e.X) + "." + e.Sel.Name
		if text, known := foreign()[name]; known {
			return text
		}
		return "`" + e.Sel.Name + "` of Kubernetes"
	case *ast.Ident:
		switch {
		case e.Name == "IntOrString":
			return foreign()["intstr.IntOrString"]
		case w.p.types[e.Name] != nil && w.isShown(e.Name):
			return fmt.Sprintf("[%s](#%s)", e.Name, anchor(e.Name))
		}
		return map[string]string{"bool": "boolean", "int": "integer", "int32": "integer", "int64": "integer", "float64": "number"}[e.Name] +
			map[string]string{"string": "string", "any": "any"}[e.Name]
	}
	return "?"
}

var (
	docLink = regexp.MustCompile(`\[([A-Z]\w*)(?:\.([A-Z]\w*))?\]`)
	word    = regexp.MustCompile(`[A-Za-z_]\w*(?:\.[A-Z]\w*)*`)
	camel   = regexp.MustCompile(`[a-z][A-Z]`)
)

// prose returns a comment in Markdown: names of Go become those of YAML.
func (w *writer) prose(text string, t *apiType) string {
	text = strings.NewReplacer(`<`, `\<`, `*`, `\*`).Replace(text)
	var links []string
	text = docLink.ReplaceAllStringFunc(text, func(found string) string {
		m := docLink.FindStringSubmatch(found)
		links = append(links, w.link(m[1], m[2]))
		return fmt.Sprintf("\x00%d\x00", len(links)-1)
	})
	var b strings.Builder
	end := 0
	for _, at := range word.FindAllStringIndex(text, -1) {
		b.WriteString(text[end:at[0]])
		b.WriteString(w.name(text[at[0]:at[1]], text[:at[0]], t))
		end = at[1]
	}
	text = b.String() + text[end:]
	for i, link := range links {
		text = strings.Replace(text, fmt.Sprintf("\x00%d\x00", i), link, 1)
	}
	return text
}

// name returns a word of a comment, as code if it is a name of Go: a field becomes its key, a
// constant its value. After an article it is an English word, and so is the name of the field
// that the comment begins with.
func (w *writer) name(found, before string, t *apiType) string {
	isValue := func(c apiConstant) bool { return camel.MatchString(found) && c.value == found }
	first := word.FindString(before)
	if first != "" && slices.ContainsFunc(w.p.constants, isValue) {
		return "`" + found + "`"
	}
	article := regexp.MustCompile(`\b(?:[Aa]|[Aa]n|[Aa]nother|[Tt]he) $`).MatchString(before)
	if key := w.pathOf(t, found); key != "" && found != t.name && found != first && !article {
		return "`" + key + "`"
	}
	for _, c := range w.p.constants {
		if c.name == found && camel.MatchString(found) { // Namespace is an English word, too
			return "`" + c.value + "`"
		}
	}
	return found
}

// link returns what a link to a type, a field or a constant of Go becomes.
func (w *writer) link(name, field string) string {
	t := w.p.types[name]
	if t == nil {
		for _, c := range w.p.constants {
			if c.name == name {
				return "`" + c.value + "`"
			}
		}
		return name
	}
	text := name
	if field != "" {
		text = fmt.Sprintf("`%s` of %s", keyOf(t, field), name)
	}
	if !w.done[name] && !w.required {
		return text
	}
	return fmt.Sprintf("[%s](#%s)", text, anchor(name))
}

// pathOf returns the path in YAML of fields of Go, such as HTTP.URL; "" if there is none.
func (w *writer) pathOf(t *apiType, names string) string {
	name, rest, nested := strings.Cut(names, ".")
	key := keyOf(t, name)
	if key == "" || !nested {
		return key
	}
	for _, f := range t.fields {
		of := f.of
		if pointer, is := of.(*ast.StarExpr); is {
			of = pointer.X
		}
		if id, is := of.(*ast.Ident); is && f.name == name && w.p.types[id.Name] != nil {
			if below := w.pathOf(w.p.types[id.Name], rest); below != "" {
				return key + "." + below
			}
		}
	}
	return ""
}

// keyOf returns the key of a field in YAML; "" if the type has no such field.
func keyOf(t *apiType, name string) string {
	for _, f := range t.fields {
		if f.name == name && f.key != "" {
			return f.key
		}
	}
	return ""
}

// cell returns a text for a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func anchor(heading string) string { return strings.ToLower(heading) }

// columns of a line of prose.
const columns = 120

// wrap breaks a paragraph into lines.
func wrap(text string) string {
	var b strings.Builder
	width := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case width+1+len(word) > columns:
			b.WriteByte('\n')
			width = 0
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += len(word)
	}
	return b.String()
}
