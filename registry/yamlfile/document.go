// Package yamlfile reads one YAML file strictly, and knows the position of every value in it.
//
// [Parse] gives the value exactly as Helm and Kubernetes read it. It refuses anchors, aliases,
// merge keys, duplicate keys and anything else that two YAML parsers read differently.
// [Document.Decode] fills a struct. Both report every mistake with line and column, and never stop
// at the first. A [Problem] is a mistake in a file that has a path.
//
// Cost: time and memory are linear in the size of the file, for any content.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	helmyaml "sigs.k8s.io/yaml"
)

// maxDepth is the deepest nesting in a YAML file. Real values stay below twenty.
const maxDepth = 100

// Mistake is a [Problem] without a file name: a file is decoded once and may have several paths.
type Mistake struct {
	Point
	// Path leads from the top of the document to the mistake.
	Path          []string
	Message, Hint string
}

// Point is a position in a file; the zero point stands for the whole file.
type Point struct{ Line, Column int }

// In converts the point to a Position.
func (p Point) In(file, revision string) Position {
	return Position{File: file, Line: p.Line, Column: p.Column, Revision: revision}
}

// In converts the mistake to a Problem.
func (m Mistake) In(file, revision string) Problem {
	return Problem{At: m.Point.In(file, revision), Message: m.Message, Hint: m.Hint}
}

// Mistakes are all mistakes of a file.
type Mistakes []Mistake

// In converts the mistakes to Problems of a file.
func (ms Mistakes) In(file string) Problems {
	var out Problems
	for _, m := range ms {
		out = append(out, m.In(file, ""))
	}
	return out
}

// Document is one YAML file: nodes for the positions, and the value exactly as Helm and Kubernetes
// read it. The two come from different parsers (YAML 1.2 and 1.1). Where they differ, the value
// counts.
type Document struct {
	Root  *yaml.Node
	Value any
	Mistakes
	// broken: nothing in the file can be used.
	Broken bool

	// index has the positions of keys in the large mappings of Root: without it, looking up each
	// key of a mapping takes time that grows with the square of its size.
	index map[*yaml.Node]map[string]int
}

// indexed is the number of keys from which on a mapping is indexed.
const indexed = 32

// Parse parses one YAML file. Its time and memory are linear in the size of data, for any
// data: aliases are refused before they are followed.
func Parse(data []byte) *Document {
	d := &Document{}
	if !utf8.Valid(data) {
		return d.fail(invalidUTF8(data), "the file is not UTF-8")
	}
	d.readNodes(data)
	if d.Broken {
		return d
	}
	w := walker{doc: d}
	w.node(d.Root, nil)
	if w.fatal {
		d.Broken = true
		return d
	}
	if err := helmyaml.Unmarshal(data, &d.Value); err != nil {
		d.Broken = true
		if len(d.Mistakes) == 0 {
			d.fail(Point{}, "not valid YAML 1.1, as Helm and Kubernetes read it: "+err.Error())
		}
		return d
	}
	return d
}

// fail marks the document as broken.
func (d *Document) fail(at Point, message string) *Document {
	d.Broken = true
	d.Mistakes = append(d.Mistakes, Mistake{Point: at, Message: message})
	return d
}

// Add reports a mistake at the given path.
func (d *Document) Add(at Point, path []string, message, hint string) {
	d.Mistakes = append(d.Mistakes, Mistake{Point: at, Path: path, Message: message, Hint: hint})
}

// readNodes reads the only document of a file.
func (d *Document) readNodes(data []byte) {
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		d.fail(Point{}, "not valid YAML: "+err.Error())
		return
	}
	var first, second yaml.Node
	err = loader.Load(&first)
	if errors.Is(err, io.EOF) {
		d.fail(Point{}, "the file is empty")
		return
	}
	if err != nil {
		d.failYAML(err)
		return
	}
	err = loader.Load(&second)
	switch {
	case err == nil:
		d.fail(PointOf(&second), "the file holds more than one YAML document; put each into a file of its own")
		return
	case !errors.Is(err, io.EOF):
		d.failYAML(err)
		return
	}
	d.Root = Content(&first)
	if d.Root.Kind == yaml.ScalarNode && d.Root.Value == "" {
		d.fail(Point{}, "the file is empty")
		return
	}
	if d.Root.Kind != yaml.MappingNode {
		d.fail(PointOf(d.Root), "the file must hold a mapping, not "+describeKind(d.Root))
	}
}

