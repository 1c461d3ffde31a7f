package registry_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/registry"
)

func TestValuesFrom(t *testing.T) {
	t.Parallel()
	var none *registry.Values
	for name, v := range map[string]*registry.Values{"Nil": none, "FromNil": registry.ValuesFrom(nil)} {
		if m := v.Map(); m == nil || len(m) != 0 {
			t.Errorf("%s: %v; want an empty map, so that callers need no case for it", name, m)
		}
		if at, ok := v.Origin("a"); ok {
			t.Errorf("%s: the origin of nothing is %v", name, at)
		}
	}
	v := registry.ValuesFrom(map[string]any{"a": 1.0})
	if diff := cmp.Diff(map[string]any{"a": 1.0}, v.Map()); diff != "" {
		t.Error(diff)
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	g := newGitRepo(t)
	for path, content := range baseFleet(t) {
		g.write(path, content)
	}
	g.write("layers/10-all.yaml", `apiVersion: keelson.io/v1alpha1
kind: Layer
clusterSelector: {}
components:
  coredns:
    values:
      replicas: 5
      resources:
        limits:
          cpu: 1
      args: [a, b]
`)
	g.write("clusters/a/coredns.yaml", `apiVersion: keelson.io/v1alpha1
kind: MetaConfig
version: v1.0.0
values:
  replicas: 7
  resources:
    requests:
      cpu: 2
  a.b: x
  args:
    - c
    - d: e
`)
	g.commit()
	g.tag("coredns/v1.0.0")
	v := load(t, open(t, g.path), "").Cluster("a").Delivery("coredns").Values

	const own, layer = "clusters/a/coredns.yaml", "layers/10-all.yaml"
	cases := map[string]struct {
		why  string
		path []string
		want string
	}{
		"Own":      {"The cluster wins.", []string{"replicas"}, own + ":5:3"},
		"Layer":    {"What only the layer sets is the layer's.", []string{"resources", "limits", "cpu"}, layer + ":10:11"},
		"OwnBelow": {"And beside it what only the cluster sets.", []string{"resources", "requests", "cpu"}, own + ":8:7"},
		"Map":      {"A map is where it was last touched.", []string{"resources"}, own + ":6:3"},
		"Dot":      {"A key may hold a dot.", []string{"a.b"}, own + ":9:3"},
		"Item":     {"Items have places.", []string{"args", "0"}, own + ":11:7"},
		"InItem":   {"And what is inside them.", []string{"args", "1", "d"}, own + ":12:7"},
		"Beyond":   {"Inside what is not there: the nearest above.", []string{"resources", "limits", "memory", "x"}, layer + ":9:9"},
		"NoItem":   {"The layer's second item is gone.", []string{"args", "7"}, own + ":10:3"},
		"Nowhere":  {"What nobody sets has no origin.", []string{"nope"}, ""},
		"Root":     {"The root is nobody's.", nil, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, ok := v.Origin(c.path...)
			if got := at.String(); ok != (c.want != "") || ok && got != c.want {
				t.Errorf("%s Origin(%q) = %s, %t; want %s", c.why, c.path, got, ok, c.want)
			}
		})
	}
}

// TestMergeIsHelms merges random values as a fleet does and as helm -f A -f B
// does, and asks Explain for each value that came out.
func TestMergeIsHelms(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		g := newGitRepo(t)
		for path, content := range baseFleet(t) {
			g.write(path, content)
		}
		var files []string
		for i := range rapid.IntRange(1, 4).Draw(rt, "layers") {
			values := drawMap(rt, 3)
			files = append(files, toYAML(t, values))
			g.write(fmt.Sprintf("layers/%d.yaml", i), toYAML(t, map[string]any{
				"apiVersion": "keelson.io/v1alpha1", "kind": "Layer", "clusterSelector": map[string]any{},
				"components": map[string]any{"coredns": map[string]any{"values": values}},
			}))
		}
		chart := drawMap(rt, 3)
		g.write("components/coredns/template/values.yaml", toYAML(t, chart))
		g.remove("components/coredns/images.yaml")
		g.commit()
		g.tag("coredns/v1.0.0")
		d := load(t, open(t, g.path), "").Cluster("a").Delivery("coredns")
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

func toYAML(t testing.TB, v any) string {
	t.Helper()
	data, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func fromYAML(t testing.TB, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// helmMerge is mergeMaps of helm v3.22 (pkg/cli/values/options.go): what helm -f A -f B does. The renderer alone may import Helm.
func helmMerge(a, b map[string]any) map[string]any {
	out := make(map[string]any, len(a))
	maps.Copy(out, a)
	for k, v := range b {
		if v, ok := v.(map[string]any); ok {
			if bv, ok := out[k]; ok {
				if bv, ok := bv.(map[string]any); ok {
					out[k] = helmMerge(bv, v)
					continue
				}
			}
		}
		out[k] = v
	}
	return out
}

// helmCoalesce is what coalesceValues and coalesceTables of helm v3.22
// (pkg/chartutil/coalesce.go) make of values and a chart's own, without
// subcharts: values win, and a null takes the chart's key away.
func helmCoalesce(values, chart map[string]any) map[string]any {
	out := map[string]any{}
	maps.Copy(out, values)
	for k, below := range chart {
		v, ok := out[k]
		over, isMap := v.(map[string]any)
		under, belowIsMap := below.(map[string]any)
		switch {
		case !ok:
			out[k] = below
		case v == nil && below != nil:
			delete(out, k)
		case isMap && belowIsMap:
			out[k] = helmCoalesce(over, under)
		}
	}
	return out
}
