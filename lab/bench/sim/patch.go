package sim

import (
	"fmt"
	"mime"
	"net/http"
	"slices"

	jsonpatch "github.com/evanphx/json-patch"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// mustNameVersion reports whether an update of this kind requires a resourceVersion.
func mustNameVersion(k *kind) bool {
	return !typed.Recognizes(k.GroupVersionKind) || slices.Contains([]string{"CustomResourceDefinition", "Lease", "PodDisruptionBudget"}, k.Kind)
}

func mustBeSpecified(k *kind, name string) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: k.Group, Kind: k.resource}, name, field.ErrorList{field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
}

func (a *answer) patch(k *kind) error {
	w, o, err := a.write(k)
	if err != nil {
		return err
	}
	w.force = o.Force != nil && *o.Force
	data, err := a.read()
	if err != nil {
		return err
	}
	media, _, err := mime.ParseMediaType(a.r.Header.Get("Content-Type"))
	if err != nil {
		return unsupported(a.r.Header.Get("Content-Type"))
	}
	if types.PatchType(media) == types.ApplyYAMLPatchType {
		return a.apply(k, w, data, o.FieldManager)
	}
	return a.change(http.StatusOK, w, func(now *object) (*body, error) {
		if now == nil {
			return nil, apierrors.NewNotFound(k.groupResource(), w.key.name)
		}
		content, err := patchedWith(k, now, types.PatchType(media), data)
		if err != nil {
			return nil, err
		}
		if err := w.named(content); err != nil {
			return nil, err
		}
		w.claimed(content)
		return a.server.replaced(w, now, content)
	})
}

func (a *answer) apply(k *kind, w *write, data []byte, manager string) error {
	if manager == "" {
		return apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "PatchOptions"}, "",
			field.ErrorList{field.Required(field.NewPath("fieldManager"), "is required for apply patch")})
	}
	patch := map[string]any{}
	text, err := yaml.YAMLToJSON(data)
	if err == nil {
		patch, err = decoded(text)
	}
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding YAML: %v", err))
	}
	if a.server.store.get(k.groupResource(), w.key) == nil {
		if err := a.inNamespace(k); err != nil {
			return err
		}
	}
	o, created, err := a.server.apply(w, patch)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if created {
		code = http.StatusCreated
	}
	return a.object(code, k, o)
}

// patchedWith applies a patch to the object as clients see it.
func patchedWith(k *kind, now *object, kind types.PatchType, patch []byte) (map[string]any, error) {
	var out []byte
	var err error
	switch kind {
	case types.JSONPatchType:
		operations, decodeErr := jsonpatch.DecodePatch(patch)
		if decodeErr != nil {
			return nil, apierrors.NewBadRequest(decodeErr.Error())
		}
		if out, err = operations.Apply(now.append(nil)); err != nil {
			return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
		}
	case types.MergePatchType:
		if out, err = jsonpatch.MergePatch(now.append(nil), patch); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	case types.StrategicMergePatchType:
		t, newErr := typed.New(k.GroupVersionKind)
		if newErr != nil {
			return nil, unsupported(string(kind)) // custom resources have no merge keys for lists
		}
		if out, err = strategicpatch.StrategicMergePatch(now.append(nil), patch, t); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	default:
		return nil, unsupported(string(kind))
	}
	return decoded(out)
}

func unsupported(media string) error {
	e := apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "", schema.GroupResource{}, "", "", 0, false)
	e.ErrStatus.Message = fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: "+
		"application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml: %q", media)
	return e
}
