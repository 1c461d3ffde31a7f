package registry

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

// mistake is a [Problem] without a file name: a file is decoded once and may have several paths.
type mistake struct {
	point
	// path leads from the top of the document to the mistake.
	path          []string
	message, hint string
}

// point is a position in a file; the zero point stands for the whole file.
type point struct{ line, column int }

// in converts the point to a Position.
func (p point) in(file, revision string) Position {
	return Position{File: file, Line: p.line, Column: p.column, Revision: revision}
}

// in converts the mistake to a Problem.
func (m mistake) in(file, revision string) Problem {
	return Problem{At: m.point.in(file, revision), Message: m.message, Hint: m.hint}
}

// mistakes are all mistakes of a file.
type mistakes []mistake

// in converts the mistakes to Problems of a file.
func (ms mistakes) in(file string) Problems {
	var out Problems
	for _, m := range ms {
		out = append(out, m.in(file, ""))
	}
	return out
}

// document is one YAML file: nodes for the positions, and the value exactly as Helm and Kubernetes
// read it. The two come from different parsers (YAML 1.2 and 1.1). Where they differ, the value
// counts.
type document struct {
	root  *yaml.Node
	value any
	mistakes
	// broken: nothing in the file can be used.
	broken bool
	// encrypted is the file itself, if some of its values are encrypted.
	encrypted *encryptedDocument
}

// parseDocument parses one YAML file. Its time and memory are linear in the size of data, for any
// data: aliases are refused before they are followed.
func parseDocument(data []byte) *document {
	d := &document{}
	if !utf8.Valid(data) {
		return d.fail(invalidUTF8(data), "the file is not UTF-8")
	}
	d.readNodes(data)
	if d.broken {
		return d
	}
	w := walker{doc: d}
	w.node(d.root, nil)
	if w.fatal {
		d.broken = true
		return d
	}
	if err := helmyaml.Unmarshal(data, &d.value); err != nil {
		d.broken = true
		if len(d.mistakes) == 0 {
			d.fail(point{}, "not valid YAML 1.1, as Helm and Kubernetes read it: "+err.Error())
		}
		return d
	}
	return d
}

// fail marks the document as broken.
func (d *document) fail(at point, message string) *document {
	d.broken = true
	d.mistakes = append(d.mistakes, mistake{point: at, message: message})
	return d
}

// add reports a mistake at the given path.
func (d *document) add(at point, path []string, message, hint string) {
	d.mistakes = append(d.mistakes, mistake{point: at, path: path, message: message, hint: hint})
}

// readNodes reads the only document of a file.
func (d *document) readNodes(data []byte) {
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		d.fail(point{}, "not valid YAML: "+err.Error())
		return
	}
	var first, second yaml.Node
	err = loader.Load(&first)
	if errors.Is(err, io.EOF) {
		d.fail(point{}, "the file is empty")
		return
	}
	if err != nil {
		d.failYAML(err)
		return
	}
	err = loader.Load(&second)
	switch {
	case err == nil:
		d.fail(at(&second), "the file holds more than one YAML document; put each into a file of its own")
		return
	case !errors.Is(err, io.EOF):
		d.failYAML(err)
		return
	}
	d.root = content(&first)
	if d.root.Kind == yaml.ScalarNode && d.root.Value == "" {
		d.fail(point{}, "the file is empty")
		return
	}
	if d.root.Kind != yaml.MappingNode {
		d.fail(at(d.root), "the file must hold a mapping, not "+describeKind(d.root))
	}
}

// content returns the node inside a document node.
func content(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
		return n.Content[0]
	}
	return n
}

// failYAML reports a file that is not YAML, at the position from the parser.
func (d *document) failYAML(err error) {
	load, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		d.fail(point{}, "not valid YAML: "+err.Error())
		return
	}
	message := load.Message
	if load.ContextMsg != "" {
		message = load.ContextMsg + ": " + message
	}
	d.fail(point{load.Mark.Line, load.Mark.Column}, "not valid YAML: "+message)
}

