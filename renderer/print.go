package renderer

import (
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// WriteYAML writes the target's objects and hooks as a stream of YAML
// documents, each below a comment that names its source. Keys are in
// alphabetical order.
func WriteYAML(w io.Writer, t *Target) error {
	for _, list := range [][]*Object{t.Objects, t.Hooks} {
		for _, o := range list {
			text, err := yaml.Marshal(o.Content)
			if err != nil {
				return fmt.Errorf("write %s: %w", o.Source, err)
			}
			if _, err := fmt.Fprintf(w, "---\n# Source: %s\n%s", o.Source, text); err != nil {
				return fmt.Errorf("write target: %w", err)
			}
		}
	}
	return nil
}
