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

// templates have the API server itself judge and complete templates of pods: by a dry
// run of a PodTemplate, which is nothing but such a template. So what is valid, and what
// stands in for what isn't there, is always what this cluster's version says.
type templates struct {
	client client.Client
	// namespace is where that is tried, whatever namespace an object is for. Neither
	// depends on it, but what quotas and policies of a namespace say would: that is not
	// for any client that reaches the webhook.
	namespace string
}

// invalidError is what the API server finds wrong with a template, by its field.
type invalidError struct{ causes []metav1.StatusCause }

func (e *invalidError) Error() string {
	var lines []string
	for _, c := range e.causes {
		lines = append(lines, "spec."+c.Field+": "+c.Message)
	}
	return strings.Join(lines, "; ")
}

// complete returns the template of an object as the API server completes it, or an
// [invalidError]. Any other error says that it can't be known.
func (t templates) complete(ctx context.Context, o *unstructured.Unstructured) (map[string]any, error) {
	template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
	if err != nil {
		return nil, fmt.Errorf("read spec.template: %w", err)
	}
	named := maps.Clone(template)
	claims, err := withClaims(o, named)
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
		spec["volumes"] = volumes[:len(volumes)-claims]
	}
	filled := maps.Clone(template)
	filled["spec"] = fill(filled["spec"], spec)
	return filled, nil
}

// refused is what the API server finds wrong with the fields of a template. Any other text
// of its is left out: it may be a policy's or a quota's, which strangers must not read.
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

// withClaims gives a template the volumes of the object's claims, which its containers
// mount and the controller adds, and returns how many.
func withClaims(o *unstructured.Unstructured, template map[string]any) (claims int, err error) {
	all, _, err := unstructured.NestedSlice(o.Object, "spec", "volumeClaimTemplates")
	if err != nil {
		return 0, fmt.Errorf("read spec.volumeClaimTemplates: %w", err)
	}
	if len(all) == 0 {
		return 0, nil
	}
	spec, ok := template["spec"].(map[string]any)
	if !ok {
		return 0, nil // the API server says so
	}
	spec = maps.Clone(spec)
	volumes, _ := spec["volumes"].([]any)
	volumes = slices.Clone(volumes)
	for _, claim := range all {
		c, _ := claim.(map[string]any)
		name, _, _ := unstructured.NestedString(c, "metadata", "name")
		volumes = append(volumes, map[string]any{"name": name, "persistentVolumeClaim": map[string]any{"claimName": "claim"}})
	}
	spec["volumes"], template["spec"] = volumes, spec
	return len(all), nil
}

// fill returns a value with what it lacks of another. What is there stays as it is, and
// lists keep their length: their items are the same ones, in the same order.
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

// settle completes the template of an object that is new, or whose template changes. One
// that was stored without defaults stays without: a template that only now gets them
// would be another revision, whose pods could not be updated in place.
func (t templates) settle(ctx context.Context, is, was *unstructured.Unstructured) error {
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
