package renderer_test

import (
	"context"
	"os"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// A chart is rendered with the values of one cluster.
func ExampleEngine_Render() {
	version := &registry.Version{
		Component: "web", Name: "v1.0.0", Spec: v1alpha1.Component{Namespace: "shop"},
		Chart: []registry.File{
			{Name: "Chart.yaml", Data: []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n")},
			{Name: "values.yaml", Data: []byte("greeting: hello\n")},
			{Name: "templates/config.yaml", Data: []byte(`apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {greeting: {{ .Values.greeting }}}
`)},
		},
	}
	target, err := renderer.New().Render(context.Background(), renderer.Request{
		Version: version, Values: registry.ValuesFrom(map[string]any{"greeting": "good day"}),
		Capabilities: renderer.DefaultCapabilities(),
	})
	if err != nil {
		panic(err)
	}
	if err := renderer.WriteYAML(os.Stdout, target); err != nil {
		panic(err)
	}
	// Output:
	// ---
	// # Source: components/web/template/templates/config.yaml@web/v1.0.0:2
	// apiVersion: v1
	// data:
	//   greeting: good day
	// kind: ConfigMap
	// metadata:
	//   labels:
	//     keelson.io/component: web
	//   name: web
	//   namespace: shop
}
