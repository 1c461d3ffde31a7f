package differ_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/differ"
)

// manifests returns the CRDs of testdata, the CRDs that Keelson ships, and those in the folder in
// KEELSON_CRDS, by default ../../shared/kruise-crds, if it exists. A file there replaces the
// shipped file of the same name.
func manifests(t *testing.T) []map[string]any {
	t.Helper()
	others := os.Getenv("KEELSON_CRDS")
	if others == "" {
		others = "../../shared/kruise-crds"
	}
	var files []string
	for _, dir := range []string{"testdata/crds", "../components/keelson/template/crds", "../components/workload-controllers/template/crds", others} {
		found, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil || len(found) == 0 && dir != others {
			t.Fatalf("no CRDs in %s: %v", dir, err)
		}
		for _, file := range found {
			files = slices.DeleteFunc(files, func(f string) bool { return filepath.Base(f) == filepath.Base(file) })
			files = append(files, file)
		}
	}
	var out []map[string]any
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, objects(t, data)...)
	}
	return out
}

// apiServer starts a real API server.
func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	if testing.Short() {
		t.Skip("needs an API server: run make test")
	}
	if os.Getenv(apiservertest.EnvAssets) == "" {
		t.Fatalf("%s is not set: run make test, or go test -short", apiservertest.EnvAssets)
	}
	s, err := apiservertest.Start(os.Getenv(apiservertest.EnvAssets))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s.Config
}

// TestParseCRDAsPublished compares the types of a CRD with those in the documents that a real API
// server publishes for the CRD, version 3 and 2.
func TestParseCRDAsPublished(t *testing.T) {
	t.Parallel()
	config := apiServer(t)
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ours := differ.Schemas{}
	var kinds []schema.GroupVersionKind
	for _, crd := range manifests(t) {
		s, err := differ.ParseCRD(crd)
		if err != nil {
			t.Fatal(err)
		}
		ours.Add(s)
		kinds = append(kinds, s.Kinds()...)
		if err := c.Create(t.Context(), &unstructured.Unstructured{Object: crd}); err != nil {
			t.Fatal(err)
		}
	}
	theirs := publishedV3(t, disco, kinds)
	v2, err := disco.RESTClient().Get().AbsPath("/openapi/v2").SetHeader("Accept", "application/json").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	swagger, err := differ.ParseOpenAPIV2(v2)
	if err != nil {
		t.Fatal(err)
	}
	old := differ.Schemas{}
	old.Add(swagger)
	compared := 0
	for _, gvk := range kinds {
		want := resolved(theirs.TypeOf(gvk))
		if diff := cmp.Diff(want, resolved(ours.TypeOf(gvk))); diff != "" {
			t.Errorf("%s (-published +ours):\n%s", gvk, diff)
		}
		compared += len(want)
		// Only CloneSet: version 2 has no types of kinds that preserve unknown fields.
		if gvk.Kind == "CloneSet" && gvk.Version == "v1alpha1" {
			for _, path := range []string{".spec.template", ".spec.selector", ".spec.updateStrategy.partition"} {
				if want[path] == "" {
					t.Errorf("%s is not in version 3", path)
				}
				if diff := cmp.Diff(want[path], resolved(old.TypeOf(gvk))[path]); diff != "" {
					t.Errorf("%s %s in version 2 (-version 3 +version 2):\n%s", gvk, path, diff)
				}
			}
		}
		if !old.Knows(gvk) {
			t.Errorf("%s is not known of version 2", gvk)
		}
	}
	if compared < 400 {
		t.Errorf("%d fields were compared", compared)
	}
}

// TestParseCRD checks the types of every shape. TestParseCRDAsPublished shows that an API server
// has the same types.
func TestParseCRD(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	for _, crd := range manifests(t)[:2] { // of testdata
		s, err := differ.ParseCRD(crd)
		if err != nil {
			t.Fatal(err)
		}
		known := differ.Schemas{}
		known.Add(s)
		kinds := s.Kinds()
		slices.SortFunc(kinds, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
		for _, gvk := range kinds {
			types := resolved(known.TypeOf(gvk))
			for _, path := range slices.Sorted(maps.Keys(types)) {
				fmt.Fprintf(&got, "%s %s %s: %s\n", gvk.Version, gvk.Kind, path, types[path])
			}
		}
	}
	const file = "testdata/crds/types.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// publishedV3 waits until the API server publishes all kinds, and returns their schemas.
func publishedV3(t *testing.T, disco *discovery.DiscoveryClient, kinds []schema.GroupVersionKind) differ.Schemas {
	t.Helper()
	out := differ.Schemas{}
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		paths, err := disco.OpenAPIV3().Paths()
		if err != nil {
			return false, err
		}
		for _, gvk := range kinds {
			doc, ok := paths["apis/"+gvk.GroupVersion().String()]
			if !ok {
				return false, nil
			}
			if out.Knows(gvk) {
				continue
			}
			data, err := doc.Schema("application/json")
			if err != nil {
				return false, err
			}
			s, err := differ.ParseOpenAPI(data)
			if err != nil {
				return false, err
			}
			out.Add(s)
		}
		return !slices.ContainsFunc(kinds, func(k schema.GroupVersionKind) bool { return !out.Knows(k) }), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// An object that is no CRD of this version gives an error that describes what was found.
func TestParseCRDRefuses(t *testing.T) {
	t.Parallel()
	crd := func(change func(crd map[string]any)) map[string]any {
		o := map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "things.example.org"},
			"spec": map[string]any{
				"group": "example.org", "names": map[string]any{"kind": "Thing", "plural": "things"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true}},
			},
		}
		change(o)
		return o
	}
	cases := map[string]struct {
		why, want string
		change    func(crd map[string]any)
	}{
		"OldVersion": {
			"v1beta1 has its schema elsewhere: it would be taken for one without.", "v1beta1",
			func(o map[string]any) { o["apiVersion"] = "apiextensions.k8s.io/v1beta1" },
		},
		"OtherKind": {"It says what it is.", "v1 ConfigMap, things.example.org", func(o map[string]any) { o["apiVersion"], o["kind"] = "v1", "ConfigMap" }},
		"NoVersions": {
			"Nothing would be known.", "spec.versions", func(o map[string]any) { o["spec"].(map[string]any)["versions"] = []any{} },
		},
		"Malformed": {
			"It says where.", "spec.versions", func(o map[string]any) { o["spec"].(map[string]any)["versions"] = "v1" },
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := differ.ParseCRD(crd(c.change))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "things.example.org") {
				t.Errorf("%s Error is %v, want it to name the CRD and say %s", c.why, err, c.want)
			}
		})
	}
	if _, err := differ.ParseCRD(crd(func(map[string]any) {})); err != nil {
		t.Errorf("a CRD without a schema: %v", err)
	}
}
