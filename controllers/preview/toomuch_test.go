//go:build !race

package preview_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/differ"
)

// A change that is too much to preview has no preview at all: a part of it, or a group of
// which nothing is known, could hide what the rest does.
func TestTooMuch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bytes  int64
		change func(*fleet)
		want   error
	}{
		"Enough": {1 << 20, func(*fleet) {}, nil},
		// 2,000 objects, of which each takes a few hundred bytes.
		"Memory": {512 << 10, func(f *fleet) {
			f.component("web", "{{ range $i := until 2000 }}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c{{ $i }}}\ndata: {a: b}\n{{ end }}")
		}, preview.ErrTooMuch},
		// 200 rules, of which each asks 800 questions of each of 1,000 fields: minutes.
		"Rules": {1 << 30, func(f *fleet) {
			var rules strings.Builder
			for i := range 200 {
				fmt.Fprintf(&rules, "- {name: r%d, path: .data, when: '[0,1,2,3,4,5,6,7,8,9].all(a,[0,1,2,3,4,5,6,7,8,9].all(b,[0,1,2,3,4,5,6,7].all(c, a+b+c < 99))) && new == \"never\"', effect: deny, because: x}\n", i)
			}
			f.write("components/web/component.yaml", header+"Component\nnamespace: web\ndanger:\n"+rules.String())
			f.edit("components/web/template/templates/all.yaml", "apiVersion: apps/v1", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n{{- range $i := until 1000 }}\n  k{{ $i }}: v\n{{- end }}\n---\napiVersion: apps/v1")
		}, differ.ErrTooMuch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "a", "b")
			f.commit()
			f.edit("layers/10-base.yaml", "replicas: 2", "replicas: 4")
			c.change(f)
			if _, err := f.make(c.bytes); !errors.Is(err, c.want) {
				t.Errorf("the error is %v, want %v", err, c.want)
			}
		})
	}
}
