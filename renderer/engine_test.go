package renderer_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

func TestPackedSubchart(t *testing.T) {
	t.Parallel()
	v := configMapVersion("")
	v.Chart = append(v.Chart, registry.File{Name: "charts/sub-0.1.0.tgz", Data: pack(t, map[string]string{
		"sub/Chart.yaml":        "apiVersion: v2\nname: sub\nversion: 0.1.0\n",
		"sub/values.yaml":       "greeting: hello\n",
		"sub/templates/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: packed}\ndata: {x: {{ .Values.greeting }}}\n",
	})})
	target, err := renderer.New().Render(t.Context(), request(v, 1))
	if err != nil {
		t.Fatal(err)
	}
	if len(target.Objects) != 1 {
		t.Fatalf("got %d objects, want 1", len(target.Objects))
	}
	o := target.Objects[0]
	if want := "components/demo/template/charts/sub/templates/cm.yaml@demo/v1.0.0:2"; o.Source.String() != want {
		t.Errorf("source is %s, want %s", o.Source, want)
	}
	if x, _, _ := unstructured.NestedString(o.Content, "data", "x"); x != "hello" {
		t.Errorf("the subchart's default is %q, want hello", x)
	}
}

func pack(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	tw := tar.NewWriter(gz)
	for name, text := range files {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestHeadHasNoRevision(t *testing.T) {
	t.Parallel()
	v := configMapVersion(configMap)
	v.Name = "HEAD"
	target, err := renderer.New().Render(t.Context(), request(v, 1))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := target.Objects[0].Source.String(), "components/demo/template/templates/cm.yaml:3"; got != want {
		t.Errorf("source is %s, want %s", got, want)
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := renderer.New().Render(ctx, request(configMapVersion(configMap), 1))
	var e *renderer.Error
	if !errors.As(err, &e) || !e.Transient || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want a transient *Error that is context.Canceled", err)
	}
}

// TestPanic: Helm panics on some charts; other components must go on.
func TestPanic(t *testing.T) {
	t.Parallel()
	_, err := renderer.New().Render(t.Context(), renderer.Request{})
	if err == nil {
		t.Error("a request without a version rendered")
	}
	v := configMapVersion(`{{ index (list 1) "x" }}{{ template "endless" . }}{{ define "endless" }}{{ include "endless" . }}{{ end }}`)
	if _, err = renderer.New().Render(t.Context(), request(v, 1)); err == nil {
		t.Error("a template that ends in an error rendered")
	}
}

// TestConcurrent: one version rendered by many at once, for the race detector.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	v := configMapVersion(configMap)
	engine := renderer.New()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if _, err := engine.Render(t.Context(), request(v, i%2)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestHash: the same objects have the same hash in every process, and others
// another.
func TestHash(t *testing.T) {
	t.Parallel()
	hash := func(r renderer.Request) string {
		target, err := renderer.New().Render(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return target.Hash
	}
	v := configMapVersion(configMap)
	const want = "53fa4bdfb11ecdf7bafe1f856b713e618b46de5ebccfead4509cf87a0a4751c3"
	if got := hash(request(v, 1)); got != want {
		t.Errorf("the hash is %s, want %s: every cluster would be diffed anew", got, want)
	}
	if hash(request(v, 1)) == hash(request(v, 2)) {
		t.Error("different objects have one hash")
	}
}

// TestDefaultCapabilities compares the table with client-go: its scheme knows
// the kinds, and its clients which of them have a namespace.
func TestDefaultCapabilities(t *testing.T) {
	t.Parallel()
	caps := renderer.DefaultCapabilities()
	scoped := map[schema.GroupKind]bool{}
	for _, v := range caps.APIVersions {
		gvk, ok := parseKind(v)
		if !ok {
			continue
		}
		scoped[gvk.GroupKind()] = true
		switch gvk.Group {
		case "apiextensions.k8s.io", "apiregistration.k8s.io": // not in client-go
		default:
			if !scheme.Scheme.Recognizes(gvk) {
				t.Errorf("%s is unknown to client-go", v)
			}
		}
	}
	for gk := range caps.ClusterScoped {
		if !scoped[gk] {
			t.Errorf("%s is cluster-scoped, but no version of it is served", gk)
		}
	}
	// Each client has a method for each resource: with a namespace or without.
	clients := reflect.TypeFor[kubernetes.Interface]()
	for client := range clients.Methods() {
		for m := range client.Type.Out(0).Methods() {
			if m.Name == "RESTClient" || m.Type.NumOut() != 1 || m.Type.NumIn() > 1 {
				continue
			}
			kind := strings.TrimSuffix(m.Type.Out(0).Name(), "Interface")
			for gk := range scoped {
				if gk.Kind != kind || !strings.HasPrefix(strings.ToLower(client.Name), clientPrefix(gk.Group)) {
					continue
				}
				if namespaced := m.Type.NumIn() == 1; namespaced == caps.ClusterScoped[gk] {
					t.Errorf("%s: client-go says namespaced %v", gk, namespaced)
				}
			}
		}
	}
}

// clientPrefix is how client-go calls a group: rbac.authorization.k8s.io is RbacV1.
func clientPrefix(group string) string {
	if group == "" {
		return "corev"
	}
	name, _, _ := strings.Cut(group, ".")
	return name + "v"
}

func parseKind(apiVersion string) (schema.GroupVersionKind, bool) {
	parts := strings.Split(apiVersion, "/")
	switch {
	case len(parts) == 3:
		return schema.GroupVersionKind{Group: parts[0], Version: parts[1], Kind: parts[2]}, true
	case len(parts) == 2 && parts[0] == "v1":
		return schema.GroupVersionKind{Version: "v1", Kind: parts[1]}, true
	}
	return schema.GroupVersionKind{}, false
}

// TestIncluding: without a cluster to ask, definitions that another component
// brings say what is served and what has no namespace.
func TestIncluding(t *testing.T) {
	t.Parallel()
	crds := configMapVersion(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: issuers.example.com}
spec: {group: example.com, scope: Cluster, names: {kind: Issuer, plural: issuers}, versions: [{name: v1, served: true}, {name: v2, served: false}]}
`)
	brings, err := renderer.New().Render(t.Context(), request(crds, 1))
	if err != nil {
		t.Fatal(err)
	}
	stock := renderer.DefaultCapabilities()
	r := request(configMapVersion("apiVersion: example.com/v1\nkind: Issuer\nmetadata: {name: x}\n"), 1)
	r.Capabilities = stock.Including(brings)
	uses, err := renderer.New().Render(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if ns, found, _ := unstructured.NestedString(uses.Objects[0].Content, "metadata", "namespace"); found {
		t.Errorf("a cluster-scoped object got the namespace %q", ns)
	}
	added := map[string]bool{}
	for _, v := range r.Capabilities.APIVersions {
		added[v] = true
	}
	for _, v := range stock.APIVersions {
		delete(added, v)
	}
	if d := cmp.Diff(map[string]bool{"example.com/v1": true, "example.com/v1/Issuer": true}, added); d != "" {
		t.Errorf("API versions (-want +got):\n%s", d)
	}
	if stock.ClusterScoped[schema.GroupKind{Group: "example.com", Kind: "Issuer"}] {
		t.Error("the capabilities that were given have changed")
	}
}

// FuzzDecode: what is taken out of a document is what Kubernetes would take.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"a: 1", "a: 1.0", "a: 1e3", "a: 0644", "a: .inf", "a: 18446744073709551615", "a: -9223372036854775808",
		"a: 2001-01-01", "a: [1, {b: null}]", "a: &x {b: 1}\nc: *x", "<<: {a: 1}\nb: 2", "a: |\n  x\n", "a: !!binary aGk=",
		"a: yes", "1: a", "y: a", "? [1]\n: a", "a: 'x'\na: 2", "a: 123456789012345678901234567890", "a: 0x10",
	} {
		f.Add(seed)
	}
	engine := renderer.New()
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "---") {
			t.Skip("more than one document")
		}
		doc := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\nspec:\n  " + strings.ReplaceAll(text, "\n", "\n  ")
		doc = strings.TrimSpace(doc) + "\n" // as helm does
		v := configMapVersion("{{ .Values.doc }}")
		r := request(v, 1)
		r.Values = registry.ValuesFrom(map[string]any{"doc": doc})
		target, err := engine.Render(t.Context(), r)
		if err != nil {
			t.Skip("refused")
		}
		var want unstructured.Unstructured
		data, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			t.Fatalf("taken, but sigs.k8s.io/yaml refuses it: %v", err)
		}
		if err := want.UnmarshalJSON(data); err != nil {
			t.Skip("no object")
		}
		if len(target.Objects) != 1 {
			t.Skip("trimmed away")
		}
		got, err := json.Marshal(target.Objects[0].Content["spec"])
		if err != nil {
			t.Fatal(err)
		}
		wantSpec, err := json.Marshal(want.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(wantSpec), string(got)); d != "" {
			t.Errorf("spec differs (-sigs.k8s.io/yaml +keelson):\n%s", d)
		}
		if d := cmp.Diff(want.Object["spec"], target.Objects[0].Content["spec"]); d != "" {
			t.Errorf("types differ (-unstructured +keelson):\n%s", d)
		}
	})
}