// Content returns the node inside a document node.
func Content(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
		return n.Content[0]
	}
	return n
}

// failYAML reports a file that is not YAML, at the position from the parser.
func (d *Document) failYAML(err error) {
	load, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		d.fail(Point{}, "not valid YAML: "+err.Error())
		return
	}
	message := load.Message
	if load.ContextMsg != "" {
		message = load.ContextMsg + ": " + message
	}
	d.fail(Point{load.Mark.Line, load.Mark.Column}, "not valid YAML: "+message)
}

// invalidUTF8 returns the position of the first byte that is not UTF-8.
func invalidUTF8(data []byte) Point {
	p := Point{1, 1}
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && size <= 1:
			return p
		case r == '\n':
			p = Point{p.Line + 1, 1}
		default:
			p.Column++
		}
		data = data[size:]
	}
	return p
}

// walker finds what strict YAML refuses, before anything is decoded.
type walker struct {
	doc   *Document
	depth int
	fatal bool
}

func (w *walker) refuse(n *yaml.Node, path []string, message, hint string) {
	w.fatal = true
	w.doc.Add(PointOf(n), path, message, hint)
}

func (w *walker) node(n *yaml.Node, path []string) {
	if n.Anchor != "" {
		w.refuse(n, path, "YAML anchors and aliases are not supported (&"+n.Anchor+")",
			"write the value out, so that each line says what it sets")
	}
	if n.Kind == yaml.AliasNode {
		return // its anchor was reported
	}
	if w.depth >= maxDepth {
		w.refuse(n, path, fmt.Sprintf("nested deeper than %d levels", maxDepth), "")
		return
	}
	w.depth++
	defer func() { w.depth-- }()
	switch n.Kind {
	case yaml.MappingNode:
		w.tag(n, path, "!!map")
		w.mapping(n, path)
	case yaml.SequenceNode:
		w.tag(n, path, "!!seq")
		for i, item := range n.Content {
			w.node(item, Below(path, strconv.Itoa(i)))
		}
	case yaml.ScalarNode:
		w.scalar(n, path)
	default:
		w.refuse(n, path, "this YAML is not supported", "")
	}
}

func (w *walker) scalar(n *yaml.Node, path []string) {
	tag := n.ShortTag()
	if tag == "!!float" && n.Style == 0 && strings.Contains(strings.ToLower(n.Value), "n") {
		w.refuse(n, path, n.Value+" has no form in JSON", "")
		return
	}
	w.tag(n, path, "!!str", "!!int", "!!float", "!!bool", "!!null")
}

// tag refuses an explicit tag that is not in known.
func (w *walker) tag(n *yaml.Node, path []string, known ...string) {
	if tag := n.ShortTag(); n.Style&yaml.TaggedStyle != 0 && !slices.Contains(known, tag) {
		w.refuse(n, path, "the YAML tag "+tag+" is not supported", "")
	}
}

func (w *walker) mapping(n *yaml.Node, path []string) {
	seen := make(map[string]Point, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		sub := Below(path, key.Value)
		switch {
		case key.Anchor != "" || key.Kind == yaml.AliasNode:
			w.node(key, sub)
		case key.Kind != yaml.ScalarNode:
			w.refuse(key, path, "a key must be a string, not "+describeKind(key), "")
		case key.Value == "<<" && key.Style == 0:
			w.refuse(key, path, "YAML merge keys (<<) are not supported",
				"write the values out, so that each line says what it sets")
		case key.ShortTag() == "!!null":
			w.refuse(key, path, "a key must be a string, not null", "quote it")
		}
		if first, ok := seen[key.Value]; ok {
			w.doc.Add(PointOf(key), sub, fmt.Sprintf("duplicate key %q, first set on line %d", key.Value, first.Line), "")
		} else {
			seen[key.Value] = PointOf(key)
		}
		w.node(value, sub)
	}
}

