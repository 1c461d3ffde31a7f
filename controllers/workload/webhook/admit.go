package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	alpha "github.com/keelson-io/keelson/api/apps/v1alpha1"
	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// defaults returns the defaults of the missing fields of a spec, by kind, as in OpenKruise.
func defaults(kind string) map[string]any {
	switch kind {
	case "CloneSet":
		return map[string]any{
			"replicas": int64(1), "revisionHistoryLimit": int64(10),
			"updateStrategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{
				"podUpdatePolicy": "ReCreate", "partition": int64(0), "maxUnavailable": "20%", "maxSurge": int64(0),
			}},
		}
	case "StatefulSet":
		return map[string]any{
			"replicas": int64(1), "revisionHistoryLimit": int64(10), "podManagementPolicy": "OrderedReady",
			"persistentVolumeClaimRetentionPolicy": map[string]any{"whenDeleted": "Retain", "whenScaled": "Retain"},
			"updateStrategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{
				"podUpdatePolicy": "ReCreate", "partition": int64(0), "maxUnavailable": int64(1), "minReadySeconds": int64(0),
			}},
		}
	case "DaemonSet":
		return map[string]any{
			"revisionHistoryLimit": int64(10), "burstReplicas": int64(250),
			"updateStrategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{
				"rollingUpdateType": "Standard", "partition": int64(0), "maxUnavailable": int64(1), "maxSurge": int64(0),
			}},
		}
	}
	return nil
}

// whole returns the defaults of an object. With OnDelete there is no rolling update, and so no
// default for updateStrategy.
func whole(o *unstructured.Unstructured) map[string]any {
	all := defaults(o.GetKind())
	kind, _, _ := unstructured.NestedString(o.Object, "spec", "updateStrategy", "type")
	if kind == string(v1beta1.DaemonSetOnDelete) {
		delete(all, "updateStrategy")
	}
	return all
}

// complete adds the defaults of a workload. It denies a template that the API server finds
// invalid.
func (h *hooks) complete(ctx context.Context, req admission.Request) admission.Response {
	is, was, err := objects(req)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	var warnings []string
	var invalid *invalidError
	switch err := h.templates.completeTemplate(ctx, is, was); {
	case errors.As(err, &invalid):
		return admission.Denied(invalid.Error())
	case err != nil: // unknown is not invalid: an error shows when pods are created
		warnings = append(warnings, err.Error())
	}
	spec, _ := is.Object["spec"].(map[string]any)
	is.Object["spec"] = fill(spec, whole(is))
	data, err := json.Marshal(is)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("encode what was completed: %w", err))
	}
	return admission.PatchResponseFromRaw(req.Object.Raw, data).WithWarnings(warnings...)
}

// objects returns the new and the old object of a request; a nil was means a new object. It
// returns an error if an object cannot be parsed, or has no spec.
func objects(req admission.Request) (is, was *unstructured.Unstructured, err error) {
	is = &unstructured.Unstructured{}
	if err := is.UnmarshalJSON(req.Object.Raw); err != nil {
		return nil, nil, fmt.Errorf("read the object: %w", err)
	}
	if _, ok := is.Object["spec"].(map[string]any); !ok {
		return nil, nil, errors.New("the object has no spec")
	}
	is.SetNamespace(req.Namespace)
	if len(req.OldObject.Raw) == 0 {
		return is, nil, nil
	}
	was = &unstructured.Unstructured{}
	if err := was.UnmarshalJSON(req.OldObject.Raw); err != nil {
		return nil, nil, fmt.Errorf("decode the old object: %w", err)
	}
	return is, was, nil
}

// validate denies an invalid workload, unless it is being deleted.
func (h *hooks) validate(ctx context.Context, req admission.Request) admission.Response {
	var problems field.ErrorList
	var meta metav1.ObjectMeta
	var err error
	switch req.Kind.Kind {
	case "CloneSet":
		var is, was *v1beta1.CloneSet
		if is, was, err = typed[v1beta1.CloneSet](req); err == nil {
			meta, problems = is.ObjectMeta, append(validateCloneSet(is, was), h.named(ctx, req, is)...)
		}
	case "DaemonSet":
		var is, was *v1beta1.DaemonSet
		if is, was, err = typed[v1beta1.DaemonSet](req); err == nil {
			meta, problems = is.ObjectMeta, validateDaemonSet(is, was)
		}
	case "StatefulSet":
		var is, was *v1beta1.StatefulSet
		if is, was, err = typed[v1beta1.StatefulSet](req); err == nil {
			meta, problems = is.ObjectMeta, append(validateStatefulSet(is, was), h.growable(ctx, is, was)...)
		}
	default:
		err = fmt.Errorf("a %s is nothing that is validated here", req.Kind.Kind)
	}
	switch {
	case err != nil:
		return admission.Errored(http.StatusBadRequest, err)
	case len(problems) == 0, meta.DeletionTimestamp != nil: // finalizers must be removable
		return admission.Allowed("")
	}
	return admission.Denied(problems.ToAggregate().Error())
}

func typed[T any](req admission.Request) (is, was *T, err error) {
	is = new(T)
	if err := json.Unmarshal(req.Object.Raw, is); err != nil {
		return nil, nil, fmt.Errorf("read the object: %w", err)
	}
	if req.Operation == admissionv1.Create {
		return is, nil, nil
	}
	was = new(T)
	if err := json.Unmarshal(req.OldObject.Raw, was); err != nil {
		return nil, nil, fmt.Errorf("decode the old object: %w", err)
	}
	return is, was, nil
}

// named rejects podsToDelete that do not belong to this CloneSet, as v1alpha1 does. The message
// is the same for missing pods and pods of another owner, because clients must not learn which
// exist.
func (h *hooks) named(ctx context.Context, req admission.Request, is *v1beta1.CloneSet) field.ErrorList {
	if req.RequestKind == nil || req.RequestKind.Version != alpha.GroupVersion.Version {
		return nil
	}
	var all field.ErrorList
	path := field.NewPath("spec", "scaleStrategy", "podsToDelete")
	for i, name := range is.Spec.ScaleStrategy.PodsToDelete {
		pod := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
		var err error
		if is.UID != "" { // an object without a UID was never stored, and has no pods
			err = h.reader.Get(ctx, client.ObjectKey{Namespace: req.Namespace, Name: name}, &pod)
		}
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			all = append(all, field.InternalError(path.Index(i), fmt.Errorf("the pod can't be read (%s)", cmp.Or(string(apierrors.ReasonForError(err)), "no answer"))))
		case is.UID == "" || !metav1.IsControlledBy(&pod, is):
			all = append(all, field.Invalid(path.Index(i), name, "the CloneSet does not own this pod"))
		}
	}
	return all
}
