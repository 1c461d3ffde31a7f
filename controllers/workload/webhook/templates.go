package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// templates validates and completes pod templates by the API server itself: a dry run creates a
// PodTemplate, which consists only of such a template. Validation and defaults thus always match
// the version of the cluster.
type templates struct {
	client client.Client
	// namespace is where the dry run is made, whatever the namespace of the object. Validation
	// and defaults do not depend on it. The quotas and policies of another namespace must not
	// become known to every client that reaches the webhook.
	namespace string
}

// invalidError has the errors of the API server about a template, by field.
type invalidError struct{ causes []metav1.StatusCause }

func (e *invalidError) Error() string {
	var lines []string
	for _, c := range e.causes {
		lines = append(lines, "spec."+c.Field+": "+c.Message)
	}
	return strings.Join(lines, "; ")
}

// complete returns the template of an object with the defaults of the API server, or an
// [invalidError]. Any other error means that the result is unknown.
func (t templates) complete(ctx context.Context, o *unstructured.Unstructured) (map[string]any, error) {
	template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
	if err != nil {
		return nil, fmt.Errorf("read spec.template: %w", err)
	}
	named := maps.Clone(template)
	claims, shadowed, err := withClaims(o, named)
	if err != nil {
		return nil, err
	}
	try := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "PodTemplate",
		"metadata": map[string]any{"namespace": t.namespace, "generateName": "keelson-workloads-"},
		"template": named,
	}}
	err = t.client.Create(ctx, try, client.DryRunAll)
	if err != nil {
		return nil, refused(err)
	}
	spec, _, err := unstructured.NestedMap(try.Object, "template", "spec")
	if err != nil {
		return nil, fmt.Errorf("read the completed template: %w", err)
	}
	if volumes, ok := spec["volumes"].([]any); ok && claims == len(volumes) {
		delete(spec, "volumes")
	} else if ok {
		for i, volume := range shadowed {
			volumes[i] = volume
		}
		spec["volumes"] = volumes[:len(volumes)-claims]
	}
	filled := maps.Clone(template)
	filled["spec"] = fill(filled["spec"], spec)
	return filled, nil
}

// refused returns an [invalidError] with the errors about fields of a template. It omits any
// other text, which may come from a policy or a quota that clients must not read.
func refused(err error) error {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok && apierrors.IsInvalid(err) && status.ErrStatus.Details != nil {
		all := slices.DeleteFunc(slices.Clone(status.ErrStatus.Details.Causes), func(c metav1.StatusCause) bool {
			return c.Field != "template" && !strings.HasPrefix(c.Field, "template.")
		})
		if len(all) > 0 {
			return &invalidError{causes: all}
		}
	}
	return fmt.Errorf("spec.template is not completed: the API server does not take a dry run of a PodTemplate (%s)", cmp.Or(string(apierrors.ReasonForError(err)), "no answer"))
}

// withClaims adds the volumes of the claims of an object to a template, and returns their number.
// Containers mount these volumes, which the controller adds later. A claim takes the place of a volume
// of the template with its name: shadowed has these volumes by their index.
func withClaims(o *unstructured.Unstructured, template map[string]any) (claims int, shadowed map[int]any, err error) {
	all, _, err := unstructured.NestedSlice(o.Object, "spec", "volumeClaimTemplates")
	if err != nil {
		return 0, nil, fmt.Errorf("read spec.volumeClaimTemplates: %w", err)
	}
	if len(all) == 0 {
		return 0, nil, nil
	}
	spec, ok := template["spec"].(map[string]any)
	if !ok {
		return 0, nil, nil // the API server reports the error
	}
	spec = maps.Clone(spec)
	volumes, _ := spec["volumes"].([]any)
	volumes = slices.Clone(volumes)
	shadowed = map[int]any{}
	for _, claim := range all {
		c, _ := claim.(map[string]any)
		name, _, _ := unstructured.NestedString(c, "metadata", "name")
		volume := map[string]any{"name": name, "persistentVolumeClaim": map[string]any{"claimName": "claim"}}
		i := slices.IndexFunc(volumes, func(v any) bool {
			has, _ := v.(map[string]any)
			return has["name"] == name
		})
		if i >= 0 && i < len(volumes)-claims {
			shadowed[i], volumes[i] = volumes[i], volume
			continue
		}
		volumes = append(volumes, volume)
		claims++
	}
	spec["volumes"], template["spec"] = volumes, spec
	return claims, shadowed, nil
}

// fill returns a value with the missing fields of another value. Existing fields keep their
// values. Lists keep their length, and their items are matched by index.
func fill(is, with any) any {
	switch with := with.(type) {
	case map[string]any:
		was, ok := is.(map[string]any)
		if !ok {
			break
		}
		out := maps.Clone(was)
		for key, value := range with {
			if have, ok := out[key]; ok {
				out[key] = fill(have, value)
			} else if value != nil {
				out[key] = value
			}
		}
		return out
	case []any:
		was, ok := is.([]any)
		if !ok {
			break
		}
		out := slices.Clone(was)
		for i := range min(len(out), len(with)) {
			out[i] = fill(out[i], with[i])
		}
		return out
	}
	return is
}

// completeTemplate completes the template of an object that is new, or whose template changes. A template
// that was stored without defaults stays without. Defaults would make another revision, whose
// pods could not be updated in place.
func (t templates) completeTemplate(ctx context.Context, is, was *unstructured.Unstructured) error {
	template := is.Object["spec"].(map[string]any)["template"] //nolint:forcetypeassert // read by complete
	var before any
	if was != nil {
		before, _, _ = unstructured.NestedFieldNoCopy(was.Object, "spec", "template")
		if reflect.DeepEqual(before, template) {
			return nil
		}
	}
	completed, err := t.complete(ctx, is)
	if err != nil {
		return err
	}
	if was != nil {
		whole, err := t.complete(ctx, was)
		if err != nil || !reflect.DeepEqual(whole, before) {
			return nil //nolint:nilerr // the new one is valid, and that of before is what it is
		}
	}
	return unstructured.SetNestedMap(is.Object, completed, "spec", "template") //nolint:wrapcheck // there is a spec
}
