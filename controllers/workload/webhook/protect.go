package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// named children in a message; of more there is the number.
const someChildren = 5

// protected is what protection has to know of an object.
type protected struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas *int32 `json:"replicas"`
		// Of a CustomResourceDefinition.
		Group    string                                            `json:"group"`
		Names    apiextensionsv1.CustomResourceDefinitionNames     `json:"names"`
		Versions []apiextensionsv1.CustomResourceDefinitionVersion `json:"versions"`
	} `json:"spec"`
}

// protect refuses to delete what the label says is to stay: always, or for as long as
// something of it is left. What can't be found out counts as left.
func (h *hooks) protect(ctx context.Context, req admission.Request) admission.Response {
	var o protected
	if err := json.Unmarshal(req.OldObject.Raw, &o); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("read what is to be deleted: %w", err))
	}
	if o.DeletionTimestamp != nil {
		return admission.Allowed("") // it is on its way
	}
	policy := o.Labels[v1beta1.LabelDeleteProtection]
	var left string
	switch policy {
	case "":
		return admission.Allowed("")
	case v1beta1.DeleteProtectionAlways:
	case v1beta1.DeleteProtectionCascading:
		var err error
		if left, err = h.left(ctx, req, &o); err != nil {
			left = "what is left of it can't be found out: " + err.Error()
		}
		if left == "" {
			return admission.Allowed("")
		}
	default:
		left = fmt.Sprintf("there is no such value: %s and %s are", v1beta1.DeleteProtectionAlways, v1beta1.DeleteProtectionCascading)
	}
	if left != "" {
		left = ", " + left
	}
	// With its group, since names of kinds are several groups'.
	kind := strings.TrimSuffix(req.Resource.Resource+"."+req.Resource.Group, ".")
	lift := "kubectl label " + kind + "/" + o.Name + " " + v1beta1.LabelDeleteProtection + "-"
	if o.Namespace != "" {
		lift += " -n " + o.Namespace
	}
	return admission.Denied(fmt.Sprintf("forbidden by ResourcesProtectionDeletion: %s=%s%s; to delete it all the same: %s", v1beta1.LabelDeleteProtection, policy, left, lift))
}

// left says what an object has that would go with it; "": nothing.
func (h *hooks) left(ctx context.Context, req admission.Request, o *protected) (string, error) {
	switch req.Kind.Kind {
	case "Namespace":
		return h.leftInNamespace(ctx, o.Name)
	case "CustomResourceDefinition":
		return h.leftOfKind(ctx, o)
	case "Service", "Ingress":
		return "", nil // nothing goes with them
	default:
		return h.leftOfWorkload(ctx, req, o)
	}
}

func (h *hooks) leftOfWorkload(ctx context.Context, req admission.Request, o *protected) (string, error) {
	replicas := int32(1)
	if o.Spec.Replicas != nil {
		replicas = *o.Spec.Replicas
	}
	if replicas == 0 {
		return "", nil
	}
	of := struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}{}
	if err := json.Unmarshal(req.OldObject.Raw, &of); err != nil {
		return "", fmt.Errorf("read its selector: %w", err)
	}
	selector, err := metav1.LabelSelectorAsSelector(of.Spec.Selector)
	if err != nil {
		return "", fmt.Errorf("read its selector: %w", err)
	}
	pods, err := h.pods(ctx, o.Namespace, client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("spec.replicas is %d%s", replicas, strings.TrimSuffix(" with "+pods, " with ")), nil
}

func (h *hooks) leftInNamespace(ctx context.Context, namespace string) (string, error) {
	pods, err := h.pods(ctx, namespace)
	if err != nil {
		return "", err
	}
	var claims corev1.PersistentVolumeClaimList
	if err := h.reader.List(ctx, &claims, client.InNamespace(namespace)); err != nil {
		return "", fmt.Errorf("list its claims: %w", err)
	}
	var bound []string
	for i := range claims.Items {
		if c := &claims.Items[i]; c.Status.Phase == corev1.ClaimBound && c.DeletionTimestamp == nil {
			bound = append(bound, c.Name)
		}
	}
	switch claims := count(bound, "bound claim"); {
	case pods == "":
		return claims, nil
	case claims == "":
		return pods, nil
	default:
		return pods + " and " + claims, nil
	}
}

// pods counts those that run or are about to.
func (h *hooks) pods(ctx context.Context, namespace string, o ...client.ListOption) (string, error) {
	var list corev1.PodList
	if err := h.reader.List(ctx, &list, append(o, client.InNamespace(namespace))...); err != nil {
		return "", fmt.Errorf("list its pods: %w", err)
	}
	var active []string
	for i := range list.Items {
		p := &list.Items[i]
		if p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			active = append(active, p.Name)
		}
	}
	return count(active, "active pod"), nil
}

func (h *hooks) leftOfKind(ctx context.Context, o *protected) (string, error) {
	var list unstructured.UnstructuredList
	for _, v := range o.Spec.Versions {
		if v.Served {
			list.SetAPIVersion(o.Spec.Group + "/" + v.Name)
		}
	}
	list.SetKind(cmp.Or(o.Spec.Names.ListKind, o.Spec.Names.Kind+"List"))
	if err := h.reader.List(ctx, &list, client.Limit(someChildren)); err != nil {
		return "", fmt.Errorf("list the objects of its kind (the chart's protection.kinds lets it): %w", err)
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, strings.TrimPrefix(item.GetNamespace()+"/"+item.GetName(), "/"))
	}
	if list.GetContinue() != "" {
		return "at least " + count(names, o.Spec.Names.Kind), nil
	}
	return count(names, o.Spec.Names.Kind), nil
}

// count names some of several things, in words.
func count(names []string, what string) string {
	switch n := len(names); {
	case n == 0:
		return ""
	case n == 1:
		return "1 " + what + " (" + names[0] + ")"
	case n <= someChildren:
		return fmt.Sprintf("%d %ss (%s)", n, what, strings.Join(names, ", "))
	default:
		return fmt.Sprintf("%d %ss (%s, …)", n, what, strings.Join(names[:someChildren], ", "))
	}
}
