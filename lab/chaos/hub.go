package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// deliveryStatus is the status of a component on the hub.
type deliveryStatus struct {
	sync, health, revision, applied, message string
}

// deliveries returns the statuses of all Deliveries, by component.
func (w *world) deliveries(ctx context.Context) (map[string]deliveryStatus, error) {
	d, err := w.dynamic()
	if err != nil {
		return nil, err
	}
	list, err := d.Resource(schema.GroupVersionResource{Group: "keelson.io", Version: "v1alpha1", Resource: "deliveries"}).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list deliveries: %w", err)
	}
	out := map[string]deliveryStatus{}
	for i := range list.Items {
		field := func(name string) string {
			v, _, _ := unstructured.NestedString(list.Items[i].Object, "status", name)
			return v
		}
		out[field("component")] = deliveryStatus{
			sync: field("sync"), health: field("health"), revision: field("revision"), applied: field("appliedVersion"), message: field("message"),
		}
	}
	return out, nil
}
