package engines_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// objects come from files and not from charts, so that two runs compare the
// same objects whatever became of the charts in between.
type objects struct {
	// deployment has 68 leaf fields, as an add-on's has.
	deployment *unstructured.Unstructured
	// fleet is what `keelson render prod-us-01` printed of the example fleet,
	// without its CRDs: to create and delete those changes what the API server
	// serves, which every engine would have to learn anew.
	fleet []*unstructured.Unstructured
}

func readObjects() (objects, error) {
	deployments, err := decode("testdata/deployment.yaml")
	if err != nil {
		return objects{}, err
	}
	fleet, err := decode("testdata/fleet.yaml")
	if err != nil {
		return objects{}, err
	}
	fleet = slices.DeleteFunc(fleet, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "CustomResourceDefinition"
	})
	return objects{deployment: deployments[0], fleet: fleet}, nil
}

func (o objects) all() []*unstructured.Unstructured {
	return append([]*unstructured.Unstructured{o.deployment, widget(0)}, o.fleet...)
}

// kinds are all kinds that are measured.
func (o objects) kinds() map[schema.GroupVersionKind]bool {
	out := map[schema.GroupVersionKind]bool{}
	for _, object := range o.all() {
		out[object.GroupVersionKind()] = true
	}
	return out
}

// widget is an object with a number of leaf fields in its spec.
func widget(leaves int) *unstructured.Unstructured {
	items := make([]any, 0, leaves/2)
	for i := range leaves / 2 {
		items = append(items, map[string]any{"id": fmt.Sprint("item-", i), "value": "a"})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "bench.keelson.io/v1", "kind": "Widget",
		"metadata": map[string]any{
			"name": fmt.Sprint("leaves-", leaves), "namespace": "kube-system",
			"labels": map[string]any{v1alpha1.LabelComponent: "widgets"},
		},
		"spec": map[string]any{"items": items},
	}}
}

func decode(file string) ([]*unstructured.Unstructured, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := d.Decode(o)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(o.Object) > 0 {
			out = append(out, o)
		}
	}
}
