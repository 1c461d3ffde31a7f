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

// objects are read from files instead of charts, so that two runs compare the same objects even if
// the charts have changed.
type objects struct {
	// deployment has 68 leaf fields, a typical number for an add-on.
	deployment *unstructured.Unstructured
	// fleet is the output of `keelson render prod-us-01` on the example fleet, without CRDs.
	// Creating and deleting CRDs changes what the API server serves, and every engine would have to
	// read it again.
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

// kinds returns all measured kinds.
func (o objects) kinds() map[schema.GroupVersionKind]bool {
	out := map[schema.GroupVersionKind]bool{}
	for _, object := range o.all() {
		out[object.GroupVersionKind()] = true
	}
	return out
}

// widget returns an object with the given number of leaf fields in its spec.
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
