package applier

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/differ"
)

// directReader asks the API server each time.
type directReader struct {
	dynamic dynamic.Interface
}

func (r *directReader) Get(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	return Get(ctx, r.dynamic, m, id)
}

func (r *directReader) Fresh(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	return Get(ctx, r.dynamic, m, id)
}

func (r *directReader) Autoscaled(ctx context.Context) (map[differ.ID]bool, error) {
	list, err := r.dynamic.Resource(Autoscalers()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list autoscalers: %w", err)
	}
	out := map[differ.ID]bool{}
	for i := range list.Items {
		if id, ok := ScaleTarget(&list.Items[i]); ok {
			out[id] = true
		}
	}
	return out, nil
}

func (r *directReader) Wrote(differ.ID, map[string]any) {}

// Get reads one object; nil without an error means that the API server
// answered 404 for the object itself.
func Get(ctx context.Context, d dynamic.Interface, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	o, err := resourceOf(d, m, id).Get(ctx, id.Name, metav1.GetOptions{})
	// The 404 of a path that is not served, or of a proxy, says nothing about
	// the object.
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", id, err)
	}
	return o.Object, nil
}

// Autoscalers is the resource whose objects own other objects' replicas. KEDA
// works through one, too.
func Autoscalers() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
}

// ScaleTarget returns the object that an autoscaler scales.
func ScaleTarget(hpa *unstructured.Unstructured) (differ.ID, bool) {
	ref, ok, err := unstructured.NestedStringMap(hpa.Object, "spec", "scaleTargetRef")
	if err != nil || !ok {
		return differ.ID{}, false
	}
	gv, err := schema.ParseGroupVersion(ref["apiVersion"])
	if err != nil {
		return differ.ID{}, false
	}
	return differ.ID{Group: gv.Group, Kind: ref["kind"], Namespace: hpa.GetNamespace(), Name: ref["name"]}, true
}
