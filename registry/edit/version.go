package edit

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Version replaces the version of a component, from by to, in a layer or in a meta-config file. It
// returns the changed line, from 1. It is an error if the file has another version than from.
func Version(data []byte, component, from, to string) (edited []byte, line int, err error) {
	f, err := parse(data)
	if err != nil {
		return nil, 0, err
	}
	_, kind := f.find("kind")
	path := []string{"version"}
	switch {
	case kind == nil:
		return nil, 0, errors.New("it has no kind")
	case kind.Value == v1alpha1.KindLayer:
		path = []string{"components", component, "version"}
	case kind.Value != v1alpha1.KindMetaConfig:
		return nil, 0, fmt.Errorf("its kind is %q, which has no version", kind.Value)
	}
	is := below(f.root, path)
	switch {
	case is == nil || is.Kind != yaml.ScalarNode:
		return nil, 0, fmt.Errorf("it sets no version of %s", component)
	case is.Value != from:
		return nil, 0, fmt.Errorf("line %d: the version of %s is %s, and not %s", is.Line, component, is.Value, from)
	}
	before, rest, ok := f.cut(is)
	if !ok || !strings.HasPrefix(rest, from) {
		return nil, 0, fmt.Errorf("line %d: the version of %s is not written in one piece: change it by hand", is.Line, component)
	}
	f.lines[is.Line-1] = before + to + strings.TrimPrefix(rest, from)
	edited = []byte(strings.Join(f.lines, ""))
	want := map[string]any{}
	if err := f.root.Decode(&want); err != nil {
		return nil, 0, fmt.Errorf("it can't be read: %w", err)
	}
	set(want, path, to)
	return edited, is.Line, f.check(edited, path[0], want[path[0]])
}

// below returns the value at a path of block or flow mappings, or nil.
func below(n *yaml.Node, path []string) *yaml.Node {
	for _, step := range path {
		var found *yaml.Node
		if n.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == step {
					found = n.Content[i+1]
				}
			}
		}
		if found == nil {
			return nil
		}
		n = found
	}
	return n
}

// cut splits the line of a scalar before its first character, after the opening quote.
func (f *file) cut(n *yaml.Node) (before, rest string, ok bool) {
	line := []rune(f.lines[n.Line-1])
	at := n.Column - 1
	if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		at++
	}
	if at < 0 || at > len(line) {
		return "", "", false
	}
	return string(line[:at]), string(line[at:]), true
}

func set(m map[string]any, path []string, value any) {
	for _, step := range path[:len(path)-1] {
		next, _ := m[step].(map[string]any)
		m = next
	}
	m[path[len(path)-1]] = value
}
