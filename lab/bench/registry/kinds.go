package registry

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/lab/harness/must"

	"github.com/keelson-io/keelson/lab/fleet"
)

// kind is a typical kind of commit.
type kind struct {
	name string
	// push pushes the i-th commit of this kind.
	push func(ctx context.Context, m *measurement, i int)
}

func kinds() []kind {
	return []kind{
		{"cluster file", pushClusterFile},
		{"layer, few", func(ctx context.Context, m *measurement, i int) { pushLayer(ctx, m, i, false) }},
		{"layer, many", func(ctx context.Context, m *measurement, i int) { pushLayer(ctx, m, i, true) }},
		{"new version", pushVersion},
	}
}

// pushClusterFile changes one cluster's values of one component.
func pushClusterFile(ctx context.Context, m *measurement, i int) {
	c := m.fleet.Clusters[i%len(m.fleet.Clusters)]
	path := fmt.Sprintf("clusters/%s/%s.yaml", c.Name, c.Deliveries[i%len(c.Deliveries)].Component)
	content := fmt.Sprintf("apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nvalues:\n  replicas: %d\n", 100+i)
	must.Do(fleet.Push(ctx, m.dir, fleet.Commit{Files: map[string][]byte{path: []byte(content)}}))
}

// pushLayer changes one line for all clusters. The component is the one with the most distinct
// inputs, or the one with the median number.
func pushLayer(ctx context.Context, m *measurement, i int, most bool) {
	component := m.varied(most)
	line := fmt.Sprintf("  %s:\n    version:", component)
	data := must.Get(fleet.Read(ctx, m.dir, allLayer))
	_, entry, ok := bytes.Cut(data, []byte(line))
	if !ok {
		must.Failf("%s has no %s", allLayer, component)
	}
	version, _, _ := bytes.Cut(entry, []byte("\n"))
	start := line + string(version) + "\n    values:\n      commonLabels:"
	change{
		path: allLayer, start: start, line: start + fmt.Sprintf(" {fleet: made-up, team: other-%d-%t}", i, most),
	}.push(ctx, m)
}

// allLayer is the path of the layer for all clusters.
const allLayer = "layers/10-all.yaml"

// varied returns the component with the most distinct inputs, or the one with the median number.
func (m *measurement) varied(most bool) string {
	inputs := map[string]map[any]bool{}
	for _, c := range m.fleet.Clusters {
		for _, d := range c.Deliveries {
			if inputs[d.Component] == nil {
				inputs[d.Component] = map[any]bool{}
			}
			inputs[d.Component][d.Values.Identity()] = true
		}
	}
	names := slices.SortedFunc(maps.Keys(inputs), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(inputs[a]), len(inputs[b])), cmp.Compare(a, b))
	})
	if most {
		return names[len(names)-1]
	}
	return names[len(names)/2]
}

// pushVersion publishes a version of a component, and sets that version for all clusters in a
// layer.
func pushVersion(ctx context.Context, m *measurement, i int) {
	component := m.varied(false)
	version := fmt.Sprintf("v2.0.%d", i)
	publish := change{
		path:  "components/" + component + "/template/values.yaml",
		start: "release:", line: fmt.Sprintf("release: %d", 100+i), tag: component + "/" + version,
	}
	publish.push(ctx, m)
	start := "  " + component + ":\n    version:"
	change{path: allLayer, start: start, line: start + " " + version}.push(ctx, m)
}

// change replaces one line of a file.
type change struct {
	path string
	// start is the start of the replaced line without indentation. It may include preceding lines.
	start, line string
	tag         string // of the commit; optional
}

// push commits the change.
func (c change) push(ctx context.Context, m *measurement) {
	data := must.Get(fleet.Read(ctx, m.dir, c.path))
	before, rest, ok := bytes.Cut(data, []byte(c.start))
	if !ok {
		must.Failf("%s has no line %q", c.path, strings.TrimSpace(c.start))
	}
	_, after, _ := bytes.Cut(rest, []byte("\n"))
	changed := bytes.Join([][]byte{before, []byte(c.line + "\n"), after}, nil)
	must.Do(fleet.Push(ctx, m.dir, fleet.Commit{Files: map[string][]byte{c.path: changed}, Tag: c.tag}))
}
