package apis_test

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

var appsV1 = schema.GroupVersion{Group: "apps", Version: "v1"}

// publisher is an API server that publishes one document under a hash.
func publisher(t *testing.T, hash string, document []byte, cache *apis.SchemaCache) *apis.Discoverer {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/openapi/v3":
			_, _ = fmt.Fprintf(w, `{"paths":{"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=%s"}}}`, hash)
		case "/openapi/v3/apis/apps/v1":
			_, _ = w.Write(document)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	c, err := apis.NewDiscoverer(&rest.Config{Host: s.URL}, cache)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A cluster that publishes a wrong document decides nothing about another, whatever hash
// it claims for the document: the cache of all clusters goes by the content.
func TestSchemasOfHostileCluster(t *testing.T) {
	t.Parallel()
	honest, err := differ.BuiltInDocument(appsV1)
	if err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	at := func(schemas object, name string) object { return schemas[name].(object)["properties"].(object) }
	poisons := map[string]func(schemas object){
		"Type": func(s object) { at(s, "io.k8s.api.apps.v1.DeploymentSpec")["template"] = object{"type": "string"} },
		"ListKeys": func(s object) {
			at(s, "io.k8s.api.core.v1.PodSpec")["containers"].(object)["x-kubernetes-list-map-keys"] = []any{"image"}
		},
		"ListKeysMissing": func(s object) {
			at(s, "io.k8s.api.core.v1.PodSpec")["containers"].(object)["x-kubernetes-list-map-keys"] = []any{"nope"}
		},
		"MissingRef": func(s object) {
			at(s, "io.k8s.api.apps.v1.DeploymentSpec")["template"] = object{"$ref": "#/components/schemas/nowhere"}
		},
		"NoFields": func(s object) { s["io.k8s.api.apps.v1.Deployment"].(object)["properties"] = object{} },
		"RefCycle": func(s object) {
			s["A"], s["B"] = object{"$ref": "#/components/schemas/B"}, object{"$ref": "#/components/schemas/A"}
			at(s, "io.k8s.api.apps.v1.DeploymentSpec")["template"] = object{"$ref": "#/components/schemas/A"}
		},
		"AllOfCycle": func(s object) {
			s["A"] = object{"allOf": []any{object{"$ref": "#/components/schemas/A"}}}
			at(s, "io.k8s.api.apps.v1.DeploymentSpec")["template"] = object{"allOf": []any{object{"$ref": "#/components/schemas/A"}}}
		},
	}
	deployment := func(image string) object {
		return object{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "web", "namespace": "web", "labels": object{"keelson.io/component": "web"}},
			"spec": object{
				"selector": object{"matchLabels": object{"app": "web"}},
				"template": object{"metadata": object{"labels": object{"app": "web"}}, "spec": object{"containers": []any{object{"name": "web", "image": image}}}},
			},
		}
	}
	compare := func(t *testing.T, c *apis.Discoverer) string {
		t.Helper()
		schemas, err := c.Schemas(t.Context(), []schema.GroupVersion{appsV1})
		if err != nil {
			t.Fatal(err)
		}
		id, _ := differ.Identify(deployment("a"))
		plan, err := differ.Compare(t.Context(), schemas, []differ.State{{
			ID: id, Recorded: deployment("nginx:1"), Live: deployment("nginx:1"), OwnersRead: true, Target: &renderer.Object{Content: deployment("nginx:2")},
		}}, differ.Policy{Component: "web", MaskKey: []byte("k")})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := plan.WriteText(&text, false); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	hash := fmt.Sprintf("%X", sha512.Sum512(honest))
	want := compare(t, publisher(t, hash, honest, nil))
	if !strings.Contains(want, `.spec.template.spec.containers[name="web"].image`) {
		t.Fatalf("the honest document gives\n%s", want)
	}
	for name, poison := range poisons {
		for claim, hash := range map[string]string{"Claimed": hash, "Short": "9F0A6D33B7D2E5D1", "None": ""} {
			t.Run(name+claim, func(t *testing.T) {
				t.Parallel()
				var document object
				if err := json.Unmarshal(honest, &document); err != nil {
					t.Fatal(err)
				}
				poison(document["components"].(object)["schemas"].(object))
				evil, err := json.Marshal(document)
				if err != nil {
					t.Fatal(err)
				}
				cache := apis.NewSchemaCache()
				// What becomes of the hostile cluster itself is not of interest.
				_, _ = publisher(t, hash, evil, cache).Schemas(t.Context(), []schema.GroupVersion{appsV1})
				if got := compare(t, publisher(t, hash, honest, cache)); got != want {
					t.Errorf("the other cluster's plan is\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}

// What a cluster serves is shared with another one only where all that was made of it is
// the same: also the scope of a kind that the answers contradict each other about.
func TestSurfaceOfHostileCluster(t *testing.T) {
	t.Parallel()
	type object = map[string]any
	discovered := func(cache *apis.SchemaCache, v1 ...object) *apis.Discoverer {
		list := func(gv string, resources ...object) object {
			return object{"kind": "APIResourceList", "groupVersion": gv, "resources": resources}
		}
		versions := []object{{"groupVersion": "autoscaling/v2", "version": "v2"}, {"groupVersion": "autoscaling/v1", "version": "v1"}}
		answers := object{
			"/version":             object{"gitVersion": "v1.36.3"},
			"/api":                 object{"kind": "APIVersions", "versions": []string{"v1"}},
			"/api/v1":              list("v1", object{"name": "pods", "kind": "Pod", "namespaced": true, "verbs": []string{"get", "list"}}),
			"/apis":                object{"kind": "APIGroupList", "groups": []object{{"name": "autoscaling", "versions": versions, "preferredVersion": versions[0]}}},
			"/apis/autoscaling/v2": list("autoscaling/v2", autoscalers(true)),
			"/apis/autoscaling/v1": list("autoscaling/v1", v1...),
		}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer, ok := answers[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer)
		}))
		t.Cleanup(s.Close)
		c, err := apis.NewDiscoverer(&rest.Config{Host: s.URL}, cache)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	cache := apis.NewSchemaCache()
	evil := discovered(cache, autoscalers(false), autoscalers(true))
	if _, err := evil.Surface(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := discovered(cache, autoscalers(true)).Surface(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Capabilities().ClusterScoped[schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}] {
		t.Error("another cluster decides that the kind has no namespace")
	}
	if _, err := evil.Surface(t.Context()); err != nil { // it is in use until here
		t.Fatal(err)
	}
}

func autoscalers(namespaced bool) map[string]any {
	return map[string]any{"name": "horizontalpodautoscalers", "kind": "HorizontalPodAutoscaler", "namespaced": namespaced, "verbs": []string{"get", "list"}}
}
