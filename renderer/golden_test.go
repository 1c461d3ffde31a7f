package renderer_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

var update = flag.Bool("update", false, "rewrite the results in testdata")

// TestGolden renders the charts under testdata. A case says on top why it
// must come out so; then come the component's files, the cluster's values.yaml
// and mirrors.yaml, and the result: the target as keelson render prints it
// with its warnings, or the error.
func TestGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if len(bytes.TrimSpace(ar.Comment)) == 0 {
				t.Error("the case does not say why")
			}
			request, want := goldenRequest(t, ar)
			got := goldenResult(t, request)
			if *update {
				ar.Files = append(ar.Files[:len(ar.Files)-len(want)], got)
				if err := os.WriteFile(file, txtar.Format(ar), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(want, []txtar.File{got}, cmp.Transformer("text", func(b []byte) string { return string(b) })); d != "" {
				t.Errorf("%s\n(-want +got):\n%s", bytes.TrimSpace(ar.Comment), d)
			}
		})
	}
}

func goldenRequest(t *testing.T, ar *txtar.Archive) (r renderer.Request, want []txtar.File) {
	t.Helper()
	v := &registry.Version{Component: "demo", Name: "v1.2.3", Spec: v1alpha1.Component{Namespace: "demo-system"}}
	r = renderer.Request{Version: v, Capabilities: renderer.DefaultCapabilities()}
	unmarshal := func(f txtar.File, into any) {
		if err := yaml.UnmarshalStrict(f.Data, into); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
	}
	for _, f := range ar.Files {
		switch name, isChart := strings.CutPrefix(f.Name, "template/"); {
		case isChart:
			v.Chart = append(v.Chart, registry.File{Name: name, Data: f.Data})
		case f.Name == "images.yaml":
			var images v1alpha1.Images
			unmarshal(f, &images)
			v.Images = images.Images
		case f.Name == "values.yaml":
			var values map[string]any
			unmarshal(f, &values)
			r.Values = registry.ValuesFrom(values)
		case f.Name == "mirrors.yaml":
			unmarshal(f, &r.ImageMirrors)
		case f.Name == "target", f.Name == "error":
			want = append(want, f)
		default:
			t.Fatalf("a file of no known kind: %s", f.Name)
		}
	}
	return r, want
}

func goldenResult(t *testing.T, r renderer.Request) txtar.File {
	t.Helper()
	var before string
	if r.Values != nil {
		before = dump(t, r.Values.Map())
	}
	target, err := renderer.New().Render(t.Context(), r)
	if r.Values != nil && dump(t, r.Values.Map()) != before {
		t.Error("the request's values were changed")
	}
	if err != nil {
		var e *renderer.Error
		if !errors.As(err, &e) || target != nil {
			t.Errorf("got a %T and target %v, want an *Error and none", err, target)
		}
		return txtar.File{Name: "error", Data: []byte(err.Error() + "\n")}
	}
	var b bytes.Buffer
	for _, w := range target.WarningsFor(r.Values) {
		b.WriteString("# Warning: " + w + "\n")
	}
	if err := renderer.WriteYAML(&b, target); err != nil {
		t.Fatal(err)
	}
	return txtar.File{Name: "target", Data: b.Bytes()}
}

func dump(t *testing.T, v any) string {
	t.Helper()
	b, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
