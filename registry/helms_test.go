//go:build !race

package registry_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// TestMergeIsHelms merges random values as a fleet does and as helm -f A -f B
// does, and asks Explain for each value that came out.
func TestMergeIsHelms(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		g := gittest.NewRepo(t)
		for path, content := range baseFleet(t) {
			g.Write(path, content)
		}
		var files []string
		for i := range rapid.IntRange(1, 4).Draw(rt, "layers") {
			values := drawMap(rt, 3)
			files = append(files, toYAML(t, values))
			g.Write(fmt.Sprintf("layers/%d.yaml", i), toYAML(t, map[string]any{
				"apiVersion": "keelson.io/v1alpha1", "kind": "Layer", "clusterSelector": map[string]any{},
				"components": map[string]any{"coredns": map[string]any{"values": values}},
			}))
		}
		chart := drawMap(rt, 3)
		g.Write("components/coredns/template/values.yaml", toYAML(t, chart))
		g.Remove("components/coredns/images.yaml")
		g.Commit()
		g.Tag("coredns/v1.0.0")
		d := load(t, open(t, g.Path), "").Cluster("a").Delivery("coredns")
		if err := d.Problems.Err(); err != nil {
			rt.Fatal(err)
		}

		merged := map[string]any{}
		for _, file := range files {
			merged = helmMerge(merged, fromYAML(t, file))
		}
		if diff := cmp.Diff(merged, d.Values.Map()); diff != "" {
			rt.Errorf("merged otherwise than by Helm (-helm +keelson):\n%s", diff)
		}
		checkExplained(rt, d, helmCoalesce(merged, chart))
	})
}

// checkExplained holds that each value that Explain shows is the one that
// templates see, and that each has a place.
func checkExplained(t *rapid.T, d *registry.Delivery, final map[string]any) {
	list, err := d.Explain("")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, e := range list {
		if e.At.File == "" || e.At.Line == 0 {
			t.Errorf("%s has no place: %v", e.Path, e.At)
		}
		path, err := registry.ParsePath(e.Path)
		if err != nil {
			t.Fatal(err)
		}
		shown[registry.FormatPath(path)] = true
		var at any = final
		for _, step := range path {
			switch v := at.(type) {
			case map[string]any:
				at = v[step]
			case []any:
				var i int
				if _, err := fmt.Sscan(step, &i); err != nil {
					t.Fatal(err)
				}
				at = v[i]
			default:
				t.Fatalf("%s leads through %v", e.Path, at)
			}
		}
		if diff := cmp.Diff(at, e.Value); diff != "" && e.Path != "." {
			t.Errorf("%s (-helm +explain):\n%s", e.Path, diff)
		}
	}
	eachLeaf(final, nil, func(path []string) {
		if !shown[registry.FormatPath(path)] {
			t.Errorf("templates see %s, and Explain does not show it", registry.FormatPath(path))
		}
	})
}

func drawMap(t *rapid.T, depth int) map[string]any {
	out := map[string]any{}
	for _, key := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c.d", "e"}), rapid.ID[string]).Draw(t, "keys") {
		out[key] = drawValue(t, depth-1)
	}
	return out
}

func drawValue(t *rapid.T, depth int) any {
	kinds := 4
	if depth > 0 {
		kinds = 7
	}
	switch rapid.IntRange(0, kinds).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.SampledFrom([]string{"", "yes", "1", "x: y", "two\nlines\n"}).Draw(t, "string")
	case 2:
		return float64(rapid.IntRange(-3, 3_000_000).Draw(t, "number"))
	case 3:
		return rapid.Bool().Draw(t, "bool")
	case 4:
		return []any{}
	case 5:
		return []any{drawValue(t, depth-1), drawValue(t, depth-1)}
	default:
		return drawMap(t, depth)
	}
}

// eachLeaf calls back for every scalar and empty list below v.
func eachLeaf(v any, path []string, leaf func(path []string)) {
	switch v := v.(type) {
	case map[string]any:
		for key, child := range v {
			eachLeaf(child, append(slices.Clone(path), key), leaf)
		}
	case []any:
		for i, child := range v {
			eachLeaf(child, append(slices.Clone(path), strconv.Itoa(i)), leaf)
		}
		if len(v) == 0 {
			leaf(path)
		}
	default:
		leaf(path)
	}
}
