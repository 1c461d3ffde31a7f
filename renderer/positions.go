package renderer

import (
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/keelson-io/keelson/registry"
)

// origin is where meta-config set the value at a path below .Values.
func origin(v *registry.Values, path []string) (registry.Position, bool) {
	if v == nil {
		return registry.Position{}, false
	}
	o, ok := any(v).(interface {
		Origin(path []string) (registry.Position, bool)
	})
	if !ok {
		return registry.Position{}, false
	}
	return o.Origin(path)
}

// yamlLine is the line of a path's key in a YAML file.
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

// child is the node under a key or index, and the line where it is set.
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
	}
	return nil, 0
}
