package hubstatus

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const (
	// crdTimeout bounds the wait for the hub to serve Deliveries.
	crdTimeout = time.Minute
	// hubPage is how many Deliveries are read per request: about half a megabyte.
	hubPage = 500
)

// hubKinds maps the kinds that are read and written in the hub. Discovery would find Deliveries too
// late, because it lags behind a new CRD.
func hubKinds() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(v1alpha1.GroupVersion.WithKind("Delivery"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"), meta.RESTScopeRoot)
	return m
}

// ServeCRD applies a CRD where it differs, waits until it is established, and says whether it is
// new.
func (w *Writer) ServeCRD(ctx context.Context, manifest []byte) (created bool, err error) {
	var u unstructured.Unstructured
	text, err := yaml.YAMLToJSON(manifest)
	if err == nil {
		err = u.UnmarshalJSON(text) // decodes numbers as an API server's client does
	}
	if err != nil {
		return false, fmt.Errorf("decode a shipped CRD: %w", err)
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(u.GroupVersionKind())
	err = w.client.Get(ctx, client.ObjectKeyFromObject(&u), live)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read CRD %s: %w", u.GetName(), err)
	}
	if err == nil && established(live) && defines(live.Object, u.Object) {
		return false, nil
	}
	created = err != nil
	err = w.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(&u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
	if err != nil {
		return false, fmt.Errorf("apply CRD %s: %w", u.GetName(), err)
	}
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, crdTimeout, true, func(ctx context.Context) (bool, error) {
		err := w.client.Get(ctx, client.ObjectKeyFromObject(&u), live)
		return err == nil && established(live), err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return false, fmt.Errorf("CRD %s was not established: %w", u.GetName(), err)
	}
	return created, nil
}

// defines reports whether a live CRD has the spec of a shipped one. An API server adds a default
// conversion strategy, which is ignored.
func defines(live, crd map[string]any) bool {
	has, _ := live["spec"].(map[string]any)
	has = maps.Clone(has)
	if equality.Semantic.DeepEqual(has["conversion"], map[string]any{"strategy": "None"}) {
		delete(has, "conversion")
	}
	return equality.Semantic.DeepEqual(has, crd["spec"])
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["type"] == string(apiextensionsv1.Established) && condition["status"] == string(apiextensionsv1.ConditionTrue)
	})
}
