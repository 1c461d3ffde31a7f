package registry_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// TestProvenance holds Explain and Origin against Helm's merge of random layers,
// in which every scalar is one of a kind: then the value that templates see says
// by itself which file and line it is from, and that line must hold it.
func TestProvenance(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) { checkProvenance(t, rt) })
}

// FuzzProvenance is the same, led by the fuzzer.
func FuzzProvenance(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		rapid.MakeFuzz(func(rt *rapid.T) { checkProvenance(t, rt) })(t, data)
	})
}

// stack is a component's values in the sources of one cluster.
type stack struct {
	files []stackFile // the strongest first; the chart's own values last
	next  int         // number of the next scalar
}

type stackFile struct {
	name   string
	lines  []string
	values map[string]any
}

func checkProvenance(t *testing.T, rt *rapid.T) {
	s := &stack{}
	g := gittest.NewRepo(t)
	for path, content := range baseFleet(t) {
		g.Write(path, content)
	}
	g.Remove("components/coredns/images.yaml")
	add := func(name string, wrap func(values map[string]any) map[string]any) {
		values := s.drawMap(rt, 4)
		text := toYAML(t, wrap(values))
		g.Write(name, text)
		s.files = slices.Insert(s.files, 0, stackFile{name, strings.Split(text, "\n"), values})
	}
	add("components/coredns/template/values.yaml", func(v map[string]any) map[string]any { return v })
	for i := range rapid.IntRange(0, 3).Draw(rt, "layers") {
		add(fmt.Sprintf("layers/%d.yaml", i), func(v map[string]any) map[string]any {
			return map[string]any{
				"apiVersion": "keelson.io/v1alpha1", "kind": "Layer", "clusterSelector": map[string]any{},
				"components": map[string]any{"coredns": map[string]any{"values": v}},
			}
		})
	}
	add("clusters/a/coredns.yaml", func(v map[string]any) map[string]any {
		return map[string]any{"apiVersion": "keelson.io/v1alpha1", "kind": "MetaConfig", "version": "v1.0.0", "values": v}
	})
	g.Commit()
	g.Tag("coredns/v1.0.0")
	d := load(t, open(t, g.Path), "").Cluster("a").Delivery("coredns")
	if err := d.Problems.Err(); err != nil {
		rt.Fatal(err)
	}

	chart := s.files[len(s.files)-1].values
	meta := map[string]any{}
	for _, f := range slices.Backward(s.files[:len(s.files)-1]) {
		meta = helmMerge(meta, f.values)
	}
	s.checkExplain(rt, d, helmCoalesce(meta, chart))
	s.checkOrigins(rt, d.Values, meta, nil)
}

// checkExplain holds that what is explained is what templates see, all of it,
// each from the line that holds it, and what it overrides likewise.
func (s *stack) checkExplain(rt *rapid.T, d *registry.Delivery, final map[string]any) {
	list, err := d.Explain("")
	if err != nil {
		rt.Fatal(err)
	}
	got := map[string]any{}
	for _, e := range list {
		path, err := registry.ParsePath(e.Path)
		if err != nil {
			rt.Fatal(err)
		}
		if e.Path == "." { // there is nothing at all
			continue
		}
		key := e.Path
		if _, twice := got[key]; twice {
			rt.Errorf("%s is explained twice", e.Path)
		}
		if !e.Deleted {
			got[key] = e.Value
		}
		last := s.holds(rt, e.At, path, e.Value)
		for _, o := range e.Overrides {
			at := s.holds(rt, o.At, path, o.Value)
			if at <= last {
				rt.Errorf("%s: %s can't be overridden by what is in file %d, the strongest being 0", e.Path, o.At, last)
			}
			last = at
		}
		if e.Deleted != (e.Value == nil && len(e.Overrides) > 0) {
			rt.Errorf("%s: deleted: %t, with value %v", e.Path, e.Deleted, e.Value)
		}
	}
	want := map[string]any{}
	leaves(final, "", want)
	for path, v := range got {
		if _, ok := want[path]; !ok {
			if _, isLeaf := v.([]any); isLeaf || v == nil {
				continue // a list that replaced something stands before its items; null in the chart's own
			}
			rt.Errorf("%s = %v is explained, and templates don't see it", path, v)
		}
	}
	for path, v := range want {
		if diff := cmp.Diff(v, got[path]); diff != "" {
			rt.Errorf("%s (-templates +explain):\n%s", path, diff)
		}
	}
}