// checkKeys reports keys of free-form values that Helm reads differently from their text: yes
// becomes "true", 010 becomes "8", 1.0 becomes "1".
func (d *Document) checkKeys(n *yaml.Node, value any, path []string) {
	switch n.Kind {
	case yaml.MappingNode:
		m, _ := value.(map[string]any)
		for i := 0; i+1 < len(n.Content); i += 2 {
			d.checkKey(n.Content[i], m, path)
			key := n.Content[i].Value
			d.checkKeys(n.Content[i+1], m[key], Below(path, key))
		}
	case yaml.SequenceNode:
		list, _ := value.([]any)
		for i, item := range n.Content {
			if i < len(list) {
				d.checkKeys(item, list[i], Below(path, strconv.Itoa(i)))
			}
		}
	default:
	}
}

// checkKey reports one key of m that is read differently from its text.
func (d *Document) checkKey(key *yaml.Node, m map[string]any, path []string) {
	_, ok := m[key.Value]
	switch tag := key.ShortTag(); {
	case m == nil || tag == "!!null": // reported already
	case !ok || key.Style == 0 && (tag == "!!int" || tag == "!!float" || tag == "!!bool"):
		d.Add(PointOf(key), Below(path, key.Value), "a key must be a string: "+key.Value+" is a number or boolean in YAML 1.1",
			fmt.Sprintf("quote it: %q", key.Value))
	}
}

// Wrong reports whether a mistake is known at the path or below it. Mistakes that follow from a
// known mistake are not reported.
func (d *Document) Wrong(path ...string) bool {
	return slices.ContainsFunc(d.Mistakes, func(m Mistake) bool {
		return len(m.Path) >= len(path) && slices.Equal(m.Path[:len(path)], path)
	})
}

// PointOf returns where a node starts.
func PointOf(n *yaml.Node) Point { return Point{n.Line, n.Column} }

// Below returns a copy of path with key appended.
func Below(path []string, key string) []string {
	sub := make([]string, len(path)+1)
	copy(sub, path)
	sub[len(path)] = key
	return sub
}

func describeKind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		return fmt.Sprintf("%q", n.Value)
	default:
		return "this"
	}
}

// Lookup finds the node at path. key is the node of its key, or nil in a list.
func (d *Document) Lookup(path ...string) (key, value *yaml.Node) {
	value = d.Root
	for _, step := range path {
		if value == nil {
			return nil, nil
		}
		key, value = d.child(value, step)
	}
	return key, value
}

// child is childNode for a node that is asked for many keys.
func (d *Document) child(n *yaml.Node, step string) (key, value *yaml.Node) {
	if n.Kind != yaml.MappingNode || len(n.Content) < 2*indexed {
		return childNode(n, step)
	}
	keys, known := d.index[n]
	if !known {
		keys = make(map[string]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			keys[n.Content[i].Value] = i // the last of a duplicate key is the one that was decoded
		}
		if d.index == nil {
			d.index = map[*yaml.Node]map[string]int{}
		}
		d.index[n] = keys
	}
	i, ok := keys[step]
	if !ok {
		return nil, nil
	}
	return n.Content[i], n.Content[i+1]
}

func childNode(n *yaml.Node, step string) (key, value *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		// The last of a duplicate key is the one that was decoded.
		for i := len(n.Content) - 2; i >= 0; i -= 2 {
			if n.Content[i].Value == step {
				return n.Content[i], n.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Content) {
			return nil, n.Content[i]
		}
	default:
	}
	return nil, nil
}

// KeyPoint returns the position of the key at path, or of the item in a list. If the path does not
// exist, it returns the position of the nearest ancestor.
func (d *Document) KeyPoint(path ...string) Point {
	for ; len(path) > 0; path = path[:len(path)-1] {
		key, value := d.Lookup(path...)
		if key != nil {
			return PointOf(key)
		}
		if value != nil {
			return PointOf(value)
		}
	}
	return Point{}
}

// ValuePoint returns the position of the value at path, or of the nearest ancestor's key.
func (d *Document) ValuePoint(path ...string) Point {
	if _, value := d.Lookup(path...); value != nil {
		return PointOf(value)
	}
	return d.KeyPoint(path...)
}
