package renderer

import (
	"strconv"

	"go.yaml.in/yaml/v4"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// origin returns where meta-config sets exactly the value at a path below .Values.
func origin(v *registry.Values, path []string) (yamlfile.Position, bool) {
	if !has(v.Map(), path) {
		return yamlfile.Position{}, false
	}
	return v.Origin(path...)
}

// has reports whether there is a value at a path, even null.
func has(v any, path []string) bool {
	for _, k := range path {
		switch at := v.(type) {
		case map[string]any:
			next, ok := at[k]
			if !ok {
				return false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(k)
			if err != nil || i < 0 || i >= len(at) {
				return false
			}
			v = at[i]
		default:
			return false
		}
	}
	return true
}

// yamlLine returns the line of a path's key in a YAML file.
func yamlLine(data []byte, path []string) (int, bool) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil || len(doc.Content) == 0 {
		return 0, false
	}
	n, line := doc.Content[0], 0
	for _, k := range path {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		next, at := child(n, k)
		if next == nil {
			return 0, false
		}
		n, line = next, at
	}
	return line, line > 0
}

// child returns the node under a key or index, and the line where it is set.
func child(n *yaml.Node, key string) (*yaml.Node, int) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return n.Content[i+1], n.Content[i].Line
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i].Line
		}
	default:
	}
	return nil, 0
}
