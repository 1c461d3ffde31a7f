package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

const (
	// someChildren is how many objects a message counts and names. Beyond that number it says
	// "more than".
	someChildren = 5
	// page is the limit of objects in one list answer of the API server.
	page = 100
)

// subject has the fields of an object that protection needs.
type subject struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas *int32                `json:"replicas"`
		Selector *metav1.LabelSelector `json:"selector"`
		// Fields of a CustomResourceDefinition.
		Group    string                                            `json:"group"`
		Names    apiextensionsv1.CustomResourceDefinitionNames     `json:"names"`
		Versions []apiextensionsv1.CustomResourceDefinitionVersion `json:"versions"`
	} `json:"spec"`
}

// protectable is a resource that can be protected. The configuration of the chart names the same
// resources.
type protectable struct {
	kind    schema.GroupVersionKind
	cluster bool // cluster-scoped
	// left describes what would be deleted with an object; "" if nothing. A nil left means that
	// nothing ever is.
	left func(*hooks, context.Context, *subject) (string, error)
}

func protectables() map[schema.GroupResource]protectable {
	core, apps := schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "apps", Version: "v1"}
	kruise := v1beta1.GroupVersion
	extensions := schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}
	workload := (*hooks).leftOfWorkload
	return map[schema.GroupResource]protectable{
		{Resource: "namespaces"}: {core.WithKind("Namespace"), true, (*hooks).leftInNamespace},
		{Resource: "services"}:   {core.WithKind("Service"), false, nil},
		{Group: extensions.Group, Resource: "customresourcedefinitions"}: {extensions.WithKind("CustomResourceDefinition"), true, (*hooks).leftOfKind},
		{Group: apps.Group, Resource: "deployments"}:                     {apps.WithKind("Deployment"), false, workload},
		{Group: apps.Group, Resource: "replicasets"}:                     {apps.WithKind("ReplicaSet"), false, workload},
		{Group: apps.Group, Resource: "statefulsets"}:                    {apps.WithKind("StatefulSet"), false, workload},
		{Group: kruise.Group, Resource: "clonesets"}:                     {kruise.WithKind("CloneSet"), false, workload},
		{Group: kruise.Group, Resource: "statefulsets"}:                  {kruise.WithKind("StatefulSet"), false, workload},
		{Group: "networking.k8s.io", Resource: "ingresses"}:              {schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "Ingress"}, false, nil},
	}
}

// read returns the object of a delete request, and its resource. It returns an error if the
// operation, resource, name or namespace does not fit.
func read(req admission.Request) (*subject, protectable, error) {
	is, ok := protectables()[schema.GroupResource{Group: req.Resource.Group, Resource: req.Resource.Resource}]
	if !ok || req.Operation != admissionv1.Delete {
		return nil, is, fmt.Errorf("%s of %s is nothing that is protected here", req.Operation, req.Resource.Resource)
	}
	var o subject
	if err := json.Unmarshal(req.OldObject.Raw, &o); err != nil {
		return nil, is, fmt.Errorf("decode the object to delete: %w", err)
	}
	namespace := req.Namespace
	if is.cluster {
		namespace = "" // API servers set the namespace of a Namespace to its own name
	}
	switch {
	case o.Name == "" || (req.Name != "" && req.Name != o.Name): // a request for a collection has no name
		return nil, is, errors.New("the object has not the name that is to be deleted")
	case o.Namespace != namespace || is.cluster != (namespace == ""):
		return nil, is, errors.New("the object is not in the namespace in which it is to be deleted")
	}
	return &o, is, nil
}

// protect denies the deletion of an object with the protection label: always, or while the
// object still has contents. If the contents cannot be determined, the deletion is denied.
func (h *hooks) protect(ctx context.Context, req admission.Request) admission.Response {
	o, is, err := read(req)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if o.DeletionTimestamp != nil {
		return admission.Allowed("") // it is being deleted already
	}
	policy := o.Labels[v1beta1.LabelDeleteProtection]
	var left string
	switch policy {
	case "":
		return admission.Allowed("")
	case v1beta1.DeleteProtectionAlways:
	case v1beta1.DeleteProtectionCascading:
		if left, err = h.dependentsOf(ctx, is, o); err != nil {
			left = "its remaining objects can't be listed: " + err.Error()
		}
		if left == "" {
			return admission.Allowed("")
		}
	default:
		left = fmt.Sprintf("the value must be %s or %s", v1beta1.DeleteProtectionAlways, v1beta1.DeleteProtectionCascading)
	}
	if left != "" {
		left = ", " + left
	}
	// Include the group, because several groups can have a kind of the same name.
	kind := strings.TrimSuffix(req.Resource.Resource+"."+req.Resource.Group, ".")
	lift := "kubectl label " + kind + "/" + o.Name + " " + v1beta1.LabelDeleteProtection + "-"
	if o.Namespace != "" {
		lift += " -n " + o.Namespace
	}
	return admission.Denied(fmt.Sprintf("forbidden by ResourcesProtectionDeletion: %s=%s%s; to delete it all the same: %s", v1beta1.LabelDeleteProtection, policy, left, lift))
}

