package registry_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
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
	g := gittest.NewRepo(t)
	for path, content := range baseFleet(t) {
		g.Write(path, content)
	}
	g.Write("layers/10-all.yaml", `apiVersion: keelson.io/v1alpha1
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
	g.Write("clusters/a/coredns.yaml", `apiVersion: keelson.io/v1alpha1
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
	g.Commit()
	g.Tag("coredns/v1.0.0")
	v := load(t, open(t, g.Path), "").Cluster("a").Delivery("coredns").Values

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
		"Nowhere":  {"A value that no file sets has no origin.", []string{"nope"}, ""},
		"Root":     {"The root has no origin.", nil, ""},
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

// TestOnly: what leads from a rendered field back to the meta-config.
func TestOnly(t *testing.T) {
	t.Parallel()
	v := registry.ValuesFrom(map[string]any{
		"count": "two", "port": 80.0, "text": "80", "list": []any{map[string]any{"a": true}}, "none": nil, "ports": map[string]any{"port": 1.0},
	})
	cases := map[string]struct {
		why   string
		value any
		want  string
	}{
		"Text":   {"It is there once.", "two", ".count"},
		"Twice":  {"A template writes both in the same way.", int64(80), ""},
		"Nested": {"Items of lists have numbers.", true, ".list.0.a"},
		"Map":    {"A map is found as a whole.", map[string]any{"port": 1.0}, ".ports"},
		"None":   {"It is not there.", "three", ""},
		"Null":   {"A null is no value.", nil, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, ok := v.Only(c.value)
			if ok != (c.want != "") || ok && registry.FormatPath(path) != c.want {
				t.Errorf("%s: %v, %t, want %q", c.why, path, ok, c.want)
			}
		})
	}
	var none *registry.Values
	if path, ok := none.Only("two"); ok {
		t.Errorf("no values: %v", path)
	}
}
