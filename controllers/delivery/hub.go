package delivery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/components"
)

// crdTimeout bounds the wait for the hub to serve Deliveries.
const crdTimeout = time.Minute

// hubKinds are the resources of what is read and written in the hub. To ask it for
// them would tell of Deliveries too late: discovery lags behind a CRD.
func hubKinds() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(v1alpha1.GroupVersion.WithKind("Delivery"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"), meta.RESTScopeRoot)
	return m
}

// prepare makes the hub serve Deliveries, and reads those that it has, if they are
// all this process's to write.
func (w *writer) prepare(ctx context.Context, all bool) error {
	created := false
	manifests, err := components.CRDs()
	if err != nil {
		return err
	}
	for _, manifest := range manifests {
		anew, err := w.serve(ctx, manifest)
		if err != nil {
			return err
		}
		created = created || anew
	}
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}
	err = w.client.Get(ctx, client.ObjectKeyFromObject(own), own)
	if apierrors.IsNotFound(err) { // who may create namespaces may create any
		err = w.client.Create(ctx, own)
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Namespace %s: %w", v1alpha1.Namespace, err)
	}
	if created {
		return nil // it has none
	}
	var list v1alpha1.DeliveryList
	if err := w.client.List(ctx, &list, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return fmt.Errorf("list Deliveries: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version = list.ResourceVersion
	for i := range list.Items {
		d := &list.Items[i]
		w.first = append(w.first, marks(d))
		if all {
			w.written[d.Name] = knownOf(d)
		}
	}
	return nil
}

// serve has the hub serve a CRD: it is applied where it differs, and established.
func (w *writer) serve(ctx context.Context, manifest []byte) (created bool, err error) {
	var u unstructured.Unstructured
	text, err := yaml.YAMLToJSON(manifest)
	if err == nil {
		err = u.UnmarshalJSON(text) // numbers as an API server's
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

// defines reports whether a CRD has the spec of another. One that comes from an API
// server has a strategy of conversion, too, by default.
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