// leaves are the scalars and empty maps and lists of v, by path.
func leaves(v any, path string, out map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		for k, child := range v {
			leaves(child, path+registry.FormatPath([]string{k}), out)
		}
		if len(v) == 0 && path != "" {
			out[path] = v
		}
	case []any:
		for i, child := range v {
			leaves(child, path+"["+strconv.Itoa(i)+"]", out)
		}
		if len(v) == 0 {
			out[path] = v
		}
	default:
		out[path] = v
	}
}

// checkOrigins asks for the origin of every scalar of the merged meta-config.
func (s *stack) checkOrigins(rt *rapid.T, values *registry.Values, v any, path []string) {
	switch v := v.(type) {
	case map[string]any:
		for k, child := range v {
			s.checkOrigins(rt, values, child, append(slices.Clone(path), k))
		}
		return
	case []any:
		for i, child := range v {
			s.checkOrigins(rt, values, child, append(slices.Clone(path), strconv.Itoa(i)))
		}
		return
	}
	at, ok := values.Origin(path...)
	if !ok {
		rt.Errorf("%q has no origin", path)
		return
	}
	s.holds(rt, at, path, v)
}

// holds checks that a place is where a value is set, and returns the number of
// its file.
func (s *stack) holds(rt *rapid.T, at yamlfile.Position, path []string, v any) int {
	i := slices.IndexFunc(s.files, func(f stackFile) bool { return f.name == at.File })
	if i < 0 || at.Line < 1 || at.Line > len(s.files[i].lines) {
		rt.Fatalf("%q: there is no place %s", path, at)
	}
	if chart := i == len(s.files)-1; chart != (at.Revision == "coredns/v1.0.0") {
		rt.Errorf("%q: %s has the wrong revision", path, at)
	}
	line := s.files[i].lines[at.Line-1]
	rest := ""
	if at.Column >= 1 && at.Column <= len(line) {
		rest = line[at.Column-1:]
	}
	key := path[len(path)-1]
	_, isItem := strconv.Atoi(key)
	switch v := v.(type) {
	case string:
		if !strings.HasSuffix(rest, v) {
			rt.Errorf("%q is %s at %s, and there stands %q", path, v, at, line)
		}
	case nil:
		if !strings.HasSuffix(rest, "null") {
			rt.Errorf("%q is null at %s, and there stands %q", path, at, line)
		}
	}
	if isItem != nil && !strings.HasPrefix(strings.Trim(rest, `"`), key) {
		rt.Errorf("%q is at %s, and there stands %q", path, at, rest)
	}
	return i
}

func (s *stack) drawMap(rt *rapid.T, depth int) map[string]any {
	out := map[string]any{}
	keys := rapid.SampledFrom([]string{"a", "b", "c.d", "e/f", "g"})
	for _, key := range rapid.SliceOfNDistinct(keys, 0, 4, rapid.ID[string]).Draw(rt, "keys") {
		out[key] = s.drawValue(rt, depth-1)
	}
	return out
}

func (s *stack) drawValue(rt *rapid.T, depth int) any {
	kinds := 2
	if depth > 0 {
		kinds = 5
	}
	switch rapid.IntRange(0, kinds).Draw(rt, "kind") {
	case 0:
		return nil
	case 1:
		s.next++
		return fmt.Sprintf("scalar-%04d", s.next)
	case 2:
		return []any{}
	case 3:
		items := make([]any, rapid.IntRange(1, 3).Draw(rt, "items"))
		for i := range items {
			items[i] = s.drawValue(rt, depth-1)
		}
		return items
	default:
		return s.drawMap(rt, depth)
	}
}
