package differ_test

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// A Deployment was applied with web:v1 and 3 replicas. Git now has web:v2 and 1 replica.
// The image is set. A built-in rule keeps fewer than half of the replicas from being
// applied before the change is approved, so the whole object waits.
func ExampleCompare() {
	deployment := func(image string, replicas int) map[string]any {
		object, err := renderer.DecodeYAML(fmt.Appendf(nil, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {keelson.io/component: web}}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: %q}]}
`, replicas, image))
		if err != nil {
			panic(err)
		}
		return object.(map[string]any)
	}
	recorded, target := deployment("web:v1", 3), deployment("web:v2", 1)
	id, _ := differ.Identify(target)

	schemas, err := differ.BuiltInSchemas(schema.GroupVersion{Group: "apps", Version: "v1"})
	if err != nil {
		panic(err)
	}
	rules, err := differ.NewRules(differ.Scopes{})
	if err != nil {
		panic(err)
	}
	live, err := differ.AsApplied(schemas, recorded)
	if err != nil {
		panic(err)
	}
	plan, err := differ.Compare(context.Background(), schemas, []differ.State{{
		ID: id, Recorded: recorded, Live: live,
		Target: &renderer.Object{Content: target, Source: yamlfile.Position{File: "components/web/template/templates/web.yaml", Line: 1}},
	}}, differ.Policy{Component: "web", Rules: rules})
	if err != nil {
		panic(err)
	}
	if err := plan.WriteText(os.Stdout, false); err != nil {
		panic(err)
	}
	// Output:
	// HELD Deployment.apps shop/web
	// ! to approve: hash 187bfe964167cca8c1052ab5e7525f3e
	// --- live
	// +++ components/web/template/templates/web.yaml:1
	// @@ .spec.replicas @@ hold
	// ! rule fewer-replicas: git takes away more than half of the replicas, or all of them
	// !   scale down in steps, and check the load in between
	// -3
	// +1
	// @@ .spec.template.spec.containers[name="web"].image @@ set
	// -web:v1
	// +web:v2
}
