package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// bare applies objects in a loop with some workers: no order, no guard, no
// record, no look at what is there. It is as fast as the API server is.
func (m *measurement) bare(ctx context.Context, config *rest.Config, objects []unstructured.Unstructured) error {
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("bare loop: %w", err)
	}
	next := make(chan *unstructured.Unstructured)
	errs := make([]error, m.workers)
	var wg sync.WaitGroup
	for i := range m.workers {
		wg.Go(func() {
			for o := range next {
				if err := apply(ctx, client, o); err != nil {
					errs[i] = err
				}
			}
		})
	}
	for i := range objects {
		next <- &objects[i]
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

func apply(ctx context.Context, client dynamic.Interface, o *unstructured.Unstructured) error {
	gvr, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	_, err := client.Resource(gvr).Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "bare", Force: true})
	if err != nil {
		return fmt.Errorf("bare loop: %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// ensureNamespace makes the namespace of all objects. Keelson would, too; the
// bare loop has no order.
func ensureNamespace(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}}
	_, err = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(ctx, u, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace: %w", err)
	}
	return nil
}

// withLevel returns the Deployments of objects with the one field changed.
func withLevel(objects []unstructured.Unstructured, level string) ([]unstructured.Unstructured, error) {
	var out []unstructured.Unstructured
	for i := range objects {
		if objects[i].GetKind() != "Deployment" {
			continue
		}
		o := *objects[i].DeepCopy()
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		if err != nil || len(containers) != 1 {
			return nil, fmt.Errorf("%s: %d containers: %w", o.GetName(), len(containers), err)
		}
		container, ok := containers[0].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: its container is no object", o.GetName())
		}
		container["env"] = []any{map[string]any{"name": "LEVEL", "value": level}}
		if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
			return nil, fmt.Errorf("%s: %w", o.GetName(), err)
		}
		out = append(out, o)
	}
	return out, nil
}