// invalidUTF8 returns the position of the first byte that is not UTF-8.
func invalidUTF8(data []byte) point {
	p := point{1, 1}
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && size <= 1:
			return p
		case r == '\n':
			p = point{p.line + 1, 1}
		default:
			p.column++
		}
		data = data[size:]
	}
	return p
}

// walker finds what strict YAML refuses, before anything is decoded.
type walker struct {
	doc   *document
	depth int
	fatal bool
}

func (w *walker) refuse(n *yaml.Node, path []string, message, hint string) {
	w.fatal = true
	w.doc.add(at(n), path, message, hint)
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
			w.node(item, below(path, strconv.Itoa(i)))
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
	seen := make(map[string]point, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		sub := below(path, key.Value)
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
			w.doc.add(at(key), sub, fmt.Sprintf("duplicate key %q, first set on line %d", key.Value, first.line), "")
		} else {
			seen[key.Value] = at(key)
		}
		w.node(value, sub)
	}
}

// checkKeys reports keys of free-form values that Helm reads differently from their text: yes
// becomes "true", 010 becomes "8", 1.0 becomes "1".
func (d *document) checkKeys(n *yaml.Node, value any, path []string) {
	switch n.Kind {
	case yaml.MappingNode:
		m, _ := value.(map[string]any)
		for i := 0; i+1 < len(n.Content); i += 2 {
			d.checkKey(n.Content[i], m, path)
			key := n.Content[i].Value
			d.checkKeys(n.Content[i+1], m[key], below(path, key))
		}
	case yaml.SequenceNode:
		list, _ := value.([]any)
		for i, item := range n.Content {
			if i < len(list) {
				d.checkKeys(item, list[i], below(path, strconv.Itoa(i)))
			}
		}
	default:
	}
}

// checkKey reports one key of m that is read differently from its text.
func (d *document) checkKey(key *yaml.Node, m map[string]any, path []string) {
	_, ok := m[key.Value]
	switch tag := key.ShortTag(); {
	case m == nil || tag == "!!null": // reported already
	case !ok || key.Style == 0 && (tag == "!!int" || tag == "!!float" || tag == "!!bool"):
		d.add(at(key), below(path, key.Value), "a key must be a string: "+key.Value+" is a number or boolean in YAML 1.1",
			fmt.Sprintf("quote it: %q", key.Value))
	}
}

// wrong reports whether a mistake is known at the path or below it. Mistakes that follow from a
// known mistake are not reported.
func (d *document) wrong(path ...string) bool {
	return slices.ContainsFunc(d.mistakes, func(m mistake) bool {
		return len(m.path) >= len(path) && slices.Equal(m.path[:len(path)], path)
	})
}

// at returns where a node starts.
func at(n *yaml.Node) point { return point{n.Line, n.Column} }

// below returns a copy of path with key appended.
func below(path []string, key string) []string {
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

// lookup finds the node at path. key is the node of its key, or nil in a list.
func (d *document) lookup(path ...string) (key, value *yaml.Node) {
	value = d.root
	for _, step := range path {
		if value == nil {
			return nil, nil
		}
		key, value = childNode(value, step)
	}
	return key, value
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

// keyPoint returns the position of the key at path, or of the item in a list. If the path does not
// exist, it returns the position of the nearest ancestor.
func (d *document) keyPoint(path ...string) point {
	for ; len(path) > 0; path = path[:len(path)-1] {
		key, value := d.lookup(path...)
		if key != nil {
			return at(key)
		}
		if value != nil {
			return at(value)
		}
	}
	return point{}
}

// valuePoint returns the position of the value at path, or of the nearest ancestor's key.
func (d *document) valuePoint(path ...string) point {
	if _, value := d.lookup(path...); value != nil {
		return at(value)
	}
	return d.keyPoint(path...)
}
