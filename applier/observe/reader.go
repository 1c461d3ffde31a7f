// Package observe reads the live objects of a cluster, from a cache or from the API server.
//
// A failed read is an error and never an absence.
package observe

import (
	"cmp"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/pages"
	"github.com/keelson-io/keelson/differ"
)

// Reader finds live objects, from a cache or from the API server.
// Implementations are safe for concurrent use.
type Reader interface {
	// Get returns the object at the mapping's version, or nil when it is not known to exist. The
	// API server then decides whether it exists. Get may leave out managedFields.
	Get(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error)
	// Fresh returns the object with managedFields, not older than what Get
	// returned last.
	Fresh(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error)
	// Scaled returns what autoscalers own, by object. served lists the kinds of autoscalers
	// ([Autoscalers]) that the cluster serves.
	Scaled(ctx context.Context, served []schema.GroupVersionResource) (map[differ.ID]differ.Scaling, error)
	// Wrote receives the object that the API server returned for a write; nil: deleted.
	Wrote(id differ.ID, object map[string]any)
}

// Keeper is a [Reader] that holds objects in memory, and drops those of a settled component: all
// its objects are as wanted, and healthy.
type Keeper interface {
	Reader
	// Wake begins a plan of a component, and ends its rest. The mark differs after any change of
	// its objects.
	Wake(component string) (mark uint64)
	// Rest drops the objects that the plan has read. It returns false, and drops nothing, if an
	// object has changed since the mark, or may soon.
	Rest(component string, mark uint64, ids []differ.ID, health health.Rules) bool
	// AtRest reports whether no object has changed since Rest, in content or in health.
	AtRest(component string) bool
}

// Direct returns a Reader without a cache.
func Direct(client dynamic.Interface) Reader { return &directReader{dynamic: client} }

// directReader reads from the API server each time.
type directReader struct {
	dynamic dynamic.Interface
}

func (r *directReader) Get(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	return Get(ctx, r.dynamic, m, id)
}

func (r *directReader) Fresh(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	return Get(ctx, r.dynamic, m, id)
}

// scalersPage is how many autoscalers one request lists, and maxScalers how many of a kind a
// cluster may have.
const (
	scalersPage = 500
	maxScalers  = 100_000
)

func (r *directReader) Scaled(ctx context.Context, served []schema.GroupVersionResource) (map[differ.ID]differ.Scaling, error) {
	out := map[differ.ID]differ.Scaling{}
	for _, gvr := range served {
		err := pages.Each(gvr.GroupResource().String(), scalersPage, maxScalers, func(o metav1.ListOptions) (int, string, error) {
			list, err := r.dynamic.Resource(gvr).List(ctx, o)
			if err != nil {
				return 0, "", fmt.Errorf("list %s: %w", gvr.GroupResource(), err)
			}
			for i := range list.Items {
				if id, scaling := ScaleTarget(&list.Items[i]); scaling != 0 {
					out[id] |= scaling
				}
			}
			return len(list.Items), list.GetContinue(), nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r *directReader) Wrote(differ.ID, map[string]any) {}

// Get reads one object; nil without an error means that the API server
// answered 404 for the object itself.
func Get(ctx context.Context, d dynamic.Interface, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	o, err := Resource(d, m, id).Get(ctx, id.Name, metav1.GetOptions{})
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

// Autoscalers returns the kinds whose objects own fields of other objects, with the field that
// names the target. KEDA makes an HPA for most of its objects, but not for one that scales to zero
// or is paused.
func Autoscalers() map[schema.GroupVersionKind]string {
	return map[schema.GroupVersionKind]string{
		{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"}:      "scaleTargetRef",
		{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}:               "scaleTargetRef",
		{Group: "autoscaling.k8s.io", Version: "v1", Kind: "VerticalPodAutoscaler"}: "targetRef",
	}
}

// ScaleTarget returns the object that an autoscaler scales, and the fields that the autoscaler
// owns; 0: none, or no autoscaler.
func ScaleTarget(autoscaler *unstructured.Unstructured) (differ.ID, differ.Scaling) {
	field, ok := Autoscalers()[autoscaler.GroupVersionKind()]
	if !ok {
		return differ.ID{}, 0
	}
	ref, ok, err := unstructured.NestedMap(autoscaler.Object, "spec", field)
	if err != nil || !ok {
		return differ.ID{}, 0
	}
	text := func(key, otherwise string) string {
		s, _ := ref[key].(string)
		return cmp.Or(s, otherwise)
	}
	keda := autoscaler.GetKind() == "ScaledObject" // its default target kind is Deployment
	apiVersion, kind := text("apiVersion", ""), text("kind", "")
	if keda {
		apiVersion, kind = text("apiVersion", "apps/v1"), text("kind", "Deployment")
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return differ.ID{}, 0
	}
	id := differ.ID{Group: gv.Group, Kind: kind, Namespace: autoscaler.GetNamespace(), Name: text("name", "")}
	if autoscaler.GetKind() == "VerticalPodAutoscaler" {
		return id, verticalScaling(autoscaler)
	}
	return id, differ.ScalesReplicas
}

// verticalScaling returns the fields that a VPA owns: none while it only recommends.
func verticalScaling(vpa *unstructured.Unstructured) differ.Scaling {
	if mode, _, _ := unstructured.NestedString(vpa.Object, "spec", "updatePolicy", "updateMode"); mode == "Off" {
		return 0
	}
	policies, _, _ := unstructured.NestedSlice(vpa.Object, "spec", "resourcePolicy", "containerPolicies")
	for _, p := range policies {
		if m, ok := p.(map[string]any); ok && m["controlledValues"] == "RequestsOnly" {
			return differ.ScalesRequests
		}
	}
	return differ.ScalesRequests | differ.ScalesLimits
}

// Resource returns the client of an object's kind, in its namespace if it has one.
func Resource(d dynamic.Interface, m *meta.RESTMapping, id differ.ID) dynamic.ResourceInterface {
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return d.Resource(m.Resource).Namespace(id.Namespace)
	}
	return d.Resource(m.Resource)
}