// dependentsOf describes what would be deleted with an object; "" if nothing. It uses the object in the
// cluster, and only if the request has its UID. Otherwise any client that reaches the port could
// have objects listed for an object that does not exist.
func (h *hooks) dependentsOf(ctx context.Context, is protectable, o *subject) (string, error) {
	if is.left == nil {
		return "", nil
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(is.kind)
	err := h.reader.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: o.Name}, live)
	switch {
	case apierrors.IsNotFound(err), err == nil && (o.UID == "" || live.GetUID() != o.UID):
		return "", errors.New("the cluster has no object of this name and UID")
	case err != nil:
		return "", fmt.Errorf("the object can't be read (%s)", cmp.Or(string(apierrors.ReasonForError(err)), "no answer"))
	}
	var there subject
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, &there); err != nil {
		return "", fmt.Errorf("read the object: %w", err)
	}
	return is.left(h, ctx, &there)
}

func (h *hooks) leftOfWorkload(ctx context.Context, o *subject) (string, error) {
	replicas := int32(1)
	if o.Spec.Replicas != nil {
		replicas = *o.Spec.Replicas
	}
	if replicas == 0 {
		return "", nil
	}
	selector, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
	if err != nil {
		return "", fmt.Errorf("read its selector: %w", err)
	}
	pods, err := h.pods(ctx, o.Namespace, client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("spec.replicas is %d%s", replicas, strings.TrimSuffix(" with "+pods, " with ")), nil
}

func (h *hooks) leftInNamespace(ctx context.Context, namespace *subject) (string, error) {
	pods, err := h.pods(ctx, namespace.Name)
	if err != nil {
		return "", err
	}
	claims, err := h.some("bound claim", func(o ...client.ListOption) (names []string, next string, err error) {
		var all corev1.PersistentVolumeClaimList
		err = h.reader.List(ctx, &all, append(o, client.InNamespace(namespace.Name))...)
		for i := range all.Items {
			if c := &all.Items[i]; c.Status.Phase == corev1.ClaimBound && c.DeletionTimestamp == nil {
				names = append(names, c.Name)
			}
		}
		return names, all.Continue, err //nolint:wrapcheck // below
	})
	if err != nil {
		return "", fmt.Errorf("list its claims: %w", err)
	}
	switch {
	case pods == "":
		return claims, nil
	case claims == "":
		return pods, nil
	default:
		return pods + " and " + claims, nil
	}
}

// pods describes the pods of a namespace that have not ended and are not being deleted.
func (h *hooks) pods(ctx context.Context, namespace string, o ...client.ListOption) (string, error) {
	o = append(o, client.InNamespace(namespace), client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)), fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)})
	pods, err := h.some("active pod", func(page ...client.ListOption) (names []string, next string, err error) {
		all, err := h.metadata(ctx, corev1.SchemeGroupVersion.WithKind("PodList"), append(page, o...))
		for i := range all.Items {
			if all.Items[i].DeletionTimestamp == nil {
				names = append(names, all.Items[i].Name)
			}
		}
		return names, all.Continue, err
	})
	if err != nil {
		return "", fmt.Errorf("list its pods: %w", err)
	}
	return pods, nil
}

func (h *hooks) leftOfKind(ctx context.Context, o *subject) (string, error) {
	var kind schema.GroupVersionKind
	for _, v := range o.Spec.Versions {
		if v.Served {
			kind = schema.GroupVersionKind{Group: o.Spec.Group, Version: v.Name, Kind: cmp.Or(o.Spec.Names.ListKind, o.Spec.Names.Kind+"List")}
		}
	}
	objects, err := h.some(o.Spec.Names.Kind, func(page ...client.ListOption) (names []string, next string, err error) {
		all, err := h.metadata(ctx, kind, page)
		for i := range all.Items {
			names = append(names, strings.TrimPrefix(all.Items[i].Namespace+"/"+all.Items[i].Name, "/"))
		}
		return names, all.Continue, err
	})
	if err != nil {
		return "", fmt.Errorf("list the objects of its kind (the chart's protection.kinds lets it): %w", err)
	}
	return objects, nil
}

// metadata lists only the metadata of objects.
func (h *hooks) metadata(ctx context.Context, list schema.GroupVersionKind, o []client.ListOption) (*metav1.PartialObjectMetadataList, error) {
	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(list)
	return all, h.reader.List(ctx, all, o...) //nolint:wrapcheck // the caller says of what
}

// some describes objects, reading page by page until the message has enough.
func (h *hooks) some(what string, read func(...client.ListOption) (names []string, next string, err error)) (string, error) {
	var names []string
	for from := ""; ; {
		more, next, err := read(client.Limit(page), client.Continue(from))
		if err != nil {
			return "", err
		}
		names, from = append(names, more...), next
		if from == "" || len(names) > someChildren {
			return count(names, what, h.options.ClientCAs != nil), nil
		}
	}
}

// count describes the number of objects, and their names if named is true.
func count(names []string, what string, named bool) string {
	if len(names) == 0 {
		return ""
	}
	number, more := strconv.Itoa(len(names)), ""
	if len(names) > 1 {
		what += "s"
	}
	if len(names) > someChildren {
		number, names, more = "more than "+strconv.Itoa(someChildren), names[:someChildren], ", …"
	}
	if !named {
		return number + " " + what
	}
	return number + " " + what + " (" + strings.Join(names, ", ") + more + ")"
}
